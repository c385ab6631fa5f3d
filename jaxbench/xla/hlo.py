"""Parse XLA's text of a compiled program, which is one language for CPU, GPU and TPU."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# `%name = type opcode(operands), attributes`. The type of a tuple holds spaces; an opcode is the
# first word that a parenthesis follows at once.
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
# `%name (parameters) -> type {` or, in newer texts, `%name {`; ENTRY stands before the program's.
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)(?: \(.*| )\{\s*$")
_COMMENT = re.compile(r"/\*.*?\*/")
# An array's type, dimensions and, where it is told, layout; S(1) in it is memory on the chip.
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%?([\w.\-]+)\s*$")
_BITS = re.compile(r"[a-z]+(\d+)")


class Instruction(NamedTuple):
    """One line of a program's text."""

    computation: str  # that holds the instruction
    name: str  # of the result
    type: str  # of the result, such as `f32[8,4]{1,0}` or a tuple of types in parentheses
    opcode: str  # such as `fusion`
    rest: str  # the operands, a closing parenthesis, the attributes
    is_root: bool = False  # whether it is the result of its computation


def instructions(hlo: str) -> Iterator[Instruction]:
    """Yield a program's instructions in order; the entry computation is named `ENTRY`."""
    computation = ""
    for line in _COMMENT.sub("", hlo).splitlines():
        if match := _INSTRUCTION.match(line):
            root, *parts = match.groups()
            yield Instruction(computation, *parts, is_root=bool(root))
        elif match := _COMPUTATION.match(line):
            computation = "ENTRY" if match[1] else match[2]


def operands(rest: str) -> list[str]:
    """Split `a, f32[2,3]{1,0} %b), attributes` at the commas between operands."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(rest):
        if letter in "([{":
            depth += 1
        elif letter in ")]}" and depth:
            depth -= 1
        elif letter in ",)":
            if rest[start:place].strip():  # else there is none
                found.append(rest[start:place])
            start = place + 1
            if letter == ")":
                break
    return found


def operand_type(operand: str, types: dict[str, str]) -> str:
    """Return the type before an operand's name, else the type of the instruction of that name."""
    return operand if "[" in operand else types.get(operand_name(operand), "")


def operand_name(operand: str) -> str:
    """Return the name of the instruction that an operand is the result of."""
    match = _NAME.search(operand)
    return match[1] if match else ""


class Array(NamedTuple):
    """An array type: its element type, its number of elements, its size in bytes."""

    dtype: str
    size: int
    num_bytes: int
    on_chip: bool = False  # in a TPU's vector memory, which the compiler manages


def arrays(type_: str) -> list[Array]:
    """Return the array of an array type, all arrays of a tuple type, none of a token."""
    found = []
    for dtype, dimensions, layout in _ARRAY.findall(type_):
        bits = _BITS.match(dtype)
        width = int(bits[1]) if bits else 8 * (dtype == "pred")
        size = math.prod(int(n or 1) for n in dimensions.replace("<=", "").split(","))
        found.append(Array(dtype, size, -(-size * width // 8), "S(1)" in layout))
    return found


def type_bytes(type_: str) -> int:
    """Return the size in bytes of a type, the sum for a tuple."""
    return sum(array.num_bytes for array in arrays(type_))
