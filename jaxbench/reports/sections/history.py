"""Published results beside this report's runs, and convolutions with each part of their time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jaxbench.analysis.pricing import Price, find_price, load_prices, usd
from jaxbench.analysis.published import published_rates
from jaxbench.analysis.rate import Estimate, of_repeats, of_rounds
from jaxbench.config.data import PUBLIC_SETS
from jaxbench.metrics import count, plain, words
from jaxbench.records.same import is_published_work, is_synthetic, setting_key
from jaxbench.reports import published
from jaxbench.reports.blocks import Dot, DotChart, Section
from jaxbench.reports.columns import run_ids, shared
from jaxbench.reports.context import STAGES, Measurement, ReportContext, make_section
from jaxbench.reports.prices import at_price
from jaxbench.reports.runs import RunRecord
from jaxbench.reports.work import grouped, labelled
from jaxbench.schema import METRICS, Conv2dRecord, value_of
from jaxbench.tables.columns import Cell, Column, estimate_columns, metric_column, metric_columns
from jaxbench.tables.table import Table, make_table

_FIRST, _IMAGES_PER_S = "first_epoch_with_compile_s", METRICS["images_per_s"].title
_PER_PRICE = "images_per_s_per_usd_per_hour"
_TRAININGS = (
    *(published.BATCH, published.ORIGIN, published.HARDWARE, published.PRECISION),
    Column("feed", "feed"),
    metric_column(_FIRST),
    metric_column("median_epoch_s"),
    metric_column("duration_s", "total_time_s", ", all epochs"),
    metric_column("epochs_done"),
    metric_column("top1"),
    *(*shared("run"), published.SOURCE),
)
_RATES = (
    published.ORIGIN,
    Column("what", "stage"),
    *(published.HARDWARE, published.PRECISION, published.BATCH),
    Column("data", "data"),
    *estimate_columns("rate", "images_per_s"),
    *metric_columns("price.usd_per_hour"),
    metric_column(_PER_PRICE, f"{_PER_PRICE}.value"),
    metric_column("usd_per_million_images", "usd_per_million_images.value"),
    Column("offer", "price.offer"),
    *(*shared("run"), published.SOURCE),
)
_TO_ACCURACY = (
    *(published.ORIGIN, published.HARDWARE),
    *metric_columns("epochs", "top1"),
    metric_column("duration_s", "time_s"),
    *metric_columns("price.usd_per_hour", "usd"),
    metric_column("usd", "usd_published", ", as printed"),
    Column("offer", "offer"),
    published.SOURCE,
)
_BESIDE = (
    *(published.ORIGIN, Column("what", "stage"), published.SOFTWARE),
    *(published.HARDWARE, published.PRECISION, published.BATCH),
    *estimate_columns("rate", "images_per_s"),
    *(*shared("run"), published.SOURCE),
)
# Of this report's own.
_MOST_DOTS = 16
_Blocks = list[Table | DotChart]


def history(context: ReportContext) -> Section | None:
    """Return tables and charts of published rows, with this report's runs of the same work."""
    rows = [row for row in context.measurements if row.stage in ("training", "train_step", "")]
    blocks: _Blocks = []
    for network, measured in grouped(rows, lambda row: row.run.published_network).items():
        if network:
            blocks += [*_trainings(network, measured), *_rates(context, network, measured)]
            blocks += [*_to_accuracy(network, measured), *_beside(network, measured)]
    return make_section(
        "history",
        "Comparison with published results",
        "Rows marked “measured” are from this report's runs of the same network, images and data. "
        "Rows marked “published” are from others, with date and source: other software at other "
        "times, not reproduced here.",
        blocks,
    )


def _of_work(rows: Sequence[Measurement], dataset: str) -> list[Measurement]:
    """Return the rows that may stand beside what was published of their network on a data set."""
    same = lambda row: is_published_work(row.setting, row.run.train_examples, dataset)  # noqa: E731
    return [*filter(same, rows)] if dataset else []


def _trainings(network: str, rows: Sequence[Measurement]) -> _Blocks:
    """Return epoch times, whole runs and accuracy, as in the published tables."""
    sources = published.Sources()
    theirs = sources.rows("training_runs", lambda row: row["model"] == network)
    dataset = theirs[0]["dataset"] if theirs else ""
    rows = [
        row
        for row in _of_work(rows, dataset)
        if (row.usable and value_of(row.run.summary, "median_epoch_s")) or row.run.status == "oom"
        # Nobody learns from synthetic images.
        if not is_synthetic(row.setting)
    ]
    if not rows:
        return []
    lines = [row | {_FIRST: row["first_epoch_s"]} for row in theirs]
    lines += [published.measured_row(row) | _training(row) for row in rows]
    oom = {_FIRST: Cell("OOM", "bad")}
    lines = [line | (oom if line["status"] == "oom" else {}) for line in lines]
    table = make_table(
        _TRAININGS,
        sorted(lines, key=lambda line: line["global_batch"] or 0),
        title=f"{network} on {dataset}: training",
        note=f"{sources.note} n = 1 run a row; no interval was published. "
        "The published rows do not say how many epochs a whole run has.",
    )
    dots = [
        Dot(f"{count(row['global_batch'])}: {row['machine']}, {row['precision']}", time_s)
        for row in theirs
        if (time_s := row["median_epoch_s"]) is not None
    ]
    title = f"{network} on {dataset}: an epoch, median from the 2nd on, by global batch"
    epoch = lambda row: Estimate(value_of(row.run.summary, "median_epoch_s"))  # noqa: E731
    return [table, *_dots(title, "seconds an epoch", rows, epoch, dots)]


