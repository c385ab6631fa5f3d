"""What was measured, as plain rows: one for each rate of each run, and for what gave none."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, median_interval
from jaxbench.report.collect import Collection, ReportedRun
from jaxbench.report.values import items, mapping, number, text

# A training run and its training step measured alone are two figures.
STAGES = {"training": "training", "train_step": "training step alone"}
# How a run's status reads in tables.
_STATUS = {"done": "ok"}

# What a line's label says without its name, and how many others it says with theirs.
_PLAIN = ("precision", "num_devices", "device_kind", "stage", "feed", "experiment", "network")
_MOST_NAMED = 3


# What a stage's record says of its rate beside the rate itself.
OF_A_RATE = (
    "images_per_s_per_device",
    "latency_p50_s",
    "latency_p95_s",
    "latency_p99_s",
    "latency_steps",
    "mfu",
    "flops_per_byte",
    "flops_per_s_per_device",
)


@dataclasses.dataclass
class Measurement:
    """One rate, or a run without any. What is unknown is None.

    Attributes:
      run: the run's id, and its name below.
      origin: `measured`, `published` (`source` and `date` say where) or `predicted` (`source` says
        of what).
      stage: training, or one of --mode=throughput's or input's; those of `details` besides.
      images_per_s_low, images_per_s_high: its 95 % interval, from `n` windows or epochs; None of
        fewer than `FEWEST_FOR_INTERVAL`.
      total_s: compiling and all epochs.
      figure: what `score` is: top-1 or Dice, of the last epoch.
      scaling: weak or strong.
      overlap: how much of the all-reduce a prediction hides behind the step: `none` or `full`.
      efficiency: rate_N / (N x rate_1).
      kernel, channels, filters, height, width: of a convolution.
      time_s, time_s_low, time_s_high: how long a stage took, and its 95 % interval from `n`.
      images: of a call, or those that it took to the target.
      energy_j: of training up to the target.
      usd_per_hour: what its hardware costs, `price` says by whom and when; `usd`: the whole run or
        its way to the target.
      target: the score to reach; `target_reached`, `epoch`: whether and after which one.
      place: a sweep's own words for the cell.
    """

    origin: str
    run: str | None = None
    name: str | None = None
    status: str | None = None
    reason: str | None = None
    experiment: str | None = None
    network: str | None = None
    published_network: str | None = None
    parameters: float | None = None
    data: str | None = None
    train_examples: float | None = None
    feed: str | None = None
    mode: str | None = None
    stage: str | None = None
    precision: str | None = None
    batch_size: float | None = None
    num_devices: float | None = None
    hardware: str | None = None
    processor: str | None = None
    hostname: str | None = None
    framework: str | None = None
    images_per_s: float | None = None
    images_per_s_low: float | None = None
    images_per_s_high: float | None = None
    n: int | None = None
    images_per_s_per_device: float | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    latency_steps: float | None = None
    mfu: float | None = None
    flops_per_byte: float | None = None
    flops_per_s_per_device: float | None = None
    compile_s: float | None = None
    compile_cache: str | None = None
    first_epoch_with_compile_s: float | None = None
    median_epoch_s: float | None = None
    total_s: float | None = None
    epochs: float | None = None
    figure: str | None = None
    score: float | None = None
    best_score: float | None = None
    peak_memory_bytes: float | None = None
    joules_per_image: float | None = None
    date: str | None = None
    source: str | None = None
    # Columns are added at the end: whoever reads them by their place goes on reading the same.
    scaling: str | None = None
    overlap: str | None = None
    efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    kernel: float | None = None
    channels: float | None = None
    filters: float | None = None
    height: float | None = None
    width: float | None = None
    time_s: float | None = None
    time_s_low: float | None = None
    time_s_high: float | None = None
    images: float | None = None
    target: float | None = None
    target_reached: bool | None = None
    energy_j: float | None = None
    usd_per_hour: float | None = None
    price: str | None = None
    usd: float | None = None
    epoch: float | None = None
    place: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    setting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether its figures may be drawn: the run ended well."""
        return self.status == "ok"


COLUMNS = tuple(
    field.name
    for field in dataclasses.fields(Measurement)
    if field.name not in ("place", "setting", "record", "published_network")
)


