"""A run directory as the report sees it, whatever state it is in, and its time to an accuracy."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple

import msgspec

from jaxbench import schema
from jaxbench.analysis.pricing import Price, lost_s, recorded_price
from jaxbench.analysis.rate import Estimate, rate_of
from jaxbench.errors import BadInput
from jaxbench.metrics import UNKNOWN, percent
from jaxbench.predict.networks import identify
from jaxbench.records import same
from jaxbench.records.attempts import changes, describe_changes, distorters_of
from jaxbench.records.reader import Kind, RunRecords, load_run, missing_records, read_document
from jaxbench.records.run_lock import is_running
from jaxbench.schema import (
    CompileRecord,
    EpochRecord,
    Record,
    RunDocument,
    Summary,
    decode_record,
    value_of,
)

# What a trained network is judged by: {field of an epoch's record: its name}.
SCORES = {f"eval_{name}": title for name, title in schema.SCORES.items()}
# Of networks, so much of the parameters may lie elsewhere (another number of classes).
_SAME_SIZE = 0.03
# The networks of articles in analysis/published: {name: (class, parameters in millions)}.
NETWORKS = {
    "cnn10": ("Cnn10", 1.9),
    "wrn28_10": ("WideResNet", 36.5),
    "resnet50": ("ResNet", 25.6),
    "vgg_cifar10": ("Vgg", 15.0),
    "mnist_cnn": ("MnistCnn", 1.2),
}
# What a run that has not ended is, by whether a process holds its lock; None: nobody knows.
_RUNNING = {
    True: ("running", "a process holds its lock"),
    None: ("running", "its last record says so: its lock cannot be read"),
    False: ("killed", "its process ended without recording why"),
}
# Of a run whose run.json cannot be read.
UNKNOWN_DOCUMENT = RunDocument(
    experiment="unnamed",
    mode="",
    status="corrupt",
    reason=None,
    started_at="",
    config={},
    telemetry_s=0.0,
    price=None,
    command_line=[],
    working_directory="",
    pid=0,
    environment={},
)


# A run that ended so without reaching its target never does. One that was broken off is not known.
NEVER_REACHED = ("done", "diverged", "invalid", "failed", "oom", "timeout")


@dataclasses.dataclass(eq=False)
class ReportedRun:
    """A run.

    Attributes:
      id: R1, R2 ...: what figures are marked with. None for a trial of a sweep whose process left
        no run directory: it was out of memory while it began, say.
      name: its path below the folder that was given.
      document, records: as in `RunRecords`; unknown and empty if they cannot be read.
      status: as in run.json, or `corrupt`, or `killed`: its process is gone.
      point: the values of a sweep's grid for the trial.
    """

    id: str | None
    name: str
    path: pathlib.Path
    document: RunDocument = UNKNOWN_DOCUMENT
    records: Sequence[Record] = ()
    status: str = "corrupt"
    reason: str | None = None
    point: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    config = property(lambda run: run.document.config)
    environment = property(lambda run: run.document.environment)
    experiment = property(lambda run: run.document.experiment)
    mode = property(lambda run: run.document.mode)
    telemetry = property(lambda run: run.summary.telemetry or {})
    # The machine that it was compiled for, which is not here; None for a run that measured.
    target = property(lambda run: run.document.target or run.point.get("target"))
    data_config = property(lambda run: run.config.get("data", {}))
    network = property(lambda run: run.setting["network"])
    precision = property(lambda run: run.setting["precision"])
    feed = property(lambda run: run.setting["feed"])
    # That of `rate`: --mode=input measures its training step on one batch that is there already.
    rate_feed = property(lambda run: "synthetic" if run.mode == "input" else run.feed)
    rate_data = property(lambda run: run.data_of(run.rate_feed))
    batch_size = property(lambda run: run.config.get("batch_size"))
    seed = property(lambda run: run.config.get("seed"))
    # What repeats of one another have in common.
    sample = property(lambda run: run.id if run.seed is None else run.seed)
    # Whether it is known what it comes to; not of a run that was broken off.
    ended = property(lambda run: run.status in NEVER_REACHED)
    sequence_length = property(lambda run: run.data_config.get("sequence_length"))
    train_examples = property(lambda run: (run.document.data or {}).get("train_examples"))
    num_devices = property(lambda run: run.environment.get("num_devices"))
    host = property(lambda run: run.environment.get("hostname"))
    device_kind = property(lambda run: run.setting["device_kind"])
    # The settings for debugging of all its processes.
    distorters = property(lambda run: distorters_of(run.document))
    work = property(lambda run: same.chart_key(run.data, run.setting))
    # Of trainings, for which their length counts.
    training_setting = property(lambda run: same.training_setting(run.document))
    training_key = property(lambda run: same.setting_key(run.training_setting))
    score = property(lambda run: run.score_field and value_of(run.summary, run.score_field))
    # What CPU devices are made of; None for others.
    processor = property(lambda r: r.environment.get("cpu") if r.device_kind == "cpu" else None)
    hardware = property(lambda run: run.devices(run.num_devices))
    machine = property(lambda run: run.machine_of(run.num_devices))
    # Within the run, when it was resumed: no rate is one of its first devices.
    changed_devices = property(lambda run: bool({"num_devices", "device_kind"} & {*run.changes}))
    date = property(lambda run: run.document.started_at[:10] or "no date")
    framework = property(lambda run: f"jax {run.environment.get('versions', {}).get('jax') or '?'}")

    @functools.cached_property
    def setting(self) -> dict[str, Any]:
        """What its repeats have in common, but for the batch size."""
        return same.setting_of(self.document)

    @functools.cached_property
    def summary(self) -> Summary:
        """The run's last record; an empty one of a run that has none."""
        if not self.document.summary:
            return Summary(status=self.status)
        return decode_record({"kind": "summary", **self.document.summary})

    @property
    def changes(self) -> dict[str, Any]:
        """What it was resumed on that is not what it began on."""
        return changes(msgspec.structs.asdict(self.document))

    def machine_of(self, num_devices: float | None) -> str:
        """Name this many of the run's devices; name the processor of CPU devices too."""
        return self.devices(num_devices) + (f" ({self.processor})" if self.processor else "")

    def paid_s(self, elapsed_s: float) -> float:
        """Return what is paid for up to a moment of the run's clock: lost work, too."""
        return elapsed_s + lost_s(self.document.attempts, elapsed_s)

    def check_measured(self) -> None:
        """Raise BadInput for a run that was compiled for a machine that is not here."""
        if self.target:
            raise BadInput(
                f"{self.name}: was compiled for {self.target}, and nothing was measured; "
                "jaxbench report shows what the compiler said"
            )

    @property
    def doubts(self) -> list[str]:
        """Why its rates are not those of a machine of its kind: other work, or distorters."""
        busy = ["the host was busy"] * (self.telemetry.get("host_busy") is True)
        return busy + [f"distorted by {one}" for one in self.distorters]

    @functools.cached_property
    def rate(self) -> Estimate:
        """Its images/s, see `rate_of`."""
        return rate_of(self)

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def compile_cache(self) -> str | None:
        """How the programs came: `hit` only if all were fetched from the compilation cache."""
        if outcome := value_of(self.summary, "compile_cache"):
            return outcome
        outcomes = {record.compile_cache for record in self.of_kind(CompileRecord)}
        return next((one for one in ("miss", "off", "hit") if one in outcomes), None)

    @property
    def price(self) -> Price | None:
        """The recorded price; None without one, and if it changed when the run was resumed."""
        return None if self.changed_price else recorded_price(self.document.price)

    @property
    def changed_price(self) -> str | None:
        """Say how the price changed within the run, and what that means; None if it did not."""
        if changed := self.changes.get("price"):
            return f"{describe_changes({'usd_per_hour': changed})}: what it cost is unknown"
        return None

    data = property(lambda run: run.data_of(run.feed))

    def data_of(self, feed: str) -> str:
        """Return what a feed's steps are trained on."""
        if feed == "synthetic":
            return "one synthetic batch"
        description = (self.document.data or {}).get("description")
        return description or self.data_config.get("source") or UNKNOWN

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
        processes = self.environment.get("num_processes") or 1
        return self.device_kind == "cpu" and (num_devices or 1) > processes

    @functools.cached_property
    def published_network(self) -> str | None:
        """The network's name in `jaxbench.analysis.published`; None if it is not there."""
        parameters = self.document.parameters or 0
        for name, (model, millions) in NETWORKS.items():
            if self.document.model == model and abs(parameters / 1e6 / millions - 1) <= _SAME_SIZE:
                return name
        return identify(self.document.forward_macs_per_image or 0, parameters)

    @property
    def score_field(self) -> str | None:
        """The field of the last epoch's score in the summary, one of `SCORES`."""
        return next((n for n in SCORES if value_of(self.summary, n) is not None), None)

    @property
    def total_s(self) -> float | None:
        """Compiling and all epochs."""
        epochs, compile_s = self.of_kind(EpochRecord), self.summary.compile_s
        if not epochs or compile_s is None:
            return None
        return compile_s + sum(epoch.epoch_time_s for epoch in epochs)