def _training(row: Measurement) -> published.Row:
    summary, run = row.run.summary, row.run
    first: Cell | float | None = value_of(summary, "first_epoch_with_compile_s")
    if first is not None and run.compile_cache == "hit":
        first = Cell(f"{plain(first)} (compilation cache hit)")
    return {
        "status": run.status,
        _FIRST: first,
        "median_epoch_s": value_of(summary, "median_epoch_s"),
        "total_time_s": run.total_s,
        "epochs_done": value_of(summary, "epochs_done"),
        "top1": run.score,
    }


def _rates(context: ReportContext, network: str, rows: Sequence[Measurement]) -> _Blocks:
    sources = published.Sources()
    # Of articles that compared machines.
    articles = [one for one in published_rates() if one.data and one.network == network]
    theirs = sources.rates(articles)
    dataset = theirs[0]["dataset"] if theirs else ""
    rows = [row for row in _of_work(rows, dataset) if row.usable and row.rate.value is not None]
    if not rows:
        return []
    lines = []
    for row in theirs:
        row |= {"stage": STAGES["training"]}
        prices = [one for one in load_prices() if _is_offer_of(one, row)]
        lines += [row | {"price": one} | at_price(row["rate"], one) for one in prices] or [row]
    for row in rows:
        price = context.prices.lowest(row.run)
        priced = {"price": price} | at_price(row.rate, price) if price else {}
        lines.append(_rate(row) | {"data": f"{row.feed} feed, {row.data}"} | priced)
    table = make_table(
        _RATES,
        sorted(lines, key=lambda line: -line["rate"].value),
        title=f"{network}: training, {_IMAGES_PER_S}",
        note=f"{sources.note} Published rates are of training; their costs are estimated by offers "
        "of their day. A training step alone has no data to fetch unless its feed says so, and "
        "neither evaluations nor epochs' ends.",
    )
    blocks: _Blocks = [table]
    # Synthetic data and data that are read make two figures, in two charts.
    for synthetic in (True, False):
        dots = [
            Dot(f"{row['machine']}, {row['framework']}", row["images_per_s"])
            for row in theirs
            if (row["data"] == "synthetic") == synthetic
        ]
        measured = [row for row in rows if is_synthetic(row.setting) == synthetic]
        data = "synthetic data" if synthetic else f"{dataset}, read and distorted"
        rate = lambda row: row.rate  # noqa: E731
        blocks += _dots(f"{network}: {data}", _IMAGES_PER_S, measured, rate, dots)
    return blocks


def _is_offer_of(price: Price, row: Mapping[str, Any]) -> bool:
    """Return whether its source gives this price for the machine that the rate was measured on.

    The machine's name stands in brackets: "4x V100 16GB (AWS p3.8xlarge)". Without one nobody knows
    whose it was, and another provider's V100 is another machine.
    """
    hardware, _, machine = row["hardware"].partition(" (")
    machine = machine.removesuffix(")")
    same = price.source == row["source"] and hardware.startswith(price.hardware)
    return same and bool(machine) and machine in price.offer


def _to_accuracy(network: str, rows: Sequence[Measurement]) -> _Blocks:
    """Return the time and cost to an accuracy, if the same was trained here."""
    dataset = published.dataset_of(network) or ""
    trained = (row for row in _of_work(rows, dataset) if row.run.mode == "train")
    if all(is_synthetic(row.setting) for row in trained):
        return []
    sources, prices, lines = published.Sources(), load_prices(), []
    for row in sources.rows("time_to_accuracy", lambda row: row["model"] == network):
        price = find_price(row["offer"], prices)
        time_s = row["epochs"] * PUBLIC_SETS[dataset][0] / row["images_per_s"]
        paid = usd(time_s, price.usd_per_hour)
        lines.append(row | {"price": price, "time_s": time_s, "usd": paid})
    title = f"{network} on {dataset}: time and cost to an accuracy"
    note = (
        "Time and USD are estimated from the published rate, epochs and price; compiling and "
        f"evaluations are not in them. {sources.note}"
    )
    return [make_table(_TO_ACCURACY, lines, title, note)] if lines else []


def _rate(row: Measurement) -> published.Row:
    return published.measured_row(row) | {"stage": STAGES.get(row.stage), "rate": row.rate}


