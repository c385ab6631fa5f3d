"""Read XLA's text of a compiled program, which is one language for CPU, GPU and TPU."""

import collections
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

# `%name = type opcode(operands), attributes`. The type of a tuple contains spaces; an opcode is the
# first word that a parenthesis follows at once.
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
# `%name (parameters) -> type {` or, in newer texts, `%name {`; ENTRY precedes the program's.
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)(?: \(.*| )\{\s*$")
_COMMENT = re.compile(r"/\*.*?\*/")
# An array's type and dimensions.
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
BITS = re.compile(r"[a-z]+(\d+)")
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
TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Calls of computations whose instructions write to memory; those of a fusion or a reduction do not.
_CALLING = ("while", "call", "conditional", "async-start")


class Instruction(NamedTuple):
    """One line of a program's text."""

    computation: str  # that contains the instruction
    name: str  # of the result
    type: str  # of the result, such as `f32[8,4]{1,0}` or a tuple of types in parentheses
    opcode: str  # such as `fusion`
    rest: str  # the operands, a closing parenthesis, the attributes

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
            yield Instruction(computation, *match.groups())
        elif match := _COMPUTATION.match(line):
            computation = "ENTRY" if match[1] else match[2]


class Array(NamedTuple):
    """An array type: its number of elements, its size in bytes."""

    size: int
    num_bytes: int


def arrays(type_: str) -> list[Array]:
    """Return the array of an array type, all arrays of a tuple type, none of a token."""
    parts = []
    for dtype, dimensions in ARRAY.findall(type_):
        bits = BITS.match(dtype)
        width = int(bits[1]) if bits else 8 * (dtype == "pred")
        size = math.prod(int(n or 1) for n in dimensions.replace("<=", "").split(","))
        parts.append(Array(size, -(-size * width // 8)))
    return parts


def count_collectives(hlo: str | None) -> dict[str, dict[str, int]] | None:
    """Count the collectives in a compiled program's text.

    An asynchronous collective, of two or more instructions or computations, counts once. The
    body of a loop counts once, however often the loop runs.

    Return {"all-reduce": {"count", "bytes", "largest_bytes"}, ...}: bytes of the operands on each
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


class Calls(NamedTuple):
    """What a compiled step calls, and how long it is estimated to take."""

    custom_calls: dict[str, int]  # {target: count}, calls of libraries such as cuDNN
    estimated_cycles: int  # the sum of what a TPU's compiler estimates of each fusion; else 0


def count_calls(hlo: str) -> Calls:
    """Count a compiled step's library calls, and the cycles that its compiler estimates.

    The body of a loop counts once, but for its cycles: these count as often as the loop runs, if
    the text contains that.
    """
    targets: collections.Counter[str] = collections.Counter()
    cycles = 0
    for instruction, times in executed(hlo):
        if instruction.opcode == "custom-call":
            target = TARGET.search(instruction.rest)
            targets[target[1] if target else "?"] += 1
        if estimate := _CYCLES.search(instruction.rest):
            cycles += times * int(estimate[1])
    return Calls(dict(targets), cycles)


def executed(hlo: str) -> Iterator[tuple[Instruction, int]]:
    """Yield the instructions whose results are written to memory, and how often each runs.

    An instruction inside a fused computation computes in registers, and is none of them. What a
    conditional may run counts 0 times: the text does not name the branch.
    """
    inside = collections.defaultdict(list)
    for instruction in instructions(hlo):
        inside[instruction.computation].append(instruction)
    runs: dict[str, int] = {}
    queue = [("ENTRY", 1)]
    while queue:
        computation, times = queue.pop()
        runs[computation] = runs.get(computation, 0) + times
        for instruction in inside[computation]:
            if instruction.opcode in _CALLING:
                inner = 0 if instruction.opcode == "conditional" else times
                inner *= _trips(instruction, inside)
                queue += [(name, inner) for name in called(instruction)]
    for computation, times in runs.items():
        yield from ((instruction, times) for instruction in inside[computation])


def _trips(instruction: Instruction, inside: Mapping[str, Sequence[Instruction]]) -> int:
    """Return how often the computations of an instruction run; 1 if the text lacks it."""
    if instruction.opcode != "while":
        return 1
    if trips := _TRIPS.search(instruction.rest):
        return int(trips[1])
    # Texts for TPUs lack it. A loop of JAX counts from 0 while it is less than a constant.
    condition = _CONDITION.search(instruction.rest)
    parts = inside[condition[1]] if condition else []
    ends = [end for part in parts if part.opcode == "constant" for end in part.operands]
    # With a second condition (`and`) it may end earlier.
    counts = any(part.opcode == "compare" and "direction=LT" in part.rest for part in parts)
    counts &= not any(part.opcode == "and" for part in parts)
    return int(ends[0]) if counts and len(ends) == 1 and ends[0].isdigit() else 1


def called(instruction: Instruction) -> list[str]:
    """Return the names of the computations that an instruction calls."""
    return [
        name.strip().lstrip("%")
        for one, several in _CALLED.findall(instruction.rest)
        for name in (several.split(",") if several else [one])
    ]
