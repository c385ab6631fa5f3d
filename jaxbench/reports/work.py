"""Which runs did the same: settings, what of them must be equal, and what tells lines apart."""

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxbench import hardware
from jaxbench.files import read_table
from jaxbench.metrics import UNKNOWN
from jaxbench.records.reader import flat
from jaxbench.reports.blocks import MOST_SERIES
from jaxbench.reports.runs import ReportedRun

Item = TypeVar("Item")
# What repeats differ in, what has a word of its own, and what makes points of one line.
_NOT_SETTINGS = {"batch_size", "seed", "name", "num_devices", "epochs", "max_steps"} | {
    "precision",
    "data.feed",
}
# What makes the work of one step or epoch another one, beside all of the network's fields ...
_WORK = ("experiment", "mode", "task", "network", "precision", "batch_size", "replicas")
# ... and those of the data that do not only say how it is read.
_READING = {"feed", "num_threads", "num_workers", "prefetch_batches", "path", "download"}
_READING |= {"cache", "cache_dir"}
# Flags that nobody chose: they are in no label.
_DEFAULTS = "default XLA flags"
# Where and when a step was compiled, which says nothing of the machine that it was compiled for.
_ELSEWHERE = ("host", "cpu", "driver", "commit", "device_kind", "num_devices", "network", "mode")
# What makes another chart: the network, the examples, the feed, and what was done.
_CHART = {"experiment", "network", "feed", "stage", "data.image_shape", "data.num_classes"}
_CHART |= {"data.sequence_length"}
# What a line's label says without its name, and how many others it says with theirs.
_UNNAMED = ("precision", "batch_size", "num_devices", "device_kind", "stage", "feed")
_UNNAMED += ("experiment", "network")
# What is named last.
_ENVIRONMENT = {"cpu", "host", "jax", "jaxlib", "flax", "driver", "commit"}
_MOST_NAMED = 3


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> dict[Any, list[Item]]:
    """Return items by their key, in the order of the first of each."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def in_parts(lines: Sequence[Item]) -> list[Sequence[Item]]:
    """Return lines in equal parts, as few as one chart each has room for."""
    parts = -(-len(lines) // MOST_SERIES)
    size = -(-len(lines) // max(1, parts))
    return [lines[start : start + size] for start in range(0, len(lines), max(1, size))]


def setting_of(run: ReportedRun) -> dict[str, Any]:
    """Return all that must be equal for two values to be on one line, except the batch size.

    Repeats differ in seed and name, which are left out.
    """
    names = ("experiment", "mode", "network", "feed", "precision", "num_devices", "device_kind")
    environment, git = run.environment, run.environment.get("git") or {}
    # Nobody can look up what was not committed.
    changed = "+changes" if git.get("dirty") else ""
    flags = (environment.get("variables", {}).get("XLA_FLAGS") or "").split()
    user_flags = [flag for flag in flags if flag not in _default_flags()]
    return {
        **{name: getattr(run, name) for name in names},
        "cpu": environment.get("cpu"),
        **{name: value for name, value in flat(run.config) if name not in _NOT_SETTINGS},
        "host": environment.get("hostname"),
        **{n: environment.get("versions", {}).get(n) for n in ("jax", "jaxlib", "flax")},
        "driver": environment.get("driver"),
        "commit": git.get("commit", "unknown")[:9] + changed,
        "XLA_FLAGS": " ".join(user_flags) or None,
        "distorters": "; ".join(run.distorters) or None,
        _DEFAULTS: sorted({*flags} - {*user_flags}),
    }


@functools.cache
def _default_flags() -> list[str]:
    """Return the XLA flags that jaxbench sets itself."""
    return [row["flag"] for row in read_table(hardware.__file__, "backend_flags.csv")]


def training_setting(run: ReportedRun) -> dict[str, Any]:
    """Return all in which trainings that differ only in their seed are equal.

    The schedule follows from the length, the step from the batch.
    """
    lengths = {name: run.config.get(name) for name in ("epochs", "max_steps")}
    sizes = {"batch_size": run.batch_size, **lengths, "train_examples": run.train_examples}
    return setting_of(run) | sizes


def is_work(name: str) -> bool:
    """Return whether runs that differ in this did not do the same work."""
    room, _, field = name.partition(".")
    return name in _WORK or room == "model" or (room == "data" and field not in _READING)


def is_other_work(name: str) -> bool:
    """Return whether the rates of runs that differ in this cannot be ranked.

    Precision and batch size are settings, of which one may be faster than another.
    """
    return is_work(name) and name not in ("precision", "batch_size")


def is_step(name: str) -> bool:
    """Return whether a compiled step and a measured one that differ in this are not the same."""
    return is_work(name) and name not in ("mode", "network", "batch_size")


def is_compiled(name: str) -> bool:
    """Return whether steps compiled for one machine that differ in this are two settings."""
    return name not in _ELSEWHERE


def setting_key(setting: Mapping[str, Any], part: Callable[[str], bool] | None = None) -> tuple:
    """Return what is equal for settings that are the same, or whose `part` is."""
    # A command line gives whole numbers as 4.0 too.
    return tuple(
        (name, repr(float(value) if type(value) is int and abs(value) < 2**53 else value))
        for name, value in setting.items()
        if part is None or part(name)
    )


def training_key(run: ReportedRun) -> tuple:
    """Return the `setting_key` of what a training run is trained with."""
    return setting_key(training_setting(run))


def work_of(run: ReportedRun, setting: Mapping[str, Any] | None = None) -> tuple:
    """Return what runs and rates must have in common to be in one chart, whatever they ran on."""
    setting = setting or setting_of(run)
    return run.data_of(setting["feed"]), *setting_key(setting, _CHART.__contains__)


def labelled(
    items: Iterable[Item],
    setting: Callable[[Item], Mapping[str, Any]],
    always: Sequence[str] = ("precision",),
) -> list[tuple[str, Item]]:
    """Return items with labels of all in which their settings differ, precision first.

    No two settings have one label, however many fields that takes.

    Args:
      always: fields that are named in any case. Nobody should have to ask for the precision.
    """
    items = list(items)
    settings = [setting(item) for item in items]
    names = differing_names(settings)
    first = [name for name in _UNNAMED if name in names or name in always]
    others = [name for name in names if name not in _UNNAMED]
    for most in (_MOST_NAMED, len(others)):
        labels = [
            ", ".join(
                filter(
                    None,
                    [
                        *(_shown(values.get(name), name) for name in first),
                        name_settings(values, others, most),
                    ],
                )
            )
            for values in settings
        ]
        if len({*labels}) == len({setting_key(values) for values in settings}):
            break
    return list(zip(labels, items, strict=True))


def thinned(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return about `most` of the items at equal distances, the last among them."""
    return items[::-1][:: max(1, -(-len(items) // most))][::-1]


def differing_names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which settings differ, the experiment's own first."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    names.pop(_DEFAULTS, None)
    differing = [n for n in names if len({repr(setting.get(n)) for setting in settings}) > 1]
    return sorted(differing, key=_ENVIRONMENT.__contains__)


def name_settings(setting: Mapping[str, Any], names: Sequence[str], most: int = _MOST_NAMED) -> str:
    """Return the first of the named fields that have a value, and how many more there are."""
    known = [name for name in names if setting.get(name) is not None]
    texts = [f"{name}={_shown(setting[name])}" for name in known[:most]]
    if len(known) > most:
        texts.append(f"and {len(known) - most} more settings")
    return ", ".join(texts)


def _shown(value: Any, name: str = "") -> str:
    if value is None:
        return UNKNOWN
    if name == "num_devices":
        return f"{value:.0f} device{'s' if value != 1 else ''}"
    if name == "batch_size":
        return f"batch {value:,.0f}"
    # 10.0 epochs are the 10 of another run.
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
