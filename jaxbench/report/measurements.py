"""What was measured: one measurement for each rate of each run, and for a run that has none."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from jaxbench.report.collect import Collection
from jaxbench.report.estimates import Estimate, estimate, of_windows
from jaxbench.report.fields import known, number, text
from jaxbench.report.runs import ReportedRun

# A training run and its training step measured alone are two figures.
STAGES = {"training": "training", "train_step": "training step alone"}


@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """One rate of a run, or a run without any.

    Attributes:
      stage: `training`, or one of --mode=throughput's or input's.
      rate: images/s, from so many windows or epochs.
      record: what the stage recorded beside its rate.
      setting: what is equal for figures on one line.
    """

    run: ReportedRun
    stage: str | None
    rate: Estimate
    record: Mapping[str, Any]
    setting: Mapping[str, Any]

    feed = property(lambda self: self.setting["feed"])

    @property
    def work(self) -> tuple:
        """What rates must have in common to be compared: the images, and what was done."""
        images = [str(self.setting.get(f"data.{name}")) for name in ("image_shape", "num_classes")]
        return self.feed, self.stage, *images

    @property
    def usable(self) -> bool:
        """Whether its figures may be drawn: the run ended well."""
        return self.run.status == "done"


def measurements(collection: Collection) -> list[Measurement]:
    """Return the measurements of all runs, in their order; trials without a run at the end."""
    missing = [run for sweep in collection.sweeps for run in sweep.missing]
    return [one for run in [*collection.runs, *missing] for one in _of_run(run)]


def _of_run(run: ReportedRun) -> list[Measurement]:
    if stages := [*_of_stages(run)]:
        return stages
    if run.mode == "train":
        return [_of_training(run)]
    # A run that ended before it came to a rate is beside those that did.
    stage = {"stage": "train_step"} if run.mode == "throughput" else {}
    return [Measurement(run, stage.get("stage"), Estimate(), {}, run.setting() | stage)]


def _of_stages(run: ReportedRun) -> Iterator[Measurement]:
    for record in (*run.of_kind("throughput"), *run.of_kind("input")):
        if stage := text(record, "stage"):
            # An input run's training step takes one batch that is there already: another feed.
            alone = record["kind"] == "input" and stage == "train_step"
            own = {"stage": stage, "feed": "synthetic" if alone else run.feed}
            rate = of_windows(record, "images_per_s")
            yield Measurement(run, stage, rate, record, run.setting() | own)


def _of_training(run: ReportedRun) -> Measurement:
    rate = estimate(later_rates(run))
    shares = known(number(epoch, "mfu") for epoch in run.of_kind("epoch"))
    record = {"mfu": estimate(shares).value}
    if rate.value is not None and run.num_devices:
        record["images_per_s_per_device"] = rate.value / run.num_devices
    return Measurement(run, "training", rate, record, run.setting() | {"stage": "training"})


def later_rates(run: ReportedRun) -> list[float]:
    """Return images/s of the whole epochs from the second on: the first one is warm-up."""
    return known(
        number(epoch, "images_per_s")
        for epoch in run.of_kind("epoch")
        if epoch.get("complete") is True and (number(epoch, "epoch") or 0) > 1
    )