def measurements(collection: Collection) -> list[Measurement]:
    """Returns the rows of all runs, in their order; cells without a run directory at the end."""
    rows = [row for run in collection.runs for row in _of_run(run)]
    by_run: dict[str, list[Measurement]] = {}
    for row in rows:
        by_run.setdefault(row.run, []).append(row)
    for sweep in collection.sweeps:
        cells, without = [], []
        for record, run in sweep.cells:
            place = mapping(record, "place")
            if run is None:
                without.append(_without_run(sweep.name, record))
                continue
            for row in by_run[run.id]:
                row.place = place
                # What the sweep says of a process that ended without a word is better known.
                if text(record, "status") not in (None, "done") and row.status != "oom":
                    row.status, row.reason = text(record, "status"), text(record, "reason")
            cells += by_run[run.id][:1]
        rows += [_like_its_neighbours(row, cells) for row in without]
    return rows


def _of_run(run: ReportedRun) -> list[Measurement]:
    summary = run.summary
    figure = next((f for f in ("top1", "dice") if number(summary, f"eval_{f}") is not None), None)
    epochs = run.of_kind("epoch")
    epoch_times_s = [number(epoch, "epoch_time_s") for epoch in epochs]
    compile_s = number(summary, "compile_s")
    total_s = None
    if epochs and compile_s is not None and None not in epoch_times_s:
        total_s = compile_s + sum(epoch_times_s)
    common = Measurement(
        origin="measured",
        run=run.id,
        name=run.name,
        status=_STATUS.get(run.status, run.status),
        reason=run.reason,
        experiment=run.experiment,
        network=run.network,
        published_network=run.published_network,
        parameters=number(run.document, "parameters"),
        data=_known(run.data),
        train_examples=number(run.document, "data", "train_examples"),
        feed=_known(run.feed),
        mode=run.mode,
        precision=_known(run.precision),
        batch_size=run.batch_size,
        num_devices=run.num_devices,
        hardware=run.hardware,
        processor=run.processor,
        hostname=text(run.environment, "hostname"),
        framework=f"jax {text(run.environment, 'versions', 'jax') or '?'}",
        compile_s=compile_s,
        compile_cache=text(summary, "compile_cache"),
        first_epoch_with_compile_s=number(summary, "first_epoch_with_compile_s"),
        median_epoch_s=number(summary, "median_epoch_s"),
        total_s=total_s,
        epochs=number(summary, "epochs_done"),
        figure={"top1": "top-1", "dice": "Dice"}.get(figure or ""),
        score=number(summary, f"eval_{figure}"),
        best_score=number(summary, f"best_eval_{figure}"),
        peak_memory_bytes=number(summary, "peak_memory_bytes"),
        joules_per_image=number(summary, "telemetry", "joules_per_image"),
        date=text(run.document, "started_at"),
        setting=run.setting(),
    )
    stages = [
        _of_stage(common, record)
        for kind in ("throughput", "input")
        for record in run.of_kind(kind)
        if text(record, "stage")
    ]
    if stages:
        return stages
    if run.mode == "train":
        return [_of_training(common, epochs)]
    if run.mode == "throughput":  # ended before it came to a rate: a row beside those that did
        common.stage = "train_step"
        common.setting = {**common.setting, "stage": "train_step"}
    return [common]


def _known(words: str) -> str | None:
    """What is a dash on the page is nothing in a row."""
    return None if words == "–" else words


def _of_stage(common: Measurement, record: Mapping[str, Any]) -> Measurement:
    windows = items(record, "windows_s") or items(record, "windows_images_per_s")
    # An input run's training step takes one batch that is there already: another feed.
    fed = "synthetic" if record["kind"] == "input" and record["stage"] == "train_step" else None
    low, high = interval_of(record, "images_per_s", len(windows))
    return dataclasses.replace(
        common,
        stage=record["stage"],
        feed=fed or common.feed,
        images_per_s=number(record, "images_per_s"),
        images_per_s_low=low,
        images_per_s_high=high,
        n=len(windows) or None,
        **{name: number(record, name) for name in OF_A_RATE},
        setting={**common.setting, "stage": record["stage"], "feed": fed or common.feed},
        record=record,
    )


