"""Count what a compiled step writes to memory, from XLA's text of it.

An instruction inside a fused computation computes in registers. Any other instruction writes its
result to memory, or on a TPU to the chip where the compiler says so.
"""

import collections
import re
from collections.abc import Collection, Iterator
from typing import Any

from jaxbench.xla.hlo import (
    Array,
    Instruction,
    arrays,
    instructions,
    operand_type,
    operands,
)

# Computations whose instructions write to memory; those of a fusion or a reduction do not.
_CALLED = re.compile(
    r"\b(?:body|condition|to_apply|true_computation|false_computation|calls)=%?([\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
# How often a loop runs, in the configuration of its instruction.
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INTEGER = re.compile(r"(\d+)\)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
# Copies between a TPU's memory and its chip that other instructions do not wait for.
_PREFETCHES = ("copy-start", "slice-start")
# Parts of an instruction whose other part, or the computation that it calls, moves the bytes.
_ENDS = ("-done", "-update", "async-start")
_CALLING = ("while", "call", "conditional", "async-start")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Instructions that compute nothing new.
_NAMES_ONLY = (
    "parameter",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "constant",
    "while",
    "call",
    "conditional",
    "optimization-barrier",
    "after-all",
)


def count_work(hlo: str, activation_sizes: Collection[int], cache_bytes: int = 0) -> dict[str, Any]:
    """Count what a compiled step does with arrays of the size of its activations.

    The body of a loop counts once, but for the bytes that it moves: these count as often as the
    loop runs, where the text says that.

    Args:
      hlo: XLA's text of the compiled program.
      activation_sizes: the number of values in each activation; arrays of other sizes (parameters,
        their gradients) are ignored.
      cache_bytes: the size of the cache between the cores and the memory.

    Returns:
      A record:
        fusions, while_loops: the number of each.
        custom_calls: {target: count}, calls of libraries such as cuDNN.
        transposes: {"count", "bytes"} of activations written only to change their layout, by a
          copy, a transpose, or a fusion of nothing else.
        converts: {"count", "bytes"} of activations written only to change their type.
        written: {type: {"count", "bytes"}} of activations written by any instruction. These three
          count what is written on the chip too.
        moved_bytes: read from memory and written to it by all these instructions, for arrays of any
          size, without those that the compiler keeps on the chip. An array that is indexed counts
          whole.
        uncached_bytes: of them what the cache cannot hold: of each array what is more than that.
    """
    inside = collections.defaultdict(list)
    types = {}
    for instruction in instructions(hlo):
        types[instruction.name] = instruction.type
        inside[instruction.computation].append(instruction)
    runs = _writing(inside)
    writing = [one for computation in runs for one in inside[computation]]
    opcodes = collections.Counter(instruction.opcode for instruction in writing)
    record: dict[str, Any] = {
        "fusions": opcodes["fusion"],
        "while_loops": opcodes["while"],
        "custom_calls": _custom_calls(writing),
        "transposes": {"count": 0, "bytes": 0},
        "converts": {"count": 0, "bytes": 0},
        "written": {},
        "moved_bytes": 0,
        "uncached_bytes": 0,
    }
    for instruction in writing:
        if instruction.opcode in _NAMES_ONLY or instruction.opcode.endswith(_ENDS):
            continue
        times = runs[instruction.computation]
        for array in _touched(instruction, types):
            if not array.on_chip:
                record["moved_bytes"] += times * array.num_bytes
                record["uncached_bytes"] += times * max(0, array.num_bytes - cache_bytes)
        if instruction.opcode in _PREFETCHES:
            continue  # computes nothing, and its type names the source too
        parts = _parts(instruction, inside)
        for array in arrays(instruction.type):
            if array.size in activation_sizes:
                _add_written(record, array, parts)
    return record


def _add_written(record: dict[str, Any], array: Array, parts: set[str]) -> None:
    """Count an activation that an instruction of these opcodes has written."""
    _add(record["written"].setdefault(array.dtype, {"count": 0, "bytes": 0}), array)
    if parts and parts <= {"copy", "transpose", "convert", "reshape"}:
        if parts & {"copy", "transpose"}:
            _add(record["transposes"], array)
        if "convert" in parts:
            _add(record["converts"], array)


def _touched(instruction: Instruction, types: dict[str, str]) -> Iterator[Array]:
    """Yield the arrays that an instruction reads and writes."""
    if instruction.opcode in _PREFETCHES:
        # Its type is a tuple: destination and source, in either order, and a semaphore. Of a
        # source that is sliced only the slice moves.
        ends = arrays(instruction.type)[:-1]
        moved_bytes = min(end.num_bytes for end in ends)
        yield from (end._replace(num_bytes=moved_bytes) for end in ends)
        return
    yield from arrays(instruction.type)
    for operand in operands(instruction.rest):
        yield from arrays(operand_type(operand, types))


def _writing(inside: dict[str, list[Instruction]]) -> dict[str, int]:
    """Return the computations whose instructions write to memory, and how often each runs."""
    found: dict[str, int] = {}
    queue = [("ENTRY", 1)]
    while queue:
        computation, times = queue.pop()
        found[computation] = found.get(computation, 0) + times
        for instruction in inside[computation]:
            if instruction.opcode in _CALLING:
                own = times * _trips(instruction, inside)
                queue += [(called, own) for called in _called(instruction.rest)]
    return found


def _trips(instruction: Instruction, inside: dict[str, list[Instruction]]) -> int:
    """Return how often the computations of an instruction run; 1 where its text does not say."""
    if instruction.opcode != "while":
        return 1
    if told := _TRIPS.search(instruction.rest):
        return int(told[1])
    # TPUs' compilers do not tell. A loop of JAX counts from 0 while it is less than a constant.
    condition = _CONDITION.search(instruction.rest)
    parts = inside[condition[1]] if condition else []
    ends = [_INTEGER.match(part.rest) for part in parts if part.opcode == "constant"]
    counts = any(part.opcode == "compare" and "direction=LT" in part.rest for part in parts)
    return int(ends[0][1]) if counts and len(ends) == 1 and ends[0] else 1


def _custom_calls(writing: list[Instruction]) -> dict[str, int]:
    targets = (_TARGET.search(one.rest) for one in writing if one.opcode == "custom-call")
    return dict(collections.Counter(target[1] if target else "?" for target in targets))


def _parts(instruction: Instruction, inside: dict[str, list[Instruction]]) -> set[str]:
    """Return the opcodes that an instruction consists of: a fusion has several."""
    if instruction.opcode != "fusion":
        return {instruction.opcode}
    fused = [part.opcode for called in _called(instruction.rest) for part in inside[called]]
    return set(fused) - set(_NAMES_ONLY)


def _called(rest: str) -> list[str]:
    return [
        name.strip().lstrip("%")
        for one, several in _CALLED.findall(rest)
        for name in (several.split(",") if several else [one])
    ]


def _add(count: dict[str, int], array: Array) -> None:
    count["count"] += 1
    count["bytes"] += array.num_bytes
