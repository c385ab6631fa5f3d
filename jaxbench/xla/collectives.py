"""Count the collectives of a compiled step and their bytes."""

import re

from jaxbench.xla.hlo import instructions, operand_type, operands, type_bytes

# libtpu spreads a collective over several fusions, each of which repeats it.
_CHAIN = re.compile(r'chain_id="(\d+)"')
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")


def count_collectives(hlo: str | None) -> dict[str, dict[str, int]] | None:
    """Count the collectives in a compiled program's text.

    An asynchronous collective, of two or more instructions or computations, counts once. The
    body of a loop counts once, however often the loop runs.

    Args:
      hlo: XLA's text of the compiled program, for CPU, GPU or TPU; None where there is none.

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
        if operation not in COLLECTIVES:
            continue
        if chain := _CHAIN.search(instruction.rest):
            if (operation, chain[1]) in chains:
                continue
            chains.add((operation, chain[1]))
        operand_bytes = sum(
            type_bytes(operand_type(operand, types)) for operand in operands(instruction.rest)
        )
        count = counts.setdefault(operation, {"count": 0, "bytes": 0, "largest_bytes": 0})
        count["count"] += 1
        count["bytes"] += operand_bytes
        count["largest_bytes"] = max(count["largest_bytes"], operand_bytes)
    return counts
