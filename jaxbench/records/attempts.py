"""The attempts of a run: what each of its processes ran on, and what changed between them."""

from collections.abc import Mapping
from typing import Any

_OWN = ("device_kind", "num_devices", "batch_norm_examples", "XLA_FLAGS", "price")


def describe_attempt(
    environment: Mapping[str, Any],
    price: Mapping[str, Any] | None,
    batch_norm_examples: int | None,
) -> dict[str, Any]:
    """Return the software, devices and price of one process, for run.json's `resumes`."""
    versions, git = _mapping(environment.get("versions")), _mapping(environment.get("git"))
    commit, changed = git.get("commit"), " with changes" if git.get("dirty") else ""
    return {
        "versions": {
            "python": environment.get("python"),
            **{name: versions.get(name) for name in ("jax", "jaxlib", "jaxbench")},
            "commit": commit and f"{commit}{changed}",
        },
        "XLA_FLAGS": _mapping(environment.get("variables")).get("XLA_FLAGS"),
        "device_kind": environment.get("device_kind"),
        "num_devices": environment.get("num_devices"),
        "batch_norm_examples": batch_norm_examples,
        "price": price,
    }


def last_attempt(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of the last process of a run, as far as its run.json tells."""
    own = describe_attempt(
        *(_mapping(document.get("environment")), document.get("price")),
        document.get("batch_norm_examples"),
    )
    for entry in _entries(document):
        own |= {name: entry[name] for name in own if name in entry}
    return own


def changes(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return {name: values in their order} of what changed within a run.

    An attempt counts if a step of it is left: a later one did again what was lost.
    """
    entries = _entries(document)
    if not entries:
        return {}
    own = last_attempt({**document, "resumes": None})
    if "from" in entries[0]:  # run.json describes the second attempt
        own |= _mapping(entries[0].get("before"))
    attempts = [own, *entries]
    starts = [0, *(_step(entry) for entry in entries)]
    found: dict[str, list[Any]] = {}
    for place, attempt in enumerate(attempts):
        if starts[place] >= min(starts[place + 1 :], default=float("inf")):
            continue
        settings = {name: attempt[name] for name in _OWN if name in attempt}
        price = _mapping(settings.get("price"))
        settings |= {"price": price.get("usd_per_hour")} if "price" in settings else {}
        for name, value in {**settings, **_mapping(attempt.get("versions"))}.items():
            values = found.setdefault(name, [])
            if not values or values[-1] != value:
                values.append(value)
    return {name: values for name, values in found.items() if len(values) > 1}


def describe_changes(changed: Mapping[str, list[Any]]) -> str:
    """Return changes as one line."""
    return "; ".join(
        f"{name} {', then '.join('none' if v is None else str(v) for v in values)}"
        for name, values in changed.items()
    )


def _entries(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = document.get("resumes")
    return [_mapping(entry) for entry in found] if isinstance(found, list) else []


def _step(entry: Mapping[str, Any]) -> int:
    step = entry.get("step")
    return step if isinstance(step, int) else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
