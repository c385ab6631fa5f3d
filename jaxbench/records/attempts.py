"""The attempts of a run: what each of its processes ran on, and what changed between them."""

from collections.abc import Mapping
from typing import Any

from jaxbench.schema import RunDocument

_COMPARED = ("device_kind", "num_devices", "batch_norm_examples", "XLA_FLAGS", "price")


def describe_attempt(
    environment: Mapping[str, Any],
    price: Mapping[str, Any] | None,
    batch_norm_examples: int | None,
) -> dict[str, Any]:
    """Return the software, devices and price of one process, for run.json's `resumes`."""
    versions, git = environment.get("versions") or {}, environment.get("git") or {}
    commit, changed = git.get("commit"), " with changes" if git.get("dirty") else ""
    return {
        "versions": {
            "python": environment.get("python"),
            **{name: versions.get(name) for name in ("jax", "jaxlib", "jaxbench")},
            "commit": commit and f"{commit}{changed}",
        },
        "XLA_FLAGS": environment.get("variables", {}).get("XLA_FLAGS"),
        "distorters": environment.get("distorters"),
        "device_kind": environment.get("device_kind"),
        "num_devices": environment.get("num_devices"),
        "batch_norm_examples": batch_norm_examples,
        "price": price,
    }


def last_attempt(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of the last process of a run."""
    last = describe_attempt(
        document["environment"], document.get("price"), document.get("batch_norm_examples")
    )
    for entry in document.get("resumes") or ():
        last |= {name: entry[name] for name in last if name in entry}
    return last


def changes(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return {name: values in their order} of what changed within a run.

    An attempt counts if a step of it is left: a later one did again what was lost.
    """
    entries = document.get("resumes") or []
    if not entries:
        return {}
    first = last_attempt({**document, "resumes": None})
    if "from" in entries[0]:  # run.json describes the second attempt
        first |= entries[0].get("before") or {}
    attempts = [first, *entries]
    starts = [0, *(entry["step"] for entry in entries)]
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
    attempts = [document.environment, *(document.resumes or ())]
    return [*dict.fromkeys(one for a in attempts for one in a.get("distorters") or ())]


def describe_changes(changed: Mapping[str, list[Any]]) -> str:
    """Return changes as one line."""
    return "; ".join(
        f"{name} {', then '.join('none' if v is None else str(v) for v in values)}"
        for name, values in changed.items()
    )
