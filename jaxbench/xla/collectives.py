"""Count the collectives of a compiled step and their bytes."""

from typing import Any

from jaxbench.xla.hlo import instructions, operand_type, operands, type_bytes

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
)


def count_collectives(hlo: str | None) -> dict[str, dict[str, int]] | None:
    """Count the collectives in a compiled program's text.

    An asynchronous collective, of two instructions or a computation of its own, counts once. The
    body of a loop counts once, however often the loop runs.

    Args:
      hlo: XLA's text of the compiled program, for CPU, GPU or TPU; None where there is none.

    Returns:
      {"all-reduce": {"count", "bytes", "largest_bytes"}, ...}: bytes of the operands on each
      device, in all and of the largest collective. None without a text.
    """
    if hlo is None:
        return None
    types: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for instruction in instructions(hlo):
        types[instruction.name] = instruction.type
        operation = instruction.opcode.removesuffix("-start")
        if operation in COLLECTIVES:
            found.append((operation, instruction.rest))
    counts: dict[str, dict[str, Any]] = {}
    for operation, rest in found:
        operand_bytes = sum(type_bytes(operand_type(operand, types)) for operand in operands(rest))
        count = counts.setdefault(operation, {"count": 0, "bytes": 0, "largest_bytes": 0})
        count["count"] += 1
        count["bytes"] += operand_bytes
        count["largest_bytes"] = max(count["largest_bytes"], operand_bytes)
    return counts
