"""Read XLA's text of a compiled program, which is one language for CPU, GPU and TPU."""

import collections
import math
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

# `%name = type opcode(operands), attributes`. The type of a tuple contains spaces; an opcode is the
# first word that a parenthesis follows at once.
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
# `%name (parameters) -> type {` or, in newer texts, `%name {`; ENTRY precedes the program's.
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)(?: \(.*| )\{\s*$")
_COMMENT = re.compile(r"/\*.*?\*/")
# An array's type, dimensions and layout, if the text has it; S(1) in it is memory on the chip.
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*\})?")
_BITS = re.compile(r"[a-z]+(\d+)")
# libtpu spreads a collective over several fusions, each of which repeats it.
_CHAIN = re.compile(r'chain_id="(\d+)"')
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
# Computations that an instruction calls.
_CALLED = re.compile(
    r"\b(?:body|condition|to_apply|true_computation|false_computation|calls)=%?([\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
# How often a loop runs, in the configuration of its instruction.
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Calls of computations whose instructions write to memory; those of a fusion or a reduction do not.
_CALLING = ("while", "call", "conditional", "async-start")
# Copies between a TPU's memory and its chip that other instructions do not wait for.
_PREFETCHES = ("copy-start", "slice-start")
# Parts of an instruction whose other part, or the computation that it calls, moves the bytes.
_ENDS = ("-done", "-update", "async-start")
# Instructions that read a part of their first operand, as large as their result.
_SLICES = ("dynamic-slice", "gather", "slice")
# Instructions that write a part of their first operands in place; XLA copies them before if others
# need the old values.
_UPDATES = ("dynamic-update-slice", "scatter")
# Instructions that leave each value in its place.
_VIEWS = ("bitcast", "convert")
# Instructions that compute nothing new.
_NAMES_ONLY = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "call"),
    *("conditional", "optimization-barrier", "after-all"),
}


class Instruction(NamedTuple):
    """One line of a program's text."""

    computation: str  # that contains the instruction
    name: str  # of the result
    type: str  # of the result, such as `f32[8,4]{1,0}` or a tuple of types in parentheses
    opcode: str  # such as `fusion`
    rest: str  # the operands, a closing parenthesis, the attributes
    is_root: bool = False  # whether it is the result of its computation

    @property
    def operands(self) -> list[str]:
        """The names of its operands; of a parameter its number, of a constant its value."""
        words = (part.split() for part in self.rest.partition(")")[0].split(","))
        return [word[-1].lstrip("%") for word in words if word]


def instructions(hlo: str) -> Iterator[Instruction]:
    """Yield a program's instructions in order; the entry computation is named `ENTRY`."""
    computation = ""
    for line in _COMMENT.sub("", hlo).splitlines():
        if match := _INSTRUCTION.match(line):
            root, *parts = match.groups()
            yield Instruction(computation, *parts, is_root=bool(root))  # type: ignore[misc, arg-type]
        elif match := _COMPUTATION.match(line):
            computation = "ENTRY" if match[1] else match[2]


class Array(NamedTuple):
    """An array type: its element type, its number of elements, its size in bytes."""

    dtype: str
    size: int
    num_bytes: int
    on_chip: bool = False  # in a TPU's vector memory, which the compiler manages

    def part(self, size: float) -> "Array":
        """Return the array with only the bytes of `size` of its elements."""
        return self._replace(num_bytes=int(self.num_bytes * min(1, size / max(1, self.size))))