def interval_of(
    record: Mapping[str, Any], name: str, n: int | None
) -> tuple[float | None, float | None]:
    """Returns the ends of a figure's interval, None and None where it is of too few."""
    if not n or n < FEWEST_FOR_INTERVAL:
        return None, None
    return number(record, f"{name}_low"), number(record, f"{name}_high")


def later_rates(epochs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns images/s of the whole epochs from the second on: the first one is warm-up."""
    rates = [
        number(epoch, "images_per_s")
        for epoch in epochs
        if epoch.get("complete") is True and (number(epoch, "epoch") or 0) > 1
    ]
    return [rate for rate in rates if rate is not None]


def _of_training(common: Measurement, epochs: Sequence[Mapping[str, Any]]) -> Measurement:
    rates = later_rates(epochs)
    row = dataclasses.replace(common, stage="training", n=len(rates) or None)
    if rates:
        row.images_per_s, low, high = median_interval(rates)
        if len(rates) >= FEWEST_FOR_INTERVAL:
            row.images_per_s_low, row.images_per_s_high = low, high
        if row.num_devices:
            row.images_per_s_per_device = row.images_per_s / row.num_devices
    shares = [number(epoch, "mfu") for epoch in epochs]
    shares = [share for share in shares if share is not None]
    row.mfu = median_interval(shares)[0] if shares else None
    row.setting = {**common.setting, "stage": "training"}
    return row


def _without_run(sweep: str, record: Mapping[str, Any]) -> Measurement:
    """A cell whose process left no run directory: out of memory while it began, say."""
    place = mapping(record, "place")
    row = Measurement(
        origin="measured",
        name=f"{sweep}: {', '.join(f'{key}={value}' for key, value in place.items())}",
        status=text(record, "status"),
        reason=text(record, "reason"),
        experiment=text(record, "experiment"),
        precision=text(place, "precision"),
        batch_size=_whole(place.get("batch_size")),
        num_devices=_whole(place.get("num_devices")) or number(record, "num_devices"),
        hostname=text(record, "hostname"),
        date=text(record, "finished_at"),
        place=place,
    )
    return row


def _like_its_neighbours(row: Measurement, cells: Sequence[Measurement]) -> Measurement:
    """Fills in what a sweep's cells had in common that differ from this one in the batch alone."""
    alike = [cell for cell in cells if _but_batch(cell) == _but_batch(row)]
    if not alike:
        # The flags are the whole sweep's.
        modes = {cell.mode for cell in cells}
        return dataclasses.replace(row, mode=modes.pop()) if len(modes) == 1 else row
    names = ("mode", "stage", "feed", "precision", "num_devices", "hardware", "setting")
    return dataclasses.replace(row, **{name: getattr(alike[0], name) for name in names})


def _but_batch(row: Measurement) -> dict[str, Any]:
    return {name: value for name, value in row.place.items() if name != "batch_size"}


def _whole(value: Any) -> float | None:
    """A number out of a grid's text."""
    try:
        return number(float(value))
    except (TypeError, ValueError):
        return None


def series_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names lines by all in which their settings differ, precision first.

    Precision is always named: nobody should have to ask.
    """
    names = _differing_names(settings)
    first = [name for name in _PLAIN if name in names or name == "precision"]
    labels = []
    for setting in settings:
        told = [_shown(setting.get(name), name) for name in first]
        rest = differing(setting, settings)
        labels.append(", ".join([*told, rest] if rest else told))
    return labels


def differing(setting: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Says by name in what a setting differs from others, but for what needs no name."""
    names = [name for name in _differing_names(others) if name not in _PLAIN]
    told = [f"{name}={_shown(setting.get(name))}" for name in names[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        told.append(f"and {len(names) - _MOST_NAMED} more settings")
    return ", ".join(told)


def _differing_names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [n for n in names if len({_key(setting.get(n)) for setting in settings}) > 1]


def setting_key(setting: Mapping[str, Any], without: Sequence[str] = ()) -> tuple:
    """What is equal for figures that may stand on one line."""
    return tuple((name, _key(value)) for name, value in setting.items() if name not in without)


def _key(value: Any) -> str:
    return repr(value)


def _shown(value: Any, name: str = "") -> str:
    if value is None:
        return "–"
    if name == "num_devices":
        return f"{value:.0f} device{'s' if value != 1 else ''}"
    return str(value)
