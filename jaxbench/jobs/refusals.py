"""Read a compiler's refusal of a step: its kind, and the bytes that it names.

For GPUs XLA refuses no step for its memory: it warns on stderr and plans more than there is.
"""

import re
from typing import NamedTuple

from jaxbench.errors import OUT_OF_MEMORY

# `7.48G`: XLA counts in powers of 1024.
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ASKED, _AVAILABLE = (rf"(?P<{name}>[\d.]+[KMGT]?)" for name in ("asked", "available"))
# XLA checks a step several times, in other words each time.
_EXCEEDED = (
    re.compile(rf"\({_ASKED}\) exceeds available (?P<memory>\w+) \({_AVAILABLE}\)"),
    re.compile(rf"memory space (?P<memory>\w+)\. Used {_ASKED} of {_AVAILABLE}"),
    re.compile(rf"memory space (?P<memory>\w+) .*with size {_ASKED} and limit {_AVAILABLE}"),
    re.compile(
        rf"size={_ASKED}\) would exceed memory \(size={_AVAILABLE}\).*space=(?P<memory>\w+)"
    ),
)
_UNSUPPORTED = re.compile(r"\bUNIMPLEMENTED\b|needs more blocks .* than allowed by hardware")


class Refusal(NamedTuple):
    """Why a compiler does not compile a step.

    Attributes:
      kind: `memory` where the device's memory is too small; `on-chip memory` where a TPU's vector
        or scalar memory is, for one of the step's operations; `unsupported` where the compiler
        cannot express an operation or a size.
      asked_bytes, available_bytes: as the compiler states them; None where it does not.
    """

    kind: str
    asked_bytes: int | None
    available_bytes: int | None


def read_refusal(text: str) -> Refusal | None:
    """Return what a compiler's error, on one line, says; None where it is not a refusal."""
    for found in filter(None, (pattern.search(text) for pattern in _EXCEEDED)):
        kind = "memory" if found["memory"].lower() == "hbm" else "on-chip memory"
        return Refusal(kind, _bytes(found["asked"]), _bytes(found["available"]))
    if OUT_OF_MEMORY.search(text):
        return Refusal("memory", None, None)
    return Refusal("unsupported", None, None) if _UNSUPPORTED.search(text) else None


def _bytes(size: str) -> int:
    return int(float(size.rstrip("KMGT")) * _UNITS.get(size[-1], 1))