def arrays(type_: str) -> list[Array]:
    """Return the array of an array type, all arrays of a tuple type, none of a token."""
    parts = []
    for dtype, dimensions, layout in _ARRAY.findall(type_):
        bits = _BITS.match(dtype)
        width = int(bits[1]) if bits else 8 * (dtype == "pred")
        size = math.prod(int(n or 1) for n in dimensions.replace("<=", "").split(","))
        parts.append(Array(dtype, size, -(-size * width // 8), "S(1)" in layout))
    return parts


def count_collectives(hlo: str | None) -> dict[str, dict[str, int]] | None:
    """Count the collectives in a compiled program's text.

    An asynchronous collective, of two or more instructions or computations, counts once. The
    body of a loop counts once, however often the loop runs.

    Args:
      hlo: XLA's text of the compiled program, for CPU, GPU or TPU; None if there is none.

    Returns:
      {"all-reduce": {"count", "bytes", "largest_bytes"}, ...}: bytes of the operands on each
      device, in all and of the largest collective. None without a text.
    """
    if hlo is None:
        return None
    program = list(instructions(hlo))
    types = {instruction.name: instruction.type for instruction in program}
    counts: dict[str, dict[str, int]] = {}
    chains = set()
    for instruction in program:
        operation = instruction.opcode.removesuffix("-start")
        if operation not in _COLLECTIVES:
            continue
        if chain := _CHAIN.search(instruction.rest):
            if (operation, chain[1]) in chains:
                continue
            chains.add((operation, chain[1]))
        operands = (arrays(types.get(name, "")) for name in instruction.operands)
        num_bytes = sum(array.num_bytes for operand in operands for array in operand)
        count = counts.setdefault(operation, {"count": 0, "bytes": 0, "largest_bytes": 0})
        count["count"] += 1
        count["bytes"] += num_bytes
        count["largest_bytes"] = max(count["largest_bytes"], num_bytes)
    return counts


def count_work(hlo: str, activation_sizes: Collection[int], cache_bytes: int = 0) -> dict[str, Any]:
    """Count the calls, copies and conversions of a compiled step, and the bytes that it moves.

    An instruction inside a fused computation computes in registers. Any other writes its result to
    memory, or on a TPU to the chip if the compiler says so. The body of a loop counts once, but for
    the bytes that it moves: these count as often as the loop runs, if the text contains that.

    Args:
      hlo: XLA's text of the compiled program.
      activation_sizes: the number of values in each activation.
      cache_bytes: the size of the cache between the cores and the memory.

    Returns:
      A record:
        custom_calls: {target: count}, calls of libraries such as cuDNN.
        transposes: {"count", "bytes"} of activations written only to change their layout, by a
          copy, a transpose, or a fusion of nothing else, to memory or on the chip.
        converts: {"count", "bytes"} of activations written only to change their type.
        moved_bytes: read from memory and written to it by all these instructions, for arrays of any
          size, without those that the compiler keeps on the chip. Of an array that is sliced or
          gathered from, the result counts; of one that is updated in place, the update. Branches of
          a conditional and workspaces of library calls count nothing.
        uncached_bytes: of them what the cache cannot hold: of each array what is more than that.
        estimated_cycles: the sum of what a TPU's compiler estimates of each fusion; else 0.
    """
    program = _Program(hlo)
    runs = program.runs()
    writing = [one for computation in runs for one in program.inside[computation]]
    targets = (_TARGET.search(one.rest) for one in writing if one.opcode == "custom-call")
    record: dict[str, Any] = {
        "custom_calls": dict(collections.Counter(match[1] if match else "?" for match in targets)),
        "transposes": {"count": 0, "bytes": 0},
        "converts": {"count": 0, "bytes": 0},
        "moved_bytes": 0,
        "uncached_bytes": 0,
        "estimated_cycles": 0,
    }
    for instruction in writing:
        if cycles := _CYCLES.search(instruction.rest):
            record["estimated_cycles"] += runs[instruction.computation] * int(cycles[1])
        if instruction.opcode in _NAMES_ONLY or instruction.opcode.endswith(_ENDS):
            continue
        times = runs[instruction.computation]
        for array in program.moved(instruction):
            if not array.on_chip:
                record["moved_bytes"] += times * array.num_bytes
                record["uncached_bytes"] += times * max(0, array.num_bytes - cache_bytes)
        if instruction.opcode in _PREFETCHES:
            continue  # computes nothing, and its type names the source too
        parts = program.opcodes(instruction)
        if not parts <= {"copy", "transpose", "convert", "reshape"}:
            continue
        kinds = ["transposes"] if parts & {"copy", "transpose"} else []
        kinds += ["converts"] if "convert" in parts else []
        for array in arrays(instruction.type):
            for kind in kinds if array.size in activation_sizes else ():
                record[kind]["count"] += 1
                record[kind]["bytes"] += array.num_bytes
    return record


class _Program:
    """A program's instructions.

    Attributes:
      inside: the instructions of each computation.
    """

    def __init__(self, hlo: str):
        self.inside: dict[str, list[Instruction]] = collections.defaultdict(list)
        self._named = {}
        for instruction in instructions(hlo):
            self.inside[instruction.computation].append(instruction)
            self._named[instruction.name] = instruction

    def runs(self) -> dict[str, int]:
        """Return the computations whose instructions write to memory, and how often each runs."""
        runs: dict[str, int] = {}
        queue = [("ENTRY", 1)]
        while queue:
            computation, times = queue.pop()
            runs[computation] = runs.get(computation, 0) + times
            for instruction in self.inside[computation]:
                if instruction.opcode in _CALLING:
                    # The text does not name the branch of a conditional that runs.
                    inner = 0 if instruction.opcode == "conditional" else times
                    inner *= self._trips(instruction)
                    queue += [(called, inner) for called in _called(instruction)]
        return runs

    def _trips(self, instruction: Instruction) -> int:
        """Return how often the computations of an instruction run; 1 if the text lacks it."""
        if instruction.opcode != "while":
            return 1
        if trips := _TRIPS.search(instruction.rest):
            return int(trips[1])
        # Texts for TPUs lack it. A loop of JAX counts from 0 while it is less than a constant.
        condition = _CONDITION.search(instruction.rest)
        parts = self.inside[condition[1]] if condition else []
        ends = [end for part in parts if part.opcode == "constant" for end in part.operands]
        # With a second condition (`and`) it may end earlier.
        counts = any(part.opcode == "compare" and "direction=LT" in part.rest for part in parts)
        counts &= not any(part.opcode == "and" for part in parts)
        return int(ends[0]) if counts and len(ends) == 1 and ends[0].isdigit() else 1

    def opcodes(self, instruction: Instruction) -> set[str]:
        """Return the opcodes that an instruction consists of: a fusion has several."""
        if instruction.opcode != "fusion":
            return {instruction.opcode}
        parts = (part for called in _called(instruction) for part in self.inside[called])
        return {part.opcode for part in parts} - _NAMES_ONLY

    def moved(self, instruction: Instruction) -> Iterator[Array]:
        """Yield the arrays that an instruction reads and writes, with the bytes that it moves."""
        if instruction.opcode in _PREFETCHES:
            # Its type is a tuple: destination and source, in either order, and a semaphore. Of a
            # source that is sliced only the slice moves.
            ends = arrays(instruction.type)[:-1]
            size = min(end.size for end in ends)
            yield from (end.part(size) for end in ends)
            return
        written = arrays(instruction.type)
        if instruction.opcode == "custom-call" and written[1:] and written[-1].dtype[1:] == "8":
            written.pop()  # a workspace of bytes
        updates = self._updates(instruction)
        for index, array in enumerate(written):
            yield array.part(updates.get(index, array.size))
        read = {}  # an array that is read twice may stay in registers or in a cache
        for index, operand in enumerate(instruction.operands):
            read[operand] = max(self._read_size(instruction, index), read.get(operand, 0))
        for operand, size in read.items():
            yield from (array.part(size) for array in self._arrays(operand))

    def _arrays(self, operand: str) -> list[Array]:
        return arrays(self._named[operand].type) if operand in self._named else []

    def _updates(self, instruction: Instruction) -> dict[int, int]:
        """Return {index of a result that is updated in place: values of the update}."""
        if instruction.opcode in _UPDATES:
            # The arrays come first; of a scatter then the indices; then the updates.
            count = len(arrays(instruction.type))
            first = count + (instruction.opcode == "scatter")
            updates = instruction.operands[first : first + count]
            return {i: sum(array.size for array in self._arrays(u)) for i, u in enumerate(updates)}
        if instruction.opcode != "fusion":
            return {}
        fused = (part for called in _called(instruction) for part in self.inside[called])
        [root] = [part for part in fused if part.is_root]
        if root.opcode != "tuple":
            return self._updates(self._before_views(root))
        results = [self._named[operand] for operand in root.operands]
        updates = ((i, self._updates(self._before_views(one))) for i, one in enumerate(results))
        return {index: sizes[0] for index, sizes in updates if len(sizes) == 1}

    def _before_views(self, instruction: Instruction) -> Instruction:
        while instruction.opcode in _VIEWS:
            instruction = self._named[instruction.operands[0]]
        return instruction

    def _read_size(self, instruction: Instruction, index: int) -> float:
        """Return how many values of an operand an instruction reads; infinity for all."""
        if instruction.opcode in _SLICES and index == 0:
            return arrays(instruction.type)[0].size
        if _in_place(instruction, index):
            return 0
        if instruction.opcode != "fusion":
            return math.inf
        [computation] = _called(instruction)
        names = {(part.opcode, *part.operands): part.name for part in self.inside[computation]}
        return self._used_size(computation, names["parameter", str(index)])

    def _used_size(self, computation: str, name: str, updated: bool = False) -> float:
        """Return how many values of an instruction's result a fused computation reads.

        Args:
          computation, name: the computation and the name of the instruction in it.
          updated: whether it is an array after an update, of which the result needs no copy.
        """
        size: float = 0
        for user in self.inside[computation]:
            for index, operand in enumerate(user.operands):
                if operand != name:
                    continue
                if _in_place(user, index) or user.opcode in _VIEWS:
                    after = updated or _in_place(user, index)
                    if not user.is_root:
                        size += self._used_size(computation, user.name, after)
                    elif not after:
                        size = math.inf
                elif not (updated and user.opcode == "tuple" and user.is_root):
                    size += self._read_size(user, index)
        return size


def _in_place(instruction: Instruction, index: int) -> bool:
    """Return whether an instruction updates its operand of this index in place."""
    return instruction.opcode in _UPDATES and index < len(arrays(instruction.type))


def _called(instruction: Instruction) -> list[str]:
    return [
        name.strip().lstrip("%")
        for one, several in _CALLED.findall(instruction.rest)
        for name in (several.split(",") if several else [one])
    ]
