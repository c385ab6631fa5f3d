"""Count what a compiled step writes to memory, from XLA's text of it.

An instruction inside a fused computation computes in registers. Any other instruction writes its
result to memory.
"""

import collections
import re
from collections.abc import Collection
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

    The body of a loop counts once, however often the loop runs.

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
        written: {type: {"count", "bytes"}} of activations written to memory, by any instruction.
        moved_bytes: read and written by all instructions that write to memory, for arrays of any
          size. An array that is indexed counts whole.
        uncached_bytes: of them what must pass between memory and cores: of each array what is more
          than the cache holds, nothing of arrays that the compiler keeps on the chip.
    """
    inside = collections.defaultdict(list)
    types = {}
    for instruction in instructions(hlo):
        types[instruction.name] = instruction.type
        inside[instruction.computation].append(instruction)
    writing = [one for computation in _writing(inside) for one in inside[computation]]
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
        if instruction.opcode in _NAMES_ONLY:
            continue
        touched = [instruction.type]
        touched += [operand_type(operand, types) for operand in operands(instruction.rest)]
        for array in (array for type_ in touched for array in arrays(type_)):
            record["moved_bytes"] += array.num_bytes
            if not array.on_chip:
                record["uncached_bytes"] += max(0, array.num_bytes - cache_bytes)
        parts = _parts(instruction, inside)
        only_moves = parts and parts <= {"copy", "transpose", "convert", "reshape"}
        for array in arrays(instruction.type):
            if array.size in activation_sizes:
                _add(record["written"].setdefault(array.dtype, {"count": 0, "bytes": 0}), array)
                if only_moves and parts & {"copy", "transpose"}:
                    _add(record["transposes"], array)
                if only_moves and "convert" in parts:
                    _add(record["converts"], array)
    return record


def _writing(inside: dict[str, list[Instruction]]) -> list[str]:
    """Return the computations whose instructions write to memory, each once."""
    found, queue = {}, ["ENTRY"]
    while queue:
        computation = queue.pop()
        if computation not in found:
            found[computation] = True
            for instruction in inside[computation]:
                if instruction.opcode in _CALLING:
                    queue += _called(instruction.rest)
    return list(found)


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
