"""A run directory as the report sees it, whatever state it is in."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.pricing import Price, lost_s, recorded_price
from jaxbench.errors import BadInput
from jaxbench.records.attempts import changes, describe_changes
from jaxbench.records.reader import flat, load_run, missing_records, read_document
from jaxbench.records.run_lock import is_running
from jaxbench.records.schema import training
from jaxbench.reports.fields import find, mapping, number, text
from jaxbench.reports.formats import UNKNOWN
from jaxbench.terminal import printable

# What a trained network is judged by: {field of an epoch's record: its name}.
SCORES = {f"eval_{name}": title for name, title in training.SCORES.items()}
# What repeats differ in, what has a word of its own, and what makes points of one line.
_NOT_SETTINGS = {"batch_size", "seed", "name", "num_devices", "epochs", "max_steps"} | {
    "precision",
    "data.feed",
}
# Of networks, so much of the parameters may lie elsewhere (another number of classes).
_SAME_SIZE = 0.03
# The networks of analysis/published: {name: (class, parameters in millions)}.
NETWORKS = {
    "cnn10": ("Cnn10", 1.9),
    "wrn28_10": ("WideResNet", 36.5),
    "resnet50": ("ResNet", 25.6),
    "vgg_cifar10": ("Vgg", 15.0),
    "mnist_cnn": ("MnistCnn", 1.2),
}


def _field(read: Callable[..., Any], *path: str, default: str | None = None) -> Any:
    return property(lambda run: default if (own := read(run.document, *path)) is None else own)


@dataclasses.dataclass(eq=False)
class ReportedRun:
    """A run.

    Attributes:
      id: R1, R2 ...: what figures are marked with. None for a trial of a sweep whose process left
        no run directory: it was out of memory while it began, say.
      name: its path below the folder that was given.
      document, records: as in `records.reader.RunRecords`; empty where they cannot be read.
      status: as in run.json, or `corrupt`, or `killed`: its process is gone.
      reason: why it is not `done`.
      place: a sweep's own words for the trial.
    """

    id: str | None
    name: str
    path: pathlib.Path
    document: dict[str, Any]
    records: Sequence[dict[str, Any]] = ()
    status: str = "corrupt"
    reason: str | None = None
    place: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    summary = _field(mapping, "summary")
    config = _field(mapping, "config")
    environment = _field(mapping, "environment")
    mode = property(lambda run: text(run.document, "mode"))
    # The machine that it was compiled for, which is not here; None for a run that measured.
    target = property(lambda run: text(run.document, "target") or text(run.place, "target"))
    experiment = _field(text, "experiment", default="unnamed")
    given_feed = _field(text, "config", "data", "feed", default=UNKNOWN)
    feed = property(lambda run: text(run.document, "data", "feed") or run.given_feed)
    batch_size = _field(number, "config", "batch_size")
    seed = _field(number, "config", "seed")
    train_examples = _field(number, "data", "train_examples")
    num_devices = _field(number, "environment", "num_devices")
    device_kind = _field(text, "environment", "device_kind", default=UNKNOWN)
    score = property(lambda run: number(run.summary, run.score_field or ""))
    # What CPU devices are made of; None for others.
    processor = property(lambda r: text(r.environment, "cpu") if r.device_kind == "cpu" else None)
    hardware = property(lambda run: run.devices(run.num_devices))
    # Within the run, when it was resumed: no rate is one of its first devices.
    changed_devices = property(
        lambda run: not {"num_devices", "device_kind"}.isdisjoint(changes(run.document))
    )
    date = property(lambda run: (text(run.document, "started_at") or "no date")[:10])
    framework = property(lambda run: f"jax {text(run.environment, 'versions', 'jax') or '?'}")
    # What runs must have in common to be in one chart.
    work = property(lambda run: (run.experiment, run.network, run.data, run.feed))

    def paid_s(self, elapsed_s: float) -> float:
        """Return what is paid for up to a moment of the run's clock: lost work, too."""
        return elapsed_s + lost_s(self.document.get("resumes"), elapsed_s)

    def check_measured(self) -> None:
        """Raise BadInput for a run that was compiled for a machine that is not here."""
        if self.target:
            raise BadInput(
                f"{self.name}: was compiled for {self.target}, and nothing was measured; "
                "jaxbench report shows what the compiler said"
            )

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("kind") == kind]

    @property
    def compile_cache(self) -> str | None:
        """How the programs came: `hit` only if all were fetched from the compilation cache."""
        if outcome := text(self.summary, "compile_cache"):
            return outcome
        outcomes = {text(record, "compile_cache") for record in self.of_kind("compile")}
        return next((one for one in ("miss", "off", "hit") if one in outcomes), None)

    @property
    def price(self) -> Price | None:
        """The recorded price; None without one, and if it changed when the run was resumed."""
        return None if self.changed_price else recorded_price(self.document)

    @property
    def changed_price(self) -> str | None:
        """Say how the price changed within the run, and what that means; None if it did not."""
        changed = changes(self.document).get("price")
        told = changed and describe_changes({"usd_per_hour": changed})
        return f"{told}: what it cost is unknown" if told else None

    @property
    def network(self) -> str:
        """The network and its size, as one line."""
        name = text(self.document, "model") or ("convolution" if self.mode == "conv2d" else "?")
        parameters = number(self.document, "parameters")
        if parameters is None:
            return name
        size = f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e3:.0f} k"
        return f"{name}, {size} parameters"

    @property
    def data(self) -> str:
        """What it was trained on."""
        if self.feed == "synthetic":
            return "one synthetic batch"
        found = text(self.document, "data", "description") or text(self.config, "data", "source")
        return found or UNKNOWN

    @property
    def precision(self) -> str:
        """The precision, with what fp32 stands for where the run asked for something."""
        precision = text(self.config, "precision") or UNKNOWN
        arithmetic = text(self.environment, "matmul_precision")
        return f"{precision} ({arithmetic})" if arithmetic else precision

    def devices(self, number: float | None) -> str:
        """Return `number` of the run's devices, as one line."""
        if number is None:
            return self.device_kind
        if self.device_kind == UNKNOWN:
            return f"{number:.0f} device(s)"
        simulated = " (simulated)" if self.are_simulated(number) else ""
        return f"{number:.0f} × {self.device_kind}{simulated}"

    def are_simulated(self, num_devices: float | None) -> bool:
        """Return whether so many CPU devices share the processors of fewer processes."""
        processes = number(self.environment, "num_processes") or 1
        return self.device_kind == "cpu" and (num_devices or 1) > processes

    @property
    def published_network(self) -> str | None:
        """The network's name in `jaxbench.analysis.published`; None where it is not there."""
        own, parameters = text(self.document, "model"), number(self.document, "parameters") or 0
        for name, (model, millions) in NETWORKS.items():
            if own == model and abs(parameters / 1e6 / millions - 1) <= _SAME_SIZE:
                return name
        return None

    @property
    def compared_network(self) -> str | None:
        """The published network that a run is beside: its own, or that of its experiment."""
        begun = (name for name in NETWORKS if self.experiment.startswith(name))
        return self.published_network or next(begun, None)

    @property
    def score_field(self) -> str | None:
        """The field of the last epoch's score in the summary, one of `SCORES`."""
        return next((name for name in SCORES if number(self.summary, name) is not None), None)

    @property
    def total_s(self) -> float | None:
        """Compiling and all epochs."""
        times_s = [number(epoch, "epoch_time_s") for epoch in self.of_kind("epoch")]
        times_s.append(number(self.summary, "compile_s"))
        return None if None in times_s or len(times_s) < 2 else sum(times_s)

    def setting(self) -> dict[str, Any]:
        """Return all that must be equal for two figures to stand on one line, but the batch size.

        Seed and name are left out: repeats differ in them.
        """
        names = ("experiment", "mode", "network", "feed", "precision", "num_devices", "device_kind")
        environment = self.environment
        commit = text(environment, "git", "commit") or "unknown"
        # What was not committed nobody can look up.
        changed = "+changes" if find(environment, "git", "dirty") is True else ""
        return {
            **{name: getattr(self, name) for name in names},
            "cpu": text(environment, "cpu"),
            **{name: value for name, value in flat(self.config) if name not in _NOT_SETTINGS},
            "host": text(environment, "hostname"),
            **{name: find(environment, "versions", name) for name in ("jax", "jaxlib", "flax")},
            "driver": find(environment, "driver"),
            "commit": commit[:9] + changed,
            "XLA_FLAGS": find(environment, "variables", "XLA_FLAGS"),
        }

    def training_setting(self) -> dict[str, Any]:
        """Return all in which trainings that differ in their seed alone are equal.

        The schedule follows from the length, the step from the batch.
        """
        lengths = {name: number(self.config, name) for name in ("epochs", "max_steps")}
        own = {"batch_size": self.batch_size, **lengths, "train_examples": self.train_examples}
        return self.setting() | own


class RunRecord(NamedTuple):
    """A record, and the run that made it."""

    run: ReportedRun
    record: Mapping[str, Any]


def read_run(id: str, name: str, path: pathlib.Path) -> ReportedRun:
    """Return what can be read of a run directory."""
    id, name = printable(id), printable(name)  # a page is shown by terminals too
    try:
        run = load_run(str(path))
    except (BadInput, ValueError) as error:
        reason = str(error).replace(f"{path}", name)
        return ReportedRun(id, name, path, read_document(path), reason=reason)
    status, reason = text(run.document, "status") or "corrupt", text(run.document, "reason")
    if status == "corrupt":
        reason = "its run.json has no status"
    elif status == "running":
        status, reason = _tell_running(path)
    elif lost := missing_records(run):
        ended = f"; it ended as {status}: {reason}" if reason else ""
        status, reason = "corrupt", lost + ended
    return ReportedRun(id, name, path, run.document, run.records, status, reason)


def _tell_running(path: pathlib.Path) -> tuple[str, str | None]:
    """Return the status of a run that has not ended, and its reason."""
    running = is_running(path)
    if running is None:
        return "running", "when last heard of: its lock cannot be read"
    if running:
        return "running", "a process holds its lock"
    return "killed", "its process is gone and left no word"
