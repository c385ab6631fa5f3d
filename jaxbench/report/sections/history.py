"""This machine beside what others have published."""

import statistics
from collections.abc import Sequence
from typing import Any

from jaxbench.analysis.published import load_published
from jaxbench.report.blocks import OOM, Cell, Dot, DotChart, Section, Table
from jaxbench.report.measurements import STAGES, Measurement, series_labels, setting_key
from jaxbench.report.published import Sources, hardware_of, is_made_up, other_work
from jaxbench.report.sections.material import ReportContext, run_cell, run_ids
from jaxbench.report.values import (
    clock_time,
    count,
    items,
    mapping,
    milliseconds,
    number,
    percent,
    rate,
    seconds,
    text,
)
from jaxbench.report.values import interval as both_ends

# Where a network's published rows are of another one's experiment.
_EXPERIMENTS = {
    "cnn10": "cnn10",
    "wrn28_10": "wrn28_10",
    "wrn28_10_2019": "wrn28_10",
    "resnet50": "resnet50",
    "resnet50_synthetic": "resnet50",
    "vgg_cifar10": "vgg_cifar10",
    "mnist_cnn": "mnist_cnn",
}
_MOST_DOTS = 16
_SAID = ("num_devices", "device_kind")


def history(material: ReportContext) -> Section | None:
    """Tables and charts of published rows, with this report's runs of the same networks."""
    measured: dict[str, list[Measurement]] = {}
    for row in material.measurements:
        base = (row.experiment or "").partition(":")[0]
        name = row.published_network or _EXPERIMENTS.get(base)
        if name and row.stage in ("training", "train_step", None):
            measured.setdefault(name, []).append(row)
    blocks: list[Any] = []
    for name, rows in measured.items():
        blocks += _epochs(name, rows)
        blocks += _rates(name, rows)
    blocks += _convolutions(material)
    if not blocks:
        return None
    return Section(
        "history",
        "Beside what was published",
        "Rows marked “measured” are of this report's runs; rows marked “published” are what others "
        "wrote, with their date and source: other software, other times, not repeated here. A run "
        "that did other work than the published one (a shrunken network, other data) is listed, "
        "says so, and is in no chart.",
        blocks,
    )


def _epochs(network: str, rows: Sequence[Measurement]) -> list[Any]:
    """Epoch times, whole runs and accuracy, as in the published tables."""
    published = [row for row in load_published("training_runs") if row["model"] == network]
    rows = [row for row in rows if row.stage == "training" or row.status == "oom"]
    if not published or not rows:
        return []
    dataset, sources = published[0]["dataset"], Sources()
    lines = []
    for row in published:
        figures = (
            [Cell(OOM, "bad", span=5)]
            if row["status"] == "oom"
            else [
                seconds(row["first_epoch_s"]),
                seconds(row["median_epoch_s"]),
                clock_time(row["total_time_s"]),
                "–",
                percent(row["top1"]),
            ]
        )
        lines.append(
            (
                row["global_batch"] or 0,
                [
                    count(row["global_batch"]),
                    Cell("published", "published"),
                    hardware_of(row),
                    row["precision"] or "–",
                    "–",
                    *figures,
                    "–",
                    sources.cite(row),
                ],
            )
        )
    for row in rows:
        other = _other_training(row, network, dataset)
        if row.median_epoch_s is None and row.first_epoch_with_compile_s is None:
            told = OOM if row.status == "oom" else row.status or "?"
            figures = [Cell(told, "bad", span=5)]
        else:
            cached = " (compiled before)" if row.compile_cache == "hit" else ""
            figures = [
                seconds(row.first_epoch_with_compile_s) + cached,
                seconds(row.median_epoch_s),
                clock_time(row.total_s),
                count(row.epochs),
                percent(row.score),
            ]
        lines.append((row.batch_size or 0, _measured(row, figures, other)))
    lines.sort(key=lambda line: line[0])
    table = Table(
        (
            "batch",
            "origin",
            "hardware",
            "precision",
            "feed",
            "1st epoch, with compile [s]",
            "2nd on, median [s]",
            "whole run [h:mm:ss]",
            "epochs",
            "top-1 [%]",
            "run",
            "when, by whom",
        ),
        [line for _, line in lines],
        title=f"{network} on {dataset}: training",
        note=f"{sources.note()} n = 1 run a row; no interval was published. "
        "A whole run is so many epochs long; the published rows do not say how many.",
        text_columns=(1, 2, 3, 4, 10, 11),
    )
    dots = [
        Dot(
            f"{count(row['global_batch'])}: {hardware_of(row)}, {row['precision']}",
            row["median_epoch_s"],
            published=True,
        )
        for row in published
        if row["median_epoch_s"] is not None
    ]
    same = [row for row in rows if row.usable and not _other_training(row, network, dataset)]
    own = [row for row in same if row.median_epoch_s is not None]
    title = f"{network} on {dataset}: an epoch, median from the 2nd on, by global batch"
    return [table, *_dots(title, "seconds an epoch", own, "median_epoch_s", dots, table)]


