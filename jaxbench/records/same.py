"""What is the same: settings of runs, their work, their data and their machines.

There is a key or a predicate for each purpose, and its docstring names the purpose. What is equal
has equal keys. Predicates `is_...` take the name of a field of `setting_of`: each says which fields
count for its purpose.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxbench import hardware
from jaxbench.config.data import PUBLIC_SETS
from jaxbench.files import read_table
from jaxbench.hardware.peak_table import without_maker
from jaxbench.metrics import UNKNOWN
from jaxbench.records.attempts import LIBRARIES, distorters_of
from jaxbench.records.reader import flat
from jaxbench.schema import Environment, RunDocument
from jaxbench.xla.variables import of_gpu_libraries

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
# What the boards of GPUs are set to.
BOARD_SETTINGS = ("power_limit_w", "max_sm_clock_mhz", "max_memory_clock_mhz", "ecc", "mig")
# Flags that nobody chose: they are in no label.
DEFAULT_FLAGS = "default XLA flags"
_ELSEWHERE = ("host", "cpu", "driver", "commit", "device_kind", "num_devices", "network", "mode")
_CHART = {"experiment", "network", "feed", "stage", "data.image_shape", "data.num_classes"}
_CHART |= {"data.sequence_length"}


def setting_of(document: RunDocument) -> dict[str, Any]:
    """Return all that must be equal for two rates to be repeats, or on one line of a chart.

    The seed and the name are left out, because repeats differ in them, and the batch size, because
    a line is drawn over it. So is the length: a rate does not depend on it.
    """
    config, environment, data = document.config, document.environment, document.data or {}
    versions, git = environment.get("versions", {}), environment.get("git") or {}
    arithmetic, precision = environment.get("matmul_precision"), config.get("precision") or UNKNOWN
    # Nobody can look up what was not committed.
    changed = "+changes" if git.get("dirty") else ""
    variables = environment.get("variables", {})
    flags = (variables.get("XLA_FLAGS") or "").split()
    user_flags = [flag for flag in flags if flag not in _default_flags()]
    return {
        "experiment": document.experiment,
        "mode": document.mode,
        "network": _network(document),
        "feed": data.get("feed") or config.get("data", {}).get("feed") or UNKNOWN,
        # What fp32 stands for, if the run asked for something.
        "precision": f"{precision} ({arithmetic})" if arithmetic else precision,
        "num_devices": environment.get("num_devices"),
        "device_kind": environment.get("device_kind") or UNKNOWN,
        "cpu": environment.get("cpu"),
        **{name: value for name, value in flat(config) if name not in _NOT_SETTINGS},
        # What ran, whether it was asked for or chosen.
        **({"model.attention": document.attention} if document.attention else {}),
        "host": environment.get("hostname"),
        **{name: versions.get(name) for name in ("jax", "jaxlib", "flax", *LIBRARIES)},
        "driver": environment.get("driver"),
        **board_settings(environment),
        **of_gpu_libraries(variables),
        "commit": git.get("commit", "unknown")[:9] + changed,
        "XLA_FLAGS": " ".join(user_flags) or None,
        "distorters": "; ".join(distorters_of(document)) or None,
        DEFAULT_FLAGS: sorted({*flags} - {*user_flags}),
    }


def board_settings(environment: Environment) -> dict[str, Any]:
    """Return what the boards of GPUs are set to; of boards that differ all values, as text."""
    boards = environment.get("boards", ())
    values_of = {n: [*dict.fromkeys(one.get(n) for one in boards)] for n in BOARD_SETTINGS}
    return {
        name: ", ".join(map(str, values)) if values[1:] else next(iter(values), None)
        for name, values in values_of.items()
    }


def _network(document: RunDocument) -> str:
    """Return the network and its size, as one line."""
    name = document.model or ("convolution" if document.mode == "conv2d" else "?")
    parameters = document.parameters
    if parameters is None:
        return name
    size = f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e3:.0f} k"
    return f"{name}, {size} parameters"


@functools.cache
def _default_flags() -> list[str]:
    """Return the XLA flags that jaxbench sets itself."""
    return [row["flag"] for row in read_table(hardware.__file__, "backend_flags.csv")]


def training_setting(document: RunDocument) -> dict[str, Any]:
    """Return all that must be equal for two trainings to be seeds of one, or repeats.

    The batch size and the length count, unlike for a rate: the schedule follows from the length,
    the step from the batch.
    """
    config, data = document.config, document.data or {}
    sizes = {name: config.get(name) for name in ("batch_size", "epochs", "max_steps")}
    return setting_of(document) | sizes | {"train_examples": data.get("train_examples")}


def is_work(name: str) -> bool:
    """Return whether a field is of the work, for a baseline: only equal work has to reach its rate.

    What the work is done with is left out, because that is what is judged: machine, software,
    flags, the kernel of attention, and how the data is read.
    """
    group, _, field = name.partition(".")
    left_out = {"model": {"attention"}, "data": _READING}
    return name in _WORK or (group in left_out and field not in left_out[group])


def is_other_work(name: str) -> bool:
    """Return whether runs that differ in a field get no verdict on which is faster.

    Precision and batch size are left out: they are settings, of which one may be the faster.
    """
    return is_work(name) and name not in ("precision", "batch_size")


def is_step(name: str) -> bool:
    """Return whether a field is of a training step that was compiled here and measured elsewhere.

    The mode is left out, because no mode both compiles for a machine and measures on it, and the
    network's size, because it follows from the network's fields; of other batches the best
    rate still tells what to expect.
    """
    return is_work(name) and name not in ("mode", "network", "batch_size")


def is_compiled(name: str) -> bool:
    """Return whether a field tells apart two steps that were compiled for one machine.

    Where and when it was compiled is left out: that says nothing of the machine it is for.
    """
    return name not in _ELSEWHERE


def setting_key(setting: Mapping[str, Any], part: Callable[[str], bool] | None = None) -> tuple:
    """Return what is equal for settings that are the same, or whose `part` is.

    A field that another version does not record is one without a value.
    """
    return tuple(
        (name, _canonical(value))
        for name, value in sorted(setting.items())
        if value is not None and (part is None or part(name))
    )


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which settings are not the same, in their order."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [n for n in names if len({_canonical(setting.get(n)) for setting in settings}) > 1]


def _canonical(value: Any) -> str:
    # A command line gives whole numbers as 4.0 too.
    return repr(float(value) if type(value) is int and abs(value) < 2**53 else value)


def chart_key(data: str, setting: Mapping[str, Any]) -> tuple:
    """Return what runs and rates must have in common to be in one chart, whatever they ran on.

    All else is left out, because it makes the lines of the chart: settings that are compared.
    `data` says in words what the steps were trained on.
    """
    return data, *setting_key(setting, _CHART.__contains__)


def is_synthetic(setting: Mapping[str, Any]) -> bool:
    """Return whether a setting's images come from no data set, so that nobody learns from them."""
    return "synthetic" in (setting.get("feed"), setting.get("data.source"))


