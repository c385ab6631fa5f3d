"""Read XLA's description of a GPU from a file of one's own: GpuTargetConfigProto as text."""

import pathlib
import re

from jaxbench.errors import BadInput
from jaxbench.files import read_text

# What ends the name of a file with a description, in XLA's repository too.
SUFFIX = ".txtpb"
_MOST_BYTES = 2**20
# Without threads_per_warp or block_dim_limit_x XLA divides by zero. Without clock_rate_ghz or the
# second row it plans other kernels and other memory, and does not say so.
_WHOLE_NUMBERS = (
    *("core_count", "device_memory_size", "memory_bandwidth", "l2_cache_size"),
    *("fpus_per_core", "threads_per_core_limit", "shared_memory_per_block"),
    *("threads_per_warp", "block_dim_limit_x"),
)
_NEEDED = (
    *("platform_name", "device_description_str", "cuda_compute_capability", "clock_rate_ghz"),
    *_WHOLE_NUMBERS,
)


def read_description(path: str) -> dict[str, str]:
    """Return a GPU's facts as a row of `gpus.csv` has them, and the whole text as `description`.

    Its links are unknown. Fields that XLA does not know are refused by XLA: see `create_devices`.

    Raises:
      BadInput: the file cannot be read, or lacks a fact; the message begins with its name.
    """
    try:
        text = read_text(pathlib.Path(path), _MOST_BYTES)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is no text; it must be XLA's GpuTargetConfigProto") from error
    values = {name: _value(name, text) for name in _NEEDED}
    if missing := [name for name, value in values.items() if value is None]:
        raise BadInput(f"{path}: lacks {', '.join(missing)} of XLA's GpuTargetConfigProto")
    if values["platform_name"] != "CUDA":
        raise BadInput(f"{path}: platform_name is {values['platform_name']!r}, must be 'CUDA'")
    for name in _WHOLE_NUMBERS:
        if not values[name].isdigit() or not int(values[name]):
            raise BadInput(f"{path}: {name} is {values[name]!r}, must be a whole number above 0")
    return {
        "name": path,
        "kind": values["device_description_str"],
        "memory_mib": str(int(values["device_memory_size"]) / 2**20),
        "l2_mib": str(int(values["l2_cache_size"]) / 2**20),
        "link": "unknown",
        "link_gb_per_s": "",
        "description": text,
    }


def _value(field: str, text: str) -> str | None:
    """Return a field's value, or the brace that opens it; None where it is absent."""
    found = re.search(rf"""^[^#"]*\b{field}\b\s*:?\s*("[^"]*"|[^\s"]+)""", text, re.MULTILINE)
    return found[1].strip('"') if found else None