def _other_training(row: Measurement, network: str, dataset: str) -> str:
    """Nobody learns from made-up images."""
    made_up = "made-up images" if is_made_up(row) else ""
    return other_work(row, network, dataset) or made_up


def _rates(network: str, rows: Sequence[Measurement]) -> list[Any]:
    """Images per second."""
    published = [row for row in load_published("throughput") if row["model"] == network]
    rows = [row for row in rows if row.images_per_s is not None]
    if not published or not rows:
        return []
    lines, sources = [], Sources()
    for row in published:
        lines.append(
            (
                row["images_per_s"],
                [
                    Cell("published", "published"),
                    STAGES["training"],
                    hardware_of(row),
                    row["precision"] or "–",
                    count(row["global_batch"]),
                    row["data"] or "–",
                    rate(row["images_per_s"]),
                    "–",
                    "–",
                    "–",
                    sources.cite(row, row["note"]),
                ],
            )
        )
    dataset = published[0]["dataset"]
    for row in rows:
        other = other_work(row, network, dataset)
        lines.append(
            (
                row.images_per_s,
                [
                    Cell("measured", "measured"),
                    STAGES.get(row.stage or "", "–"),
                    _own_hardware(row),
                    row.precision or "–",
                    count(row.batch_size),
                    f"{row.feed} feed, {row.data}",
                    rate(row.images_per_s),
                    both_ends(row.images_per_s_low, row.images_per_s_high),
                    count(row.n),
                    run_cell(row.run),
                    _own_source(row, other),
                ],
            )
        )
    lines.sort(key=lambda line: -line[0])
    table = Table(
        (
            "origin",
            "what",
            "hardware",
            "precision",
            "batch",
            "data",
            "images/s",
            "95 % interval",
            "n",
            "run",
            "when, by whom",
        ),
        [line for _, line in lines],
        title=f"{network}: training, images/s",
        note=f"{sources.note()} Published rates are of training. A training step alone has no data "
        "to fetch unless its feed says so, and neither evaluations nor epochs' ends.",
        text_columns=(0, 1, 2, 3, 5, 9, 10),
    )
    blocks: list[Any] = [table]
    # What was made up and what was read are two figures, in two charts.
    for synthetic in (True, False):
        dots = [
            Dot(f"{hardware_of(row)}, {row['framework']}", row["images_per_s"], published=True)
            for row in published
            if (row["data"] == "synthetic") == synthetic
        ]
        own = [
            row
            for row in rows
            if is_made_up(row) == synthetic and row.usable and not other_work(row, network, dataset)
        ]
        data = "synthetic data" if synthetic else f"{dataset}, read and distorted"
        blocks += _dots(f"{network}: {data}", "images/s", own, "images_per_s", dots, table)
    return blocks


