"""Which collectives a compiled step holds, and how many bytes each of them takes in."""

import re
from typing import Any

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
)

# `%name = type opcode(operands), attributes`. The type of a tuple holds spaces; an opcode is the
# first word that a parenthesis follows at once.
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_NAME = re.compile(r"%?([\w.\-]+)\s*$")
_BITS = re.compile(r"[a-z]+(\d+)")


def count_collectives(hlo: str | None) -> dict[str, dict[str, int]] | None:
    """Counts the collectives in a compiled program's text.

    Asynchronous ones, two instructions or a computation of their own, count once. What stands in a
    loop's body counts once, however often the loop runs.

    Args:
      hlo: XLA's text of the compiled program, for CPU, GPU or TPU; None where there is none.

    Returns:
      {"all-reduce": {"count", "bytes", "largest_bytes"}, ...} of those that are there: bytes of
      their operands on each device, all together and of the largest one. None without a text.
    """
    if hlo is None:
        return None
    types: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for match in _INSTRUCTION.finditer(_COMMENT.sub("", hlo)):
        name, shape, opcode, rest = match.groups()
        types[name] = shape
        operation = opcode.removesuffix("-start")
        if operation in COLLECTIVES:
            found.append((operation, rest))
    counts: dict[str, dict[str, Any]] = {}
    for operation, rest in found:
        operand_bytes = sum(_type_bytes(_type_of(operand, types)) for operand in _operands(rest))
        count = counts.setdefault(operation, {"count": 0, "bytes": 0, "largest_bytes": 0})
        count["count"] += 1
        count["bytes"] += operand_bytes
        count["largest_bytes"] = max(count["largest_bytes"], operand_bytes)
    return counts


def _operands(rest: str) -> list[str]:
    """Splits `a, f32[2,3]{1,0} %b), attributes` at the commas between operands."""
    operands, depth, start = [], 0, 0
    for place, letter in enumerate(rest):
        if letter in "([{":
            depth += 1
        elif letter in ")]}" and depth:
            depth -= 1
        elif letter in ",)":
            operands.append(rest[start:place])
            start = place + 1
            if letter == ")":
                break
    return operands


def _type_of(operand: str, types: dict[str, str]) -> str:
    """The type that stands before an operand's name, else the one it was defined with."""
    if "[" in operand:
        return operand
    match = _NAME.search(operand)
    return types.get(match[1], "") if match else ""


def _type_bytes(shape: str) -> int:
    """Bytes of an array or of all in a tuple; what is no array (a token) has none."""
    total = 0
    for dtype, dimensions in _ARRAY.findall(shape):
        bits = _BITS.match(dtype)
        size = int(bits[1]) if bits else 8 * (dtype == "pred")
        for dimension in dimensions.replace("<=", "").split(","):
            size *= int(dimension or 1)
        total += -(-size // 8)
    return total