def _beside(network: str, rows: Sequence[Measurement]) -> _Blocks:
    """Return the rates on each machine, with those that were published of just this work."""
    rows = [row for row in rows if row.usable and row.rate.value is not None]
    sources, lines, more = published.Sources(), [], 0
    for work, same in grouped(rows, lambda row: published.run_key(row.run)).items():
        rates = published.nearest(work, [row.run.batch_size for row in same])
        theirs = sources.rates(rates[: published.MOST])
        lines += [*map(_rate, same), *theirs] if theirs else []
        more += len(rates) - len(theirs)
    note = f"{published.beside_note(more)} {sources.note}"
    title = f"{network}: published on the same devices, {_IMAGES_PER_S}"
    return [make_table(_BESIDE, lines, title, note)] if lines else []


def _dots(
    title: str,
    x_label: str,
    rows: Sequence[Measurement],
    figure: Callable[[Measurement], Estimate],
    theirs: Sequence[Dot],
) -> list[DotChart]:
    rows = [row for row in rows if figure(row).value is not None]
    if not rows or not theirs:
        return []
    repeats = grouped(rows, lambda row: (row.run.batch_size, setting_key(row.setting))).values()
    measured, alone = [], STAGES["train_step"]
    # The hardware's own words say what devices there are, and how many.
    by_hardware = {"num_devices": None, "device_kind": None}
    settings = {row: {**row.setting, **by_hardware, "stage": STAGES.get(row.stage)} for row in rows}
    for label_words, same in labelled(repeats, lambda same: settings[same[0]]):
        run, ids = same[0].run, run_ids(same)
        label = f"{count(run.batch_size)}: {run.hardware}, {label_words}, {ids}"
        label += f", {alone}" if same[0].stage == "train_step" and alone not in label_words else ""
        of = of_repeats([figure(row) for row in same])
        measured.append(Dot(label, *of.span, tooltip=of.basis))
    measured.sort(key=lambda dot: dot.value, reverse=x_label == _IMAGES_PER_S)
    more = f"; {_MOST_DOTS} of {len(measured)}" if len(measured) > _MOST_DOTS else ""
    beside = [dot._replace(kind="published") for dot in theirs]
    dots = sorted([*measured[:_MOST_DOTS], *beside], key=lambda dot: dot.value)
    note = (
        "filled: measured in this report, n = 1 run a dot or the geometric mean of several; bars: "
        "95 % interval of a run, or over 3 runs or more; hollow: "
        f"published, see the table for when and by whom{more}; {run_ids(rows)}"
    )
    return [DotChart(title, note, x_label, dots)]


_ROUNDS = ("host_to_device_s", "compute_s", "device_to_host_s", "scipy_s")
_CONVOLUTIONS = (
    published.ORIGIN,
    *shared("run", "precision"),
    published.HARDWARE,
    Column("images", "size"),
    *metric_columns("kernel", "channels", "devices", "compile_s", "first_use_s"),
    *(metric_column(name, ends="too") for name in _ROUNDS),
    *metric_columns("steady_total_s", "images_per_s", "speedup", "n"),
    published.SOURCE,
)


def conv2d(context: ReportContext) -> Section | None:
    """Return each part of the time of each problem and number of devices."""
    rows = context.of_kind(Conv2dRecord)
    runs = dict.fromkeys(row.run for row in rows)
    findings = [(run.id, line) for run in runs for line in value_of(run.summary, "findings") or ()]
    sources = published.Sources()
    # The published problem has one channel and a kernel of 3.
    is_published = any((row.record.kernel, row.record.channels) == (3, 1) for row in rows)
    theirs = [
        row | {"size": _size(row), "first_use_s": row["time_ms"] / 1e3}
        for row in (sources.rows("conv2d") if is_published else ())
    ]
    table = make_table(
        _CONVOLUTIONS,
        [*map(_convolution, rows), *theirs],
        title="Every part",
        note="Medians of n rounds, in brackets the 95 % interval; compiling and the first use "
        f"happen once; images/s by the computing alone. {sources.note}",
    )
    return make_section(
        "conv2d",
        "One convolution",
        "The published comparison timed a first call, compilation and data transfer included. "
        "Here each part is timed alone.",
        [*(f"{id}: {words(line)}." for id, line in findings[:20]), table],
    )


def _convolution(row: RunRecord) -> published.Row:
    run, record = row
    rounds = {name: of_rounds(record, name) for name in _ROUNDS}
    return {
        **msgspec.structs.asdict(record),
        **rounds,
        "origin": published.MEASURED,
        "run": run,
        "machine": run.processor or run.device_kind,
        "size": _size(msgspec.structs.asdict(record)),
        "compile_s": record.lower_s + record.compile_s,
        "n": rounds["compute_s"].n,
        "cited": run.date,
    }


def _size(row: published.Row) -> str:
    """Return how many images of which size a convolution had."""
    return f"{count(row['images'])} of {count(row['height'])}×{count(row['width'])}"
