"""The attempts of a run: what each of its processes ran on, and what changed between them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from jaxbench.schema import RunDocument

# Whose versions a GPU's rates depend on, see hardware/nvidia_libraries.py.
LIBRARIES = ("CUDA", "cuDNN", "cuBLAS", "NCCL")
_COMPARED = ("device_kind", "num_devices", "batch_norm_examples", "XLA_FLAGS", "price")


def describe_attempt(
    environment: Mapping[str, Any],
    price: Mapping[str, Any] | None,
    batch_norm_examples: int | None,
) -> dict[str, Any]:
    """Return the software, devices and price of one process, for run.json's `attempts`."""
    versions, git = environment.get("versions") or {}, environment.get("git") or {}
    commit, changed = git.get("commit"), " with changes" if git.get("dirty") else ""
    return {
        "versions": {
            "python": environment.get("python"),
            **{name: versions.get(name) for name in ("jax", "jaxlib", "jaxbench")},
            **{name: versions[name] for name in LIBRARIES if name in versions},
            "commit": commit and f"{commit}{changed}",
        },
        "XLA_FLAGS": environment.get("variables", {}).get("XLA_FLAGS"),
        "distorters": environment.get("distorters"),
        "device_kind": environment.get("device_kind"),
        "num_devices": environment.get("num_devices"),
        "batch_norm_examples": batch_norm_examples,
        "price": price,
    }


def attempts_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a run's processes, each with what it ran on."""
    first, *later = document.get("attempts") or [{}]
    settings = (document.get("price"), document.get("batch_norm_examples"))
    return [{**describe_attempt(document["environment"], *settings), **first}, *later]


def changes(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return {name: values in their order} of what changed within a run.

    An attempt counts if a step of it is left: a later one did again what was lost.
    """
    attempts = attempts_of(document)
    starts = [attempt.get("step", 0) for attempt in attempts]
    changed: dict[str, list[Any]] = {}
    for position, attempt in enumerate(attempts):
        if starts[position] >= min(starts[position + 1 :], default=float("inf")):
            continue
        settings = {name: attempt[name] for name in _COMPARED if name in attempt}
        price = settings.get("price") or {}
        settings |= {"price": price.get("usd_per_hour")} if "price" in settings else {}
        for name, value in {**settings, **(attempt.get("versions") or {})}.items():
            values = changed.setdefault(name, [])
            if not values or values[-1] != value:
                values.append(value)
    return {name: values for name, values in changed.items() if len(values) > 1}


def distorters_of(document: RunDocument) -> list[str]:
    """Return the settings for debugging of all processes, see hardware/distorters.py."""
    attempts = attempts_of(msgspec.structs.asdict(document))
    return [*dict.fromkeys(one for a in attempts for one in a.get("distorters") or ())]


def describe_changes(changed: Mapping[str, list[Any]]) -> str:
    """Return changes as one line."""
    return "; ".join(
        f"{name} {', then '.join('none' if v is None else str(v) for v in values)}"
        for name, values in changed.items()
    )
