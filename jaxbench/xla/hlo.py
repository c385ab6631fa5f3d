"""What a compiled program's text says of it: its instructions, and what they write to memory.

XLA's text is the same language for CPU, GPU and TPU. What stands in a fused computation is made in
registers; what any other instruction makes is written to memory. Letters in names as everywhere.
"""

import collections
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

# `%name = type opcode(operands), attributes`. The type of a tuple holds spaces; an opcode is the
# first word that a parenthesis follows at once.
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
# `%name (parameters) -> type {` or, in newer texts, `%name {`; ENTRY stands before the program's.
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)(?: \(.*| )\{\s*$")
_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_NAME = re.compile(r"%?([\w.\-]+)\s*$")
_BITS = re.compile(r"[a-z]+(\d+)")
# Computations whose instructions write to memory; those of a fusion or a reduction do not.
_CALLED = re.compile(
    r"\b(?:body|condition|to_apply|true_computation|false_computation|calls)=%?([\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
_CALLING = ("while", "call", "conditional", "async-start")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# What makes nothing new.
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


class Instruction(NamedTuple):
    """One line of a program's text.

    Attributes:
      computation: in which it stands.
      name: its own.
      type: of what it makes, such as `f32[8,4]{1,0}` or a tuple of those in parentheses.
      opcode: such as `fusion`.
      rest: operands, a parenthesis, attributes.
      is_root: whether it is what its computation returns.
    """

    computation: str
    name: str
    type: str
    opcode: str
    rest: str
    is_root: bool


def instructions(hlo: str) -> Iterator[Instruction]:
    """Yields a program's instructions in their order; the entry computation is called `ENTRY`."""
    computation = ""
    for line in _COMMENT.sub("", hlo).splitlines():
        if match := _INSTRUCTION.match(line):
            root, *parts = match.groups()
            yield Instruction(computation, *parts, bool(root))
        elif match := _COMPUTATION.match(line):
            computation = "ENTRY" if match[1] else match[2]


def operands(rest: str) -> list[str]:
    """Splits `a, f32[2,3]{1,0} %b), attributes` at the commas between operands."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(rest):
        if letter in "([{":
            depth += 1
        elif letter in ")]}" and depth:
            depth -= 1
        elif letter in ",)":
            found.append(rest[start:place])
            start = place + 1
            if letter == ")":
                break
    return found


def operand_type(operand: str, types: dict[str, str]) -> str:
    """The type that stands before an operand's name, else the one it was defined with."""
    if "[" in operand:
        return operand
    match = _NAME.search(operand)
    return types.get(match[1], "") if match else ""


class Array(NamedTuple):
    """One array of a type."""

    dtype: str
    size: int
    num_bytes: int


def arrays(type_: str) -> list[Array]:
    """Returns the array that a type is, or all in a tuple; what is no array (a token) has none."""
    found = []
    for dtype, dimensions in _ARRAY.findall(type_):
        bits = _BITS.match(dtype)
        width = int(bits[1]) if bits else 8 * (dtype == "pred")
        size = 1
        for dimension in dimensions.replace("<=", "").split(","):
            size *= int(dimension or 1)
        found.append(Array(dtype, size, -(-size * width // 8)))
    return found


def type_bytes(type_: str) -> int:
    """Bytes of an array or of all in a tuple."""
    return sum(array.num_bytes for array in arrays(type_))


def count_work(hlo: str, activation_sizes: Collection[int]) -> dict[str, Any]:
    """Counts what a compiled step does with arrays of the size of its activations.

    What stands in a loop's body counts once, however often the loop runs.

    Args:
      hlo: XLA's text of the compiled program.
      activation_sizes: how many values the activations have; other arrays (parameters, their
        gradients) are not looked at.

    Returns:
      A record:
        fusions, while_loops: how many there are.
        custom_calls: {target: how many}, calls of libraries such as cuDNN.
        transposes: {"count", "bytes"} of what is written in another order than it was read, by a
          copy, a transpose, or a fusion that is nothing else.
        converts: the same of what is written only to have another type.
        written: {type: {"count", "bytes"}} of activations written to memory, by any instruction.
        moved_bytes: of arrays of any size, read and written by each instruction that writes to
            memory. An array that is only looked up in counts whole.
    """
    all_instructions = list(instructions(hlo))
    types = {instruction.name: instruction.type for instruction in all_instructions}
    inside = collections.defaultdict(list)
    for instruction in all_instructions:
        inside[instruction.computation].append(instruction)
    writing, queue = set(), ["ENTRY"]
    while queue:
        computation = queue.pop()
        if computation in writing:
            continue
        writing.add(computation)
        for instruction in inside[computation]:
            if instruction.opcode in _CALLING:
                queue += _called(instruction.rest)
    record: dict[str, Any] = {
        "fusions": 0,
        "while_loops": 0,
        "custom_calls": {},
        "transposes": {"count": 0, "bytes": 0},
        "converts": {"count": 0, "bytes": 0},
        "written": {},
        "moved_bytes": 0,
    }
    for instruction in all_instructions:
        if instruction.computation not in writing:
            continue
        opcode = instruction.opcode
        record["fusions"] += opcode == "fusion"
        record["while_loops"] += opcode == "while"
        if opcode == "custom-call":
            target = _TARGET.search(instruction.rest)
            name = target[1] if target else "?"
            record["custom_calls"][name] = record["custom_calls"].get(name, 0) + 1
        if opcode in _NAMES_ONLY:
            continue
        record["moved_bytes"] += type_bytes(instruction.type) + sum(
            type_bytes(operand_type(operand, types)) for operand in operands(instruction.rest)
        )
        parts = {opcode}
        if opcode == "fusion":
            parts = {
                part.opcode for called in _called(instruction.rest) for part in inside[called]
            } - set(_NAMES_ONLY)
        for array in arrays(instruction.type):
            if array.size not in activation_sizes:
                continue
            _add(record["written"].setdefault(array.dtype, {"count": 0, "bytes": 0}), array)
            if parts and parts <= {"copy", "transpose", "convert", "reshape"}:
                for name, which in (("transposes", {"copy", "transpose"}), ("converts", "convert")):
                    if parts & {*which} if name == "transposes" else which in parts:
                        _add(record[name], array)
    return record


def _called(rest: str) -> list[str]:
    return [
        name.strip().lstrip("%")
        for one, several in _CALLED.findall(rest)
        for name in (several.split(",") if several else [one])
    ]


def _add(count: dict[str, int], array: Array) -> None:
    count["count"] += 1
    count["bytes"] += array.num_bytes
