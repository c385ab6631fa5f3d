"""Count what a compiled step writes to memory, from XLA's text of it.

An instruction inside a fused computation computes in registers. Any other instruction writes its
result to memory, or on a TPU to the chip where the compiler says so.
"""

import collections
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from jaxbench.xla.hlo import (
    Array,
    Instruction,
    arrays,
    instructions,
    operand_name,
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
# Instructions that read a part of their first operand, as large as their result.
_SLICES = ("dynamic-slice", "gather", "slice")
# Instructions that write a part of their first operands in place; XLA copies them before if others
# need the old values.
_UPDATES = ("dynamic-update-slice", "scatter")
# Instructions that leave each value at its place.
_VIEWS = ("bitcast", "convert")
_BYTES = ("s8", "u8")
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
          size, without those that the compiler keeps on the chip. Of an array that is sliced or
          gathered from, the result counts; of one that is updated in place, the update. Branches of
          a conditional and workspaces of library calls count nothing.
        uncached_bytes: of them what the cache cannot hold: of each array what is more than that.
    """
    inside = collections.defaultdict(list)
    types = {}
    for instruction in instructions(hlo):
        types[instruction.name] = instruction.type
        inside[instruction.computation].append(instruction)
    traffic = _Traffic(inside, types)
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
        for array in traffic.touched(instruction):
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


class _Traffic:
    """What instructions read from memory and write to it.

    Attributes:
      inside: the instructions of each computation.
      types: the type of each instruction.
    """

    def __init__(self, inside: dict[str, list[Instruction]], types: dict[str, str]):
        self.inside, self.types = inside, types
        self._named = {one.name: one for computation in inside.values() for one in computation}

    def touched(self, instruction: Instruction) -> Iterator[Array]:
        """Yield the arrays that an instruction reads and writes, with the bytes that it moves."""
        if instruction.opcode in _PREFETCHES:
            # Its type is a tuple: destination and source, in either order, and a semaphore. Of a
            # source that is sliced only the slice moves.
            ends = arrays(instruction.type)[:-1]
            moved_bytes = min(end.num_bytes for end in ends)
            yield from (end._replace(num_bytes=moved_bytes) for end in ends)
            return
        written = arrays(instruction.type)
        if instruction.opcode == "custom-call" and written[1:] and written[-1].dtype in _BYTES:
            written.pop()  # a workspace
        updates = self._updates(instruction)
        for index, array in enumerate(written):
            yield _part(array, updates.get(index, array.size))
        read = {}  # an array that is read twice may stay in registers or in a cache
        for index, operand in enumerate(map(str.strip, operands(instruction.rest))):
            read[operand] = max(self._read_size(instruction, index), read.get(operand, 0))
        for operand, size in read.items():
            for array in arrays(operand_type(operand, self.types)):
                yield _part(array, size)

    def _updates(self, instruction: Instruction) -> dict[int, int]:
        """Return {index of a result that is updated in place: values of the update}."""
        if instruction.opcode in _UPDATES:
            # The arrays come first; of a scatter then the indices; then the updates.
            count = _num_arrays(instruction)
            first = count + (instruction.opcode == "scatter")
            updates = operands(instruction.rest)[first : first + count]
            return {
                index: sum(array.size for array in arrays(operand_type(update, self.types)))
                for index, update in enumerate(updates)
            }
        if instruction.opcode != "fusion":
            return {}
        fused = (self.inside[name] for name in _called(instruction.rest))
        [root] = [part for parts in fused for part in parts if part.is_root]
        if root.opcode != "tuple":
            return self._updates(self._before_views(root))
        results = [self._named[operand_name(operand)] for operand in operands(root.rest)]
        found = ((i, self._updates(self._before_views(one))) for i, one in enumerate(results))
        return {index: updates[0] for index, updates in found if len(updates) == 1}

    def _before_views(self, instruction: Instruction) -> Instruction:
        while instruction.opcode in _VIEWS:
            instruction = self._named[operand_name(operands(instruction.rest)[0])]
        return instruction

    def _read_size(self, instruction: Instruction, index: int) -> float:
        """Return how many values of an operand an instruction reads; infinity for all."""
        if instruction.opcode in _SLICES and index == 0:
            return arrays(instruction.type)[0].size
        if instruction.opcode in _UPDATES and index < _num_arrays(instruction):
            return 0
        if instruction.opcode != "fusion":
            return math.inf
        [computation] = _called(instruction.rest)
        parameter = next(
            part
            for part in self.inside[computation]
            if part.opcode == "parameter" and part.rest.startswith(f"{index})")
        )
        return self._used_size(computation, parameter.name)

    def _used_size(self, computation: str, name: str, updated: bool = False) -> float:
        """Return how many values of an instruction's result a fused computation reads.

        Args:
          computation, name: the computation and the name of the instruction in it.
          updated: whether it is an array after an update, of which the result needs no copy.
        """
        size: float = 0
        for user in self.inside[computation]:
            for index, operand in enumerate(operands(user.rest)):
                if operand_name(operand) != name:
                    continue
                in_place = user.opcode in _UPDATES and index < _num_arrays(user)
                if in_place or user.opcode in _VIEWS:
                    after = updated or in_place
                    at_end = 0 if after else math.inf
                    size += (
                        at_end if user.is_root else self._used_size(computation, user.name, after)
                    )
                elif not (updated and user.opcode == "tuple" and user.is_root):
                    size += self._read_size(user, index)
        return size


def _part(array: Array, size: float) -> Array:
    """Return an array of which only `size` values are moved."""
    if size >= array.size:
        return array
    return array._replace(num_bytes=int(array.num_bytes * size / array.size))


def _num_arrays(update: Instruction) -> int:
    return len(arrays(update.type))


def _writing(inside: dict[str, list[Instruction]]) -> dict[str, int]:
    """Return the computations whose instructions write to memory, and how often each runs."""
    found: dict[str, int] = {}
    queue = [("ENTRY", 1)]
    while queue:
        computation, times = queue.pop()
        found[computation] = found.get(computation, 0) + times
        for instruction in inside[computation]:
            if instruction.opcode in _CALLING:
                # Of the branches of a conditional nobody knows which runs.
                runs_here = 0 if instruction.opcode == "conditional" else times
                own = runs_here * _trips(instruction, inside)
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
    # With a second condition (`and`) it may end earlier.
    counts = any(part.opcode == "compare" and "direction=LT" in part.rest for part in parts)
    counts &= not any(part.opcode == "and" for part in parts)
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