class RunRecord(NamedTuple, Generic[Kind]):
    """A record, and the run that made it."""

    run: ReportedRun
    record: Kind


def read_run(id: str, name: str, path: pathlib.Path) -> ReportedRun:
    """Return what can be read of a run directory."""
    try:
        run = load_run(str(path))
    except (BadInput, ValueError) as error:
        reason = str(error).replace(f"{path}", name)
        return ReportedRun(id, name, path, read_document(path) or UNKNOWN_DOCUMENT, reason=reason)
    return reported(run, id, name)


def reported(run: RunRecords, id: str | None = None, name: str = "") -> ReportedRun:
    """Return a run with how it ended, or whether it has."""
    status, reason = run.document.status, run.document.reason
    if status == "running":
        status, reason = _RUNNING[is_running(run.path)]
    elif lost := missing_records(run):
        ended = f"; it ended as {status}: {reason}" if reason else ""
        status, reason = "corrupt", lost + ended
    return ReportedRun(id, name, run.path, run.document, run.records, status, reason)


@dataclasses.dataclass(frozen=True)
class TimeToTarget:
    """What a run took to its target, a share of the field `score` in an epoch's record.

    Attributes:
      evaluations: (seconds since the run's start, score as a share), in order; none if the run
        ended before its first one.
      epoch, time_s, images, training_flops, energy_j: up to the target; the operations are the
        network's own, forward and backward; None, or infinite time, if it was not
        reached.
      epochs_s: seconds spent in epochs with their evaluations, start-up and compilation excluded;
        None if that is not known.
    """

    run: ReportedRun
    target: float
    score: str
    evaluations: Sequence[tuple[float, float]]
    epoch: float | None
    time_s: float
    images: float | None
    training_flops: float | None
    energy_j: float | None
    epochs_s: float | None

    # Of all processes of a resumed run, for its price.
    paid_s = property(lambda self: self.run.paid_s(self.time_s))
    reached = property(lambda self: self.epoch is not None)
    sample = property(lambda self: self.run.sample)
    title = property(lambda self: SCORES.get(self.score, self.score.removeprefix("eval_")))
    label = property(lambda self: f"{self.title} {percent(self.target)} %")

    @property
    def ended(self) -> bool:
        """Whether its time is known: it reached the target, or ended without reaching it."""
        return self.reached or self.run.ended