def _dots(
    title: str,
    x_label: str,
    rows: Sequence[Measurement],
    field: str,
    published: Sequence[Dot],
    table: Table,
) -> list[DotChart]:
    """A chart of both, where there are both."""
    if not rows or not published:
        return []
    repeats: dict[tuple, list[Measurement]] = {}
    for row in rows:
        repeats.setdefault((row.batch_size, setting_key(row.setting)), []).append(row)
    # The hardware's own words say what devices there are, and how many.
    settings = [
        {name: value for name, value in same[0].setting.items() if name not in _SAID}
        | {"stage": STAGES.get(same[0].stage or "")}
        for same in repeats.values()
    ]
    own = []
    for same, told in zip(repeats.values(), series_labels(settings), strict=True):
        figures = [getattr(row, field) for row in same]
        ends = (min(figures), max(figures)) if len(same) > 1 else (None, None)
        if len(same) == 1 and field == "images_per_s":
            ends = (same[0].images_per_s_low, same[0].images_per_s_high)
        head = f"{count(same[0].batch_size)}: {same[0].hardware}"
        label = f"{head}, {told}, {run_ids(row.run for row in same)}"
        if same[0].stage == "train_step" and STAGES["train_step"] not in told:
            label += f", {STAGES['train_step']}"
        own.append(Dot(label, statistics.median(figures), *ends))
    dots = sorted([*own[:_MOST_DOTS], *published], key=lambda dot: dot.value)
    more = f"; {_MOST_DOTS} of {len(own)} settings are drawn" if len(own) > _MOST_DOTS else ""
    return [
        DotChart(
            title=title,
            note=(
                "filled: measured in this report, n = 1 run a dot (bars: its 95 % interval, if it "
                "has one) or the median of several (bars: from the least to the most); hollow: "
                f"published, see the table for when and by whom{more}; "
                f"{run_ids(row.run for row in rows)}"
            ),
            x_label=x_label,
            dots=dots,
            table=table,
        )
    ]


def _measured(row: Measurement, figures: list[Cell | str], other: str) -> list[Cell | str]:
    return [
        count(row.batch_size),
        Cell("measured", "measured"),
        _own_hardware(row),
        row.precision or "–",
        row.feed or "–",
        *figures,
        run_cell(row.run),
        _own_source(row, other),
    ]


def _own_hardware(row: Measurement) -> str:
    hardware = row.hardware or "–"
    return f"{hardware} ({row.processor})" if row.processor else hardware


def _own_source(row: Measurement, other: str) -> Cell:
    told = [(row.date or "no date")[:10], row.framework, row.data]
    told += [f"OTHER WORK: {other}"] if other else []
    told += [] if row.usable else [f"status: {row.status}"]
    return Cell("; ".join(filter(None, told)), "soft" if other else "")


def _convolutions(material: ReportContext) -> list[Table]:
    """The published convolution, a first call on 840 images of 100x100."""
    own = [
        (run, cell)
        for run in material.runs
        for cell in run.of_kind("conv2d")
        if number(cell, "kernel") == 3 and number(cell, "channels") == 1
    ]
    if not own:
        return []
    rows, sources = [], Sources()
    for row in load_published("conv2d"):
        rows.append(
            [
                Cell("published", "published"),
                row["hardware"],
                count(row["devices"]),
                f"{row['images']} of {row['height']}×{row['width']}",
                milliseconds(row["time_ms"] / 1e3),
                "–",
                "–",
                "–",
                "–",
                sources.cite(row),
            ]
        )
    for run, cell in own:
        size = [number(cell, name) for name in ("images", "height", "width")]
        other = "" if size == [840, 100, 100] else "; OTHER WORK: fewer or other images"
        rows.append(
            [
                Cell("measured", "measured"),
                run.processor or run.device_kind,
                count(number(cell, "devices")),
                f"{count(size[0])} of {count(size[1])}×{count(size[2])}",
                milliseconds(number(cell, "first_use_s")),
                milliseconds(number(cell, "steady_total_s")),
                milliseconds(number(cell, "scipy_s")),
                count(len(items(mapping(cell, "samples"), "compute_s")) or None),
                run_cell(run.id),
                f"{(text(run.document, 'started_at') or 'no date')[:10]}{other}",
            ]
        )
    return [
        Table(
            (
                "origin",
                "hardware",
                "devices",
                "images",
                "first call [ms]",
                "later calls [ms]",
                "SciPy, 1 thread [ms]",
                "n",
                "run",
                "when, by whom",
            ),
            rows,
            title="One 3×3 convolution, 1 channel",
            note=f"{sources.note()} The published times are of a first and only call: compiling, "
            "moving and computing in one number. n: rounds of the later calls and of SciPy, whose "
            "medians stand here; a first call is one.",
            text_columns=(0, 1, 3, 8, 9),
        )
    ]