def is_published_work(setting: Mapping[str, Any], examples: int | None, dataset: str) -> bool:
    """Return whether published results of a run's network on a data set are of the run's work.

    `examples` is the size of its training split. What a record does not say is not held against
    it. Of synthetic images only their shape counts, and the number of classes. Precision, batch and
    machine are columns of such a table, and are left out.
    """
    count, _, _, name = PUBLIC_SETS[dataset]
    named = setting.get("data.name") if setting.get("data.source") == "tfds" else None
    same_data = (named or name) == name and examples in (None, count)
    return same_images(setting, dataset) and (is_synthetic(setting) or same_data)


def same_images(setting: Mapping[str, Any], dataset: str) -> bool:
    """Return whether images have the shape and the number of classes of a public data set.

    For the rate of a step, which does not depend on what the images show.
    """
    _, shape, classes, _ = PUBLIC_SETS[dataset]
    data_shape, data_classes = setting.get("data.image_shape"), setting.get("data.num_classes")
    return data_shape in (None, list(shape)) and data_classes in (None, classes)


def others_of(place: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return what trials of a sweep share that differ only in the named fields of its grid."""
    return {name: value for name, value in place.items() if name not in names}


def device_key(environment: Environment) -> tuple:
    """Return what is equal for devices of one kind.

    CPU devices are made of their processor: its name, its cores, and how many devices share it.
    """
    kind = without_maker(environment.get("device_kind") or UNKNOWN)
    if kind != "cpu":
        return (kind,)
    return kind, *(environment.get(name) for name in ("cpu", "cpu_cores", "num_devices"))


def machine_key(environment: Environment) -> tuple:
    """Return what is equal for as many devices of one kind, whichever host they are in.

    To set what was measured beside what is predicted or published of a machine.
    """
    return *device_key(environment), environment.get("num_devices")


def fleet_key(environment: Environment, preset: str) -> tuple:
    """Return what cards share that tell what to expect of one another.

    The number of devices is left out: cards that differ in it are compared by device, see
    `differ_in_size`.
    """
    return *device_key(environment), preset


def differ_in_size(environments: Iterable[Environment]) -> bool:
    """Return whether machines have different numbers of devices, so that only devices compare."""
    return len({environment.get("num_devices") for environment in environments}) > 1


def host_key(environment: Environment) -> tuple:
    """Return what is equal for the devices of one host: a card's peaks are those of its runs.

    The number of devices is left out: a peak is of one device.
    """
    kind = environment.get("device_kind") or UNKNOWN
    return environment.get("hostname"), without_maker(kind)