def time_to_target(run: ReportedRun, asked: float | None) -> TimeToTarget | None:
    """Return what a run took to its target, or to the one that is asked; None if it has none."""
    to_stop = value_of(run.summary, "target_accuracy") or {}
    targets = (asked, to_stop.get("value"), run.document.target_accuracy)
    target = next((value for value in targets if value is not None), None)
    # Models that are trained apart have no score of their own in an epoch's record.
    if target is None or run.mode != "train" or run.config.get("replicas") == "independent":
        return None
    epochs = run.of_kind(EpochRecord)
    asked_for = to_stop.get("score") or "top1"
    scores = (asked_for, *schema.SCORES)
    score = next((s for s in scores for e in epochs if e.evaluated(s) is not None), asked_for)
    evaluated = [
        (epoch, value) for epoch in epochs if (value := epoch.evaluated(score)) is not None
    ]
    reached = next((epoch for epoch, value in evaluated if value >= target), None)
    images = reached.step * run.batch_size if reached and run.batch_size else None
    flops_per_image = run.document.training_flops_per_image
    # The whole run's energy, so only if it ended with the target.
    ends_there = reached and to_stop.get("value") == target
    return TimeToTarget(
        run,
        target,
        f"eval_{score}",
        [(epoch.elapsed_s, value) for epoch, value in evaluated],
        epoch=reached.epoch if reached else None,
        time_s=reached.elapsed_s if reached else math.inf,
        images=images,
        training_flops=images * flops_per_image if images and flops_per_image else None,
        energy_j=to_stop.get("energy_j") if ends_there else None,
        epochs_s=sum(one.epoch_time_s for one in epochs[: epochs.index(reached) + 1])
        if reached
        else math.inf,
    )
