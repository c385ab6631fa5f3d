"""One folder of runs, every output: what two of them show must be the same.

`OUTPUTS` reads each output as its users see it into `Shown` (a value and its interval) and `Said`
(who is faster). The patterns of the words come first.
"""

import contextlib
import csv
import html
import io
import itertools
import json
import pathlib
import re
import sys
from typing import Any, NamedTuple

import pytest

import jaxbench
from jaxbench.errors import BadInput
from jaxbench.metrics import percent, plain
from jaxbench.records.reader import load_run, read_results
from jaxbench.records.writers.describe import describe_record
from jaxbench.records.writers.rows import text as on_console
from jaxbench.reports.write import write_report
from jaxbench.schema import InputRecord, ScalingRecord, Summary, ThroughputRecord
from jaxbench.sweeps.grid import make_trials, parse_grid
from jaxbench.sweeps.live_table import LiveTable
from jaxbench.sweeps.tables import figures_of
from tests import conftest
from tests.cards import made
from tests.in_process import run_command
from tests.recorded import (
    PRICE,
    attempts,
    filled,
    recorded_run,
    scaling_record,
    throughput,
    train_record,
    write_results,
)

# The words of the outputs.
NUMBER = r"-?[\d,]+(?:\.\d+)?(?:e[+-]\d+)?"
ENDS = rf"({NUMBER}) to ({NUMBER})"
FASTEST = re.compile(rf"(?P<setting>[^.]+?) is fastest: (?P<rate>{NUMBER}) images/s")
# Where nothing is fastest, the rates are listed.
LISTED = re.compile(rf"([^;:]+): ({NUMBER}) images/s(?: \({ENDS}\))?")
CONSOLE_RATE = re.compile(rf"({NUMBER}) images/s \((.*)\)")
REPR_RATE = re.compile(rf"images/s ({NUMBER})(?: \(([^)]*)\))?")
INTERVAL = re.compile(rf"95 % interval {ENDS}")
# An order that is denied, or that nobody is to claim.
REFUSED = ("no significant difference", "inconclusive", "no verdict", "not compared")
ORDERS = {"faster": 1, "better": 1, "slower": -1, "worse": -1}
# {heading of a table: metric}; the interval, if the table has one, is in the column behind it.
HEADINGS = {
    "images/s": "images_per_s",
    "efficiency [%]": "efficiency",
    "images/s per USD/h": "images_per_s_per_usd_per_hour",
    "USD per million images": "usd_per_million_images",
    "whole run [USD]": "usd",
    "wall [s]": "wall_s",
    "last [%]": "top1",
}
COST_LINES = {
    "images/s": "images_per_s",
    "images/s per USD/h": "images_per_s_per_usd_per_hour",
    "USD per million images": "usd_per_million_images",
    "wall [s]": "wall_s",
    "paid [USD]": "usd",
}
# The table of machines, and its column of the setting.
MACHINES, RATE_OF = "Each machine", "rate of"
STAGES = {"training step alone": "train_step", "training": "training", "train_step": "train_step"}
UNKNOWN = ("", "–")
# Where an output has no place for an interval.
NO_PLACE = "no place"

GRID = {"batch_size": [256, 512], "seed": [0, 1, 2]}
QUIET = {
    "host_busy": False,
    "devices": {
        "gpu0": {"samples": 100, "load_percent_mean": 0.0, "power_w_mean": 60.0},
        "host": {"samples": 100, "cpu_percent_mean": 5.0, "other_cpu_percent_mean": 1.0},
    },
}


class Shown(NamedTuple):
    """A value that an output shows.

    Attributes:
      of: the names of the runs that it is of.
      ends: of its interval; None if the output says that there is none, or `NO_PLACE`.
    """

    output: str
    of: tuple[str, ...]
    metric: str
    value: str
    ends: Any = NO_PLACE


class Said(NamedTuple):
    """What an output says of two settings: 1 if the first is faster, -1, or 0 if it refuses."""

    output: str
    pair: tuple[tuple[str, ...], tuple[str, ...]]
    order: int
    words: str


def around(rate, count, spread=0.005):
    """The rates of a run's epochs, the first one slow: the median of the others is `rate`."""
    places = range(2 - count, count - 1, 2)
    steps = [spread * place / max(1, count - 2) for place in places]
    # Neighbours must not resemble one another.
    return [rate / 2] + [rate * (1 + step) for step in steps[::2] + steps[1::2]]


def write_training(folder, rate, epochs=12, minute=0, spread=0.005, **fields):
    """Writes a training run on the quiet host that starts at a minute of the day."""
    usual = {
        "started_at": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00+00:00",
        "pid": 100 + minute,
        "price": PRICE,
    }
    # At 3.60 USD an hour.
    summary = {"telemetry": QUIET, "wall_s": 100.0, "usd": 0.1} | fields.pop("summary", {})
    return train_record(folder, around(rate, epochs, spread), summary=summary, **usual | fields)


def write_folder(root: pathlib.Path) -> pathlib.Path:
    """Writes runs of all kinds, those of a setting in one folder."""
    for number, (rate, of_remat) in enumerate([(1000, 810), (1010, 803), (990, 815)]):
        write_training(root / f"fp32/{number}", rate, minute=2 * number)
        remat = {"config": {"remat": "save_dots"}}
        write_training(root / f"remat/{number}", of_remat, minute=2 * number + 1, **remat)
    write_training(root / "fp16/0", 2000, epochs=4, minute=10, config={"precision": "fp16"})
    for number, rate in enumerate((1300, 1100)):
        config = {"precision": "bf16"}
        write_training(root / f"bf16/{number}", rate, minute=12 + number, config=config)
    lost = {"status": "diverged", "config": {"batch_size": 64}}
    write_training(root / "diverged/0", 3000, minute=11, **lost)
    recorded_run(root / "oom/0", status="oom", config={"batch_size": 4096})
    recorded_run(
        root / "scaling/0",
        [scaling_record(1, 1200.0), scaling_record(2, 2300.0)],
        mode="scaling",
        environment={"num_devices": 2, "device_kind": "TPU v5e"},
    )
    windows = [900.0, 910.0, 905.0, 895.0, 902.0, 898.0, 904.0]
    stages = [
        filled(
            InputRecord,
            stage=stage,
            images_per_s=factor * 902,
            images_per_s_low=factor * 895,
            images_per_s_high=factor * 910,
            windows_images_per_s=[factor * rate for rate in windows],
            batch_size=128,
        )
        for stage, factor in (("prepare", 3), ("prepare_and_send", 2), ("train_step", 1))
    ]
    feed = {"feed": "stream"}
    recorded_run(root / "input/0", stages, mode="input", data=feed, config={"data": feed})
    throughput(root / "step/0", 1300.0, config={"batch_size": 64})
    for number, host in enumerate(("a", "b")):
        rate = 10_000.0 * (1 + 0.1 * number)
        made.write(root / f"cards/{host}", made.judged(made.networks(rate), host=host))
        throughput(
            root / f"cards/{host}/{made.RUN}",
            rate,
            spread=0.01,
            experiment="resnet50",
            config={"precision": "bf16", "batch_size": 256, "name": "resnet50"},
            environment={
                "hostname": host,
                "device_kind": "NVIDIA H100 80GB HBM3",
                "num_devices": 4,
            },
        )
    write_sweep(root / "sweep")
    return root


def write_sweep(folder):
    """Writes a sweep over seeds that has ended."""
    axes = [f"{name}={','.join(map(str, values))}" for name, values in GRID.items()]
    for number, trial in enumerate(make_trials("cnn10", [], parse_grid(axes))):
        batch, seed = (int(value) for value in trial.place.values())
        rate = {256: 1500, 512: 1800}[batch] * (1 + 0.02 * (seed - 1))
        top1 = {256: 0.93, 512: 0.91}[batch] + 0.01 * seed**2
        how = {"config": {"batch_size": batch, "seed": seed}, "minute": 20 + number, "top1": top1}
        write_trial(folder, trial, rate, **how)


def write_trial(sweep, trial, rate, **how):
    """Writes a trial that is done, and its training run."""
    run = write_training(sweep / "trials" / trial.folder / "run1", rate, **how)
    outcome = {"key": trial.key, "place": trial.place, "run": str(run.relative_to(sweep))}
    outcome |= {"figures": figures_of(load_run(str(run))), "hostname": "1234"}
    write_results(sweep, outcome)
    (sweep / "lock").touch()


def ended_sweep(sweep, axes):
    """The answer of a sweep whose trials are all there, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        return jaxbench.sweep("cnn10", axes, sweepdir=sweep), printed


class Folder:
    """The folder and its outputs, each made once.

    Attributes:
      names: {id in the report: name of the run}.
      settings: {name of a run: the names of all runs of its setting}.
      documents: what commands printed as JSON.
    """

    def __init__(self, root: pathlib.Path):
        self.root, self.documents = write_folder(root / "folder"), []
        self.texts = {}
        for form in ("html", "md", "csv"):
            path, _ = write_report([str(self.root)], str(root / f"report.{form}"))
            self.texts[form] = path.read_text()
        self.rows = [*csv.DictReader(io.StringIO(self.texts["csv"]))]
        self.names = {row["run"]: row["name"] for row in self.rows}
        self.batches = {row["name"]: row["batch_size"] for row in self.rows}
        self.precisions = {row["name"]: row["precision"] for row in self.rows}
        self.settings = {}
        for name in self.names.values():
            # A run's own folder, or the seeds of a batch in the sweep.
            alike = [n for n in self.names.values() if self._setting(n) == self._setting(name)]
            self.settings[name] = tuple(sorted(alike))
        self.tables = tables_of(self.texts["md"])
        self.trained = [name for name in self.names.values() if self._is_trained(name)]

    def _setting(self, name: str) -> str:
        return name.split(",seed")[0] if name.startswith("sweep") else name.rpartition("/")[0]

    def _is_trained(self, name: str) -> bool:
        return name.split("/")[0] in ("fp32", "remat", "bf16", "fp16", "sweep")

    @property
    def trained_settings(self) -> list[tuple[str, ...]]:
        return [*dict.fromkeys(self.settings[name] for name in self.trained)]

    def named(self, words: str) -> tuple[str, ...] | None:
        """Returns the setting that words name; None if that is not one of them."""
        found = [
            setting
            for setting in self.trained_settings
            if f"batch {self.batches[setting[0]]}" in words.replace(",", "")
            and self.precisions[setting[0]] in words
            and ("remat" in words) == setting[0].startswith("remat")
        ]
        return found[0] if len(found) == 1 else None

    def of_ids(self, words: str) -> list[str]:
        """Returns the runs whose ids a label has."""
        ids = [int(number) for number in re.findall(r"\bR(\d+)\b", words)]
        for first, last in re.findall(r"R(\d+) … R(\d+)", words):
            ids += range(int(first), int(last))
        return [self.names[f"R{number}"] for number in ids if f"R{number}" in self.names]

    def command(self, module: str, *args: str) -> str:
        done = run_command(self.root, *args, module=f"jaxbench.{module}", env={"COLUMNS": "400"})
        assert done.returncode == 0, done
        if "--json" in args:
            self.documents.append(json.loads(done.stdout))
        return done.stdout


class Table(NamedTuple):
    section: str
    title: str
    columns: list[str]
    rows: list[list[str]]


def tables_of(markdown: str) -> list[Table]:
    """The tables of a report as Markdown."""
    tables, section, title = [], "", ""
    for line in markdown.splitlines():
        if line.startswith("### "):
            title = unescaped(line[4:])
        elif line.startswith("## "):
            section = title = unescaped(line[3:])
        elif line.startswith("| ") and not re.fullmatch(r"[| :-]+", line):
            cells = [unescaped(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not tables or tables[-1].title != title or tables[-1].section != section:
                tables.append(Table(section, title, cells, []))
            else:
                tables[-1].rows.append(cells)
    return tables


def unescaped(text: str) -> str:
    return html.unescape(re.sub(r"\\(.)", r"\1", text)).strip()


def ends_of(text: str) -> tuple[str, str] | None:
    """The first interval in a text; None without one."""
    match = re.search(ENDS, text)
    return match and match.groups()


def shown_ends(low, high, show=plain):
    """An interval in numbers as the other outputs show it."""
    return None if low in (None, "") else (show(float(low)), show(float(high)))


def tables(folder: Folder):
    """The report's tables: runs and stages, scaling, cost, seeds, machines."""
    for table in folder.tables:
        for cells in table.rows:
            row = dict(zip(table.columns, cells, strict=False))
            output = f"report, {table.title!r}"
            if table.title == MACHINES and "training ·" in cells[0]:
                of = folder.named(row[RATE_OF])
                if of and "weak" not in cells[0]:
                    value, *_ = row["images/s"].split()
                    yield Shown(
                        output, of, "training images_per_s", value, ends_of(row["images/s"])
                    )
                continue
            runs = folder.of_ids(row.get("run") or row.get("runs") or "")
            if table.title == "Seeds together":
                for title, metric in (("score [%]", "top1"), ("images/s", "training images_per_s")):
                    text = row[f"{title}, mean (95 % interval)"]
                    value, *_ = text.split()
                    yield Shown(output, tuple(sorted(runs)), metric, value, ends_of(text))
            if len(runs) != 1 or table.section in ("Overview", "Telemetry"):
                continue
            stage = row.get("stage") or row.get("what") or ""
            if scaling := row.get("scaling"):
                stage = f"{scaling} {row['devices']}"
            elif not stage:
                stage = "training" if row.get("mode", "train") == "train" else "train_step"
            for place, title in enumerate(table.columns):
                metric, value = HEADINGS.get(title), cells[place]
                if metric and value not in UNKNOWN:
                    beside = [*table.columns, ""][place + 1]
                    has_place = "95 % interval" in table.columns or metric == "images_per_s"
                    ends = ends_of(cells[place + 1]) if beside == "95 % interval" else None
                    if table.section == "Cost" and metric in ("images_per_s", "usd", "wall_s"):
                        has_place = False
                    if metric in ("top1", "usd", "wall_s"):
                        has_place = False
                    stage_and_metric = name_of(STAGES.get(stage, stage), metric)
                    one = ends if has_place else NO_PLACE
                    yield Shown(output, (runs[0],), stage_and_metric, value, one)


def name_of(stage: str, metric: str) -> str:
    """The name of a metric: a rate has a stage."""
    rates = ("images_per_s", "efficiency")
    return f"{stage} {metric}" if metric in rates else metric


def said(output, pair, words) -> Said:
    """What is said of the first of a pair beside the second."""
    order = next((order for word, order in ORDERS.items() if words.startswith(word)), 0)
    assert order or words.startswith(REFUSED), f"{output}: {words!r} is no verdict"
    return Said(output, pair, order, words)


def sentences(folder: Folder):
    """The first sentence of each machine, of whole trainings."""
    blocks = re.findall(r"^### (.*)\n\n([^|#\n].*)$", folder.texts["md"], re.MULTILINE)
    for title, sentence in ((unescaped(one), unescaped(text)) for one, text in blocks):
        if "· training ·" not in title:
            continue
        output = "report, first sentence"
        for setting, value, *ends in LISTED.findall(sentence):
            if of := folder.named(setting):
                one = tuple(ends) if all(ends) else None
                yield Shown(output, of, "training images_per_s", value, one)
        match = FASTEST.search(sentence)
        if match and (first := folder.named(match["setting"])):
            ends = ends_of(sentence[match.start("rate") :].split(")")[0])
            yield Shown(output, first, "training images_per_s", match["rate"], ends)
            for other in folder.trained_settings:
                if other != first:
                    yield Said(output, (first, other), 1, match[0])


def charts(folder: Folder):
    """The values drawn in the page's charts of rates, and its large values."""
    for figure in folder.texts["html"].split("<figcaption>")[1:]:
        title = html.unescape(figure.partition("</figcaption>")[0])
        parts = title.split(" · ")
        if len(parts) < 3 or parts[1] not in STAGES or "by setting" not in title + "by setting":
            continue
        found = re.findall(r'data-y="images/s" data-label="([^"]*)" data-points="([^"]*)"', figure)
        for label, points in found:
            runs = folder.of_ids(label)
            for point in html.unescape(points).split("|"):
                drawn, x, *_ = point.split("; ")
                _, _, value, *_ = drawn.rstrip(";").split()
                batch = x.strip().replace(",", "")
                of = [r for r in runs if not batch or folder.batches[r] == batch]
                # Fewer names than runs: the setting is that of the first.
                metric = name_of(STAGES[parts[1]], "images_per_s")
                yield Shown(
                    f"page, chart {title!r}",
                    folder.settings[of[0]],
                    metric,
                    value.rstrip(";"),
                    ends_of(drawn.partition("(")[2]),
                )


def csv_report(folder: Folder):
    """The report as CSV."""
    for row in folder.rows:
        of = (row["name"],)
        if row["images_per_s"]:
            ends = shown_ends(row["images_per_s_low"], row["images_per_s_high"])
            value = plain(float(row["images_per_s"]))
            yield Shown("report.csv", of, name_of(stage_of(row), "images_per_s"), value, ends)
        for metric, show in (("usd", plain), ("wall_s", plain), ("top1", percent)):
            if row[metric]:
                yield Shown("report.csv", of, metric, show(float(row[metric])))


def stage_of(row) -> str:
    """The stage that the rate of a run is of."""
    return {"train": "training", "scaling": "weak 2"}.get(row["mode"], "train_step")


def console_stages(folder: Folder):
    """What the console shows of a run's stages, and of its steps of scaling."""
    for name in folder.names.values():
        for record in load_run(str(folder.root / name)).records:
            stage, metrics = "", ("images_per_s",)
            if isinstance(record, ThroughputRecord | InputRecord):
                stage = record.stage
            elif isinstance(record, ScalingRecord):
                stage, metrics = f"{record.scaling} {record.num_devices}", (*metrics, "efficiency")
            for metric in metrics if stage else ():
                ends = ends_of(on_console(record, f"{metric}_low"))
                value = on_console(record, metric)
                yield Shown("console, stages", (name,), name_of(stage, metric), value, ends)


def run_outputs(folder: Folder):
    """Each run alone: the end of its console, run.json, the API."""
    for row in folder.rows:
        name, metric = row["name"], name_of(stage_of(row), "images_per_s")
        run = jaxbench.Run(folder.root / name)
        if run.images_per_s is not None:
            ends = shown_ends(run.images_per_s_low, run.images_per_s_high)
            yield Shown("Run", (name,), metric, plain(run.images_per_s), ends)
            value, words = REPR_RATE.search(repr(run)).groups()
            match = INTERVAL.search(words or "")
            yield Shown("repr(Run)", (name,), metric, value, match and match.groups())
        if run.mode != "train" or not run.images_per_s:
            continue
        summary = run.summary
        yield Shown(
            "run.json",
            (name,),
            "training images_per_s",
            plain(summary["images_per_s"]),
            shown_ends(summary.get("images_per_s_low"), summary.get("images_per_s_high")),
        )
        yield Shown("run.json", (name,), "top1", percent(summary["eval_top1"]))
        [record] = [one for one in load_run(str(run.path)).records if isinstance(one, Summary)]
        line, *_ = describe_record(record)
        value, words = CONSOLE_RATE.search(line).groups()
        match = INTERVAL.search(words)
        ends = match and match.groups()
        yield Shown("console", (name,), "training images_per_s", value, ends)
        yield Shown("console", (name,), "top1", re.search(r"top-1 ([\d.]+)%", line)[1])


def cost(folder: Folder):
    """What runs cost, as text and as JSON."""
    names = [name for name in folder.trained if len(folder.settings[name]) < 4]
    for name, costs in json.loads(folder.command("cost", *names, "--json"))["costs"].items():
        stage = "training images_per_s"
        ends = shown_ends(costs["images_per_s_low"], costs["images_per_s_high"])
        yield Shown("cost --json", (name,), stage, plain(costs["images_per_s"]), ends)
        for metric, of in (
            ("images_per_s_per_usd_per_hour",) * 2,
            ("usd_per_million_images",) * 2,
            ("wall_s",) * 2,
            ("usd", "wall_usd"),
        ):
            yield Shown("cost --json", (name,), metric, plain(costs[of]))
    name = ""
    for line in folder.command("cost", *names).splitlines():
        title, _, text = line.strip().rpartition(": ")
        if not line.startswith(" "):
            name = line
        elif title in COST_LINES:
            metric = name_of("training", COST_LINES[title])
            yield Shown("cost", (name,), metric, text.split()[0])


def compare(folder: Folder):
    """The ratios of all pairs of settings that were trained, as text, as JSON and in the API."""
    folders = {
        setting: setting[0].rpartition("/")[0]
        for setting in folder.trained_settings
        if not setting[0].startswith("sweep")
    }
    by_folder = {path: setting for setting, path in folders.items()}
    for base, *others in itertools.permutations(folders.values()):
        document = json.loads(folder.command("compare", base, *others, "--json"))
        for one in document["comparisons"]:
            first, second = by_folder[one["base"]], by_folder[one["other"]]
            stage = one["stages"]["training"]
            output = "compare --json"
            ends = shown_ends(stage["ratio_low"], stage["ratio_high"], "{:.3f}".format)
            yield Shown(output, (first, second), "ratio", f"{stage['ratio']:.3f}", ends)
            yield said(output, (second, first), stage["verdict"])
            for names, rates in zip((first, second), stage["images_per_s"], strict=True):
                for name, rate in zip(names, rates, strict=True):
                    yield Shown(output, (name,), "training images_per_s", plain(rate))
        text = folder.command("compare", base, *others)
        lines = re.findall(rf"B / A ({NUMBER}) ?(\([^)]*\))?.*?: (.*)", text)
        assert len(lines) == len(others), text
        for other, (ratio, ends, words) in zip(others, lines, strict=True):
            pair = by_folder[base], by_folder[other]
            yield Shown("compare", pair, "ratio", ratio, ends_of(ends))
            yield said("compare", pair[::-1], words)
    for pair in itertools.permutations(folder.trained_settings, 2):
        paths = [[str(folder.root / name) for name in setting] for setting in pair]
        try:
            found = jaxbench.compare(*paths)
        except BadInput as error:
            yield Said("Comparison", pair, 0, str(error))
        else:
            yield said("Comparison", pair[::-1], found.verdict)


def sweep(folder: Folder):
    """A sweep that has ended: its console, its files, its live table, the API."""
    path = folder.root / "sweep"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "400")
        result, printed = ended_sweep(path, GRID)
    by_point = {
        (folder.batches[name], re.search(r"seed=(\d)", name)[1]): name
        for name in folder.trained
        if name.startswith("sweep")
    }
    of_batch = {batch: folder.settings[name] for (batch, _), name in by_point.items()}
    rate, columns = "training images_per_s", []
    for line in printed.getvalue().splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] == "batch_size":
            columns = cells
        row = dict(zip(columns, cells, strict=False))
        if line.startswith("seeds") or cells == columns or len(cells) != len(columns):
            continue
        if "status" in row:
            of, score = (by_point[row["batch_size"], row["seed"]],), row["top-1 [%]"]
            ends = ends_of(row["95 % interval"])
            yield Shown("sweep", of, rate, row["images/s"].lstrip("* "), ends)
            yield Shown("sweep", of, "top1", score.lstrip("* "))
        elif metric := {"images/s": rate, "top-1 [%]": "top1"}.get(row["over seeds"]):
            ends = ends_of(row["95 % interval"])
            yield Shown("sweep, seeds", of_batch[row["batch_size"]], metric, row["mean"], ends)
    for name in ("sweep.csv", "SweepResult.rows"):
        rows = conftest.table(path / name) if name.endswith(".csv") else result.rows
        for row in rows:
            of = (by_point[str(row["batch_size"]), str(row["seed"])],)
            ends = shown_ends(row["images_per_s_low"], row["images_per_s_high"])
            yield Shown(name, of, rate, plain(float(row["images_per_s"])), ends)
            yield Shown(name, of, "top1", percent(float(row["eval_top1"])))
    for row in conftest.table(path / "seeds.csv"):
        metrics = {"images_per_s": (rate, plain), "eval_top1": ("top1", percent)}
        if row["figure"] in metrics:
            metric, show = metrics[row["figure"]]
            mean, *ends = (row[f"geometric_mean{end}"] for end in ("", "_low", "_high"))
            of = of_batch[row["batch_size"]]
            yield Shown("seeds.csv", of, metric, show(float(mean)), shown_ends(*ends, show))
    yield from live_table(path, by_point)


def live_table(path, by_point):
    from rich.console import Console

    trials = make_trials("cnn10", [], {n: [*map(str, v)] for n, v in GRID.items()})
    results = read_results(path / "results.jsonl")
    written = io.StringIO()
    console = Console(file=written, width=200)
    console.print(LiveTable({one.key: one for one in trials}, {}, results.get))
    for batch, seed, value in re.findall(
        rf"batch_size=(\d+) seed=(\d) .* ({NUMBER})\s*$", written.getvalue(), re.MULTILINE
    ):
        yield Shown("live table", (by_point[batch, seed],), "training images_per_s", value)


def cards(folder: Folder):
    """Two cards: each is one run of its machine, and what is compared are those runs."""
    pair = tuple((f"cards/{host}/{made.RUN}",) for host in "ab")
    metric = "train_step images_per_s"
    for table in folder.tables:
        if table.section == "Cards" and table.title == "Images per second":
            for cells in table.rows:
                row = dict(zip(table.columns, cells, strict=False))
                if (cells[0], row["precision"]) == ("resnet50", "bf16") and row["card"] != "–":
                    text = row["images/s (95 % interval)"]
                    of = pair[int(row["card"][1]) - 1]
                    yield Shown("report, cards", of, metric, text.split()[0], ends_of(text))
    paths = [str(folder.root / "cards" / host) for host in "ab"]
    document = json.loads(folder.command("compare", *paths, "--json"))
    name = "images_per_s, network resnet50, precision bf16, batch 256"
    [figure] = [one for one in document["figures"] if one["figure"] == name]
    for of, value in zip(pair, figure["values"], strict=True):
        yield Shown("compare cards --json", of, metric, plain(value))
    words = json.dumps(figure)
    order = next((order for word, order in ORDERS.items() if word in words), 0)
    yield Said("compare cards --json", pair[::-1], order, words)
    text = folder.command("compare", *paths)
    line = re.search(r"^resnet50 bf16, batch 256:\n(images_per_s .*)$", text, re.MULTILINE)[1]
    order = next((order for word, order in ORDERS.items() if word in line), 0)
    yield Said("compare cards", pair[::-1], order, line)
    runs = [str(folder.root / of[0]) for of in pair]
    yield said("compare their runs", pair[::-1], jaxbench.compare(*runs).verdict)


OUTPUTS = (
    *(tables, sentences, charts, csv_report, console_stages, run_outputs),
    *(cost, compare, sweep, cards),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Folder:
    return Folder(tmp_path_factory.mktemp("agreement"))


@pytest.fixture(scope="module")
def read(folder) -> list[Shown | Said]:
    """What all outputs show and say."""
    return [one for output in OUTPUTS for one in output(folder)]


def short(of) -> str:
    """Names what a value is of: a run, the runs of a setting, a pair of settings."""
    if isinstance(of[0], tuple):
        return " and ".join(map(short, of))
    return of[0] + (f" and {len(of) - 1} more" if len(of) > 1 else "")


def disagreements(shown: list[Shown]) -> list[str]:
    """A line for each value, and each interval, of which two outputs show different ones."""
    first: dict[tuple, Shown] = {}
    lines = []
    for one in shown:
        for part in ("value", "ends"):
            text = getattr(one, part)
            if text != NO_PLACE:
                other = first.setdefault((one.of, one.metric, part), one)
                if getattr(other, part) != text:
                    what = f"{one.metric} of {short(one.of)}"
                    lines.append(
                        f"{what}: {other.output} shows {other.value} ({other.ends}), "
                        f"{one.output} {one.value} ({one.ends})"
                    )
    return [*dict.fromkeys(lines)]


KINDS = {
    "the rate of a run": lambda one: len(one.of) == 1 and one.metric.endswith("images_per_s"),
    "the rate of a setting": lambda one: one.metric.endswith("images_per_s") and len(one.of) > 1,
    "efficiency": lambda one: one.metric.endswith("efficiency"),
    "the score of a run": lambda one: one.metric == "top1" and len(one.of) == 1,
    "the score of seeds": lambda one: one.metric == "top1" and len(one.of) > 1,
    "cost": lambda one: "usd" in one.metric or one.metric == "wall_s",
    "a ratio": lambda one: one.metric == "ratio",
}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_show_the_same(read, kind):
    shown = [one for one in read if isinstance(one, Shown) and KINDS[kind](one)]
    assert len({one.output for one in shown}) > 1, f"fewer than two outputs show {kind}"
    lines = disagreements(shown)
    assert not lines, "\n".join(lines)


def test_no_output_claims_an_order_that_another_one_denies(read):
    verdicts = [one for one in read if isinstance(one, Said)]
    lines = {}
    for one, other in itertools.combinations(verdicts, 2):
        order = other.order * (1 if one.pair == other.pair else -1)
        if {*one.pair} == {*other.pair} and order != one.order:
            words = f"{one.output} says {one.words!r}, {other.output} {other.words!r}"
            lines[one.output, other.output, frozenset(one.pair)] = f"{short(one.pair)}: {words}"
    assert any(one.order for one in verdicts)
    assert not lines, "\n".join(lines.values())


def test_every_output_is_read(read):
    """Or a pattern that no longer matches would leave an output unchecked."""
    outputs = {one.output for one in read}
    expected = {"console", "console, stages", "run.json", "Run", "repr(Run)", "report.csv"}
    expected |= {"report, 'Runs'", "report, 'All rates'", "report, 'Measured'"}
    expected |= {"report, 'What rates and runs cost'", f"report, {MACHINES!r}"}
    expected |= {"report, first sentence"}
    expected |= {"report, 'Seeds together'", "report, cards", "cost", "cost --json", "compare"}
    expected |= {"compare --json", "Comparison", "sweep", "sweep, seeds", "sweep.csv", "seeds.csv"}
    expected |= {"SweepResult.rows", "live table", "compare cards", "compare cards --json"}
    assert expected <= outputs, expected - outputs
    assert any(output.startswith("page, chart") for output in outputs)


def test_a_value_with_an_interval_has_one_form(folder, read):
    """NAME with NAME_low and NAME_high: in records, cards, comparisons, costs and predictions."""
    predicted = ("--experiment=cnn10", "--target=gpu:h100", "--usd_per_hour=2", "--json")
    folder.command("main", "--mode=describe", *predicted)
    files = [*folder.root.rglob("run.json"), *folder.root.rglob("card.json")]
    documents = [*folder.documents, *(json.loads(file.read_text()) for file in files)]
    found = set()

    def look(part):
        if isinstance(part, dict):
            assert not [name for name in part if re.match(r"interval(?!_from)|.*_interval", name)]
            for end, other in itertools.permutations(("_low", "_high")):
                names = [name.removesuffix(end) for name in part if name.endswith(end)]
                # The ends of 90 % belong to the rate, too.
                wanted = {one for n in names for one in (n.removesuffix("_90"), f"{n}{other}")}
                assert wanted <= part.keys(), part
                found.update(names)
        for one in part.values() if isinstance(part, dict) else part:
            if isinstance(one, dict | list):
                look(one)

    look(documents)
    expected = {"images_per_s", "images_per_s_90", "value", "ratio", "training_usd", "training_s"}
    assert expected | {"usd_per_million_images"} <= found


def test_the_page_shows_what_the_markdown_shows(folder):
    """Their sections are the same."""
    words = re.sub(r"<[^>]+>", "", folder.texts["html"])
    words = re.sub(r"\s+", " ", html.unescape(words))
    for one in folder.tables:
        cells = [cell.removeprefix("≠ ") for row in one.rows for cell in row]
        missing = [cell for cell in cells if cell not in words]
        assert not missing, f"{one.title}: the page lacks {missing[:3]}"


def test_the_csv_of_a_report_is_the_table_of_load_runs(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = jaxbench.load_runs(folder.root)
    assert len(rows) > 20 and [*rows[0]] == [*folder.rows[0]]
    words = [{n: "" if v is None else str(v) for n, v in row.items()} for row in rows]
    assert words == folder.rows


def test_rows_of_a_sweep_keep_text_as_text(folder):
    result, _ = ended_sweep(folder.root / "sweep", GRID)
    assert {row["hostname"] for row in result.rows} == {"1234"}
    assert {type(row["images_per_s"]) for row in result.rows} == {float}
    assert {row["seed"] for row in result.rows} == {0, 1, 2}


# One case each, in a folder of its own.


def report_of(path) -> str:
    """The report as Markdown, as users read it."""
    out, _ = write_report([str(path)], f"{path}.md")
    return unescaped(out.read_text())


def first_rows(text: str) -> dict[str, dict[str, str]]:
    """{title of a table: its first row}."""
    rows = {one.title: (one.columns, one.rows[0]) for one in tables_of(text)}
    return {title: dict(zip(*row, strict=False)) for title, row in rows.items()}


def first_sentences(text: str) -> list[str]:
    return re.findall(r"^### .* · .*\n\n([^|#\n].*)$", text, re.MULTILINE)


def write_setting(folder, rates, first=0, epochs=12, **fields):
    """Writes a setting's runs, one every other minute from the first on."""
    for number, rate in enumerate(rates):
        write_training(folder / f"{number}", rate, epochs, minute=first + 2 * number, **fields)
    return folder


SAVE_DOTS = {"config": {"remat": "save_dots"}}
FLAG = {"environment": {"variables": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}}}
DEFAULT = "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution,-reduce"
DEFAULT_FLAG = {"environment": {"variables": {"XLA_FLAGS": DEFAULT}}}
BF16 = {"config": {"precision": "bf16"}}


@pytest.mark.parametrize("epochs", [2, 4, 6])
def test_a_short_run_of_a_faster_setting_is_named_first(tmp_path, epochs):
    write_setting(tmp_path / "runs/long", [1004.0])
    write_setting(tmp_path / "runs/short", [2000.0], 1, epochs, **SAVE_DOTS)
    [sentence] = first_sentences(report_of(tmp_path / "runs"))
    assert "is fastest" not in sentence, sentence
    assert 0 < sentence.index("2,000") < sentence.index("1,004"), sentence


UNDECIDED = {
    "one run each": ([1000.0], [1500.0]),
    "two, which spread": ([1000.0, 1400.0], [1300.0, 1100.0]),
    "one against three": ([1000.0], [1100.0, 1110.0, 1105.0]),
    "three, equal": ([1000.0, 1040.0, 980.0], [1010.0, 1003.0, 1015.0]),
}


@pytest.mark.parametrize(("first", "second"), UNDECIDED.values(), ids=UNDECIDED)
def test_no_verdict_without_enough_repeats(tmp_path, first, second):
    paths = [
        write_setting(tmp_path / "runs/a", first),
        write_setting(tmp_path / "runs/b", second, 1, **FLAG),
    ]
    text = report_of(tmp_path / "runs")
    verdict = jaxbench.compare(*map(str, paths)).verdict
    assert verdict.startswith(REFUSED), verdict
    [sentence] = first_sentences(text)
    assert not re.search(r"is fastest|is faster", sentence), sentence
    said_equal = "No significant difference" in sentence
    assert said_equal == (verdict == "no significant difference"), (sentence, verdict)


def test_a_faster_setting_with_repeats_is_found(tmp_path):
    """And named so by every output."""
    paths = three_each(tmp_path / "runs")
    [sentence] = first_sentences(report_of(tmp_path / "runs"))
    match = FASTEST.search(sentence)
    assert match and "bf16" in match["setting"] and match["rate"] == "1,200", sentence
    comparison = jaxbench.compare(*paths)
    assert comparison.verdict == "faster"
    ratio, *ends = (f"{one:.3f}" for one in (comparison.ratio, comparison.low, comparison.high))
    assert f"its rate is {ratio} ({' to '.join(ends)}) times that of" in sentence, sentence


def test_ratios_that_are_judged_together_are_said_to_be(tmp_path):
    """The first two alone differ: three settings are judged as compare judges all of them."""
    paths = [
        write_setting(tmp_path / f"runs/{name}", [base - 5, base, base + 5], first, **fields)
        for first, (name, base, fields) in enumerate(
            [("a", 1018.0, {}), ("b", 1000.0, BF16), ("c", 900.0, {"config": {"batch_size": 64}})]
        )
    ]
    [sentence] = first_sentences(report_of(tmp_path / "runs"))
    first, second, third = map(str, paths)
    assert jaxbench.compare(second, first).verdict == "faster"
    text = run_command(tmp_path, first, second, third, module="jaxbench.compare").stdout
    assert "No significant difference between the first two" in sentence, sentence
    assert "no significant difference" in text, text
    assert sentence.endswith(" 2 ratios are judged together."), sentence


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("other", [SAVE_DOTS, FLAG, DEFAULT_FLAG])
def test_no_two_settings_have_one_name(tmp_path, other, runs):
    """In a sentence, in a table, in a chart."""
    write_setting(tmp_path / "runs/a", [1000.0, 1010.0, 990.0][:runs])
    write_setting(tmp_path / "runs/b", [1317.0, 1320.0, 1310.0][:runs], 1, **other)
    text = report_of(tmp_path / "runs")
    words = ("remat", "xla_gpu_autotune_level", "default XLA flags")
    word = words[[SAVE_DOTS, FLAG, DEFAULT_FLAG].index(other)]
    sentences = [one for one in first_sentences(text) if "1,31" in one]
    assert sentences and all(word in one for one in sentences), sentences
    for cells in next(t for t in tables_of(text) if t.title == MACHINES).rows:
        assert any(word in cell for cell in cells), cells


@pytest.mark.parametrize("epochs", [4, 5, 6])
def test_a_range_is_no_interval(tmp_path, epochs):
    """Of 3 to 5 epochs nobody has a 95 % interval: neither the rate nor a ratio of it."""
    paths = [
        write_setting(tmp_path / "runs/a", [1000.0], epochs=epochs),
        write_setting(tmp_path / "runs/b", [1100.0], 1, epochs, **SAVE_DOTS),
    ]
    assert [jaxbench.Run(path / "0").images_per_s_low for path in paths] == [None, None]
    comparison = jaxbench.compare(*map(str, paths))
    assert comparison.low is comparison.high is None, comparison.rows
    assert not re.search(ENDS, str(comparison).partition("B / A")[2].partition(":")[0])


@pytest.mark.parametrize(
    ("seeds", "step", "spread"), [(2, 20, 0.005), (3, 1, 0.05), (6, 20, 0.005)]
)
def test_seeds_are_summarised_in_one_way(tmp_path, seeds, step, spread):
    """A sweep's table and seeds.csv, and of the same runs the report, however wide each one is."""
    scores = [0.90, 0.94, 0.97, 0.91, 0.93, 0.99][:seeds]
    trials = make_trials("cnn10", [], {"seed": [*map(str, range(seeds))]})
    sweep_dir = tmp_path / "sweep"
    for number, (trial, top1) in enumerate(zip(trials, scores, strict=True)):
        how = {"config": {"seed": number}, "minute": number, "spread": spread, "top1": top1}
        write_trial(sweep_dir, trial, 1500 + step * number, **how)
    ended_sweep(sweep_dir, {"seed": range(seeds)})
    rows = {row["figure"]: row for row in conftest.table(sweep_dir / "seeds.csv")}
    found = {one.title: one for one in tables_of(report_of(sweep_dir))}
    curve = next(title for title in found if title.endswith("top-1 on the test split"))
    for metric, show, shown in (
        ("images_per_s", plain, [(found[MACHINES], "images/s")]),
        ("eval_top1", percent, [(found[MACHINES], "top-1 [%]")]),
        ("eval_top1", percent, [(found[curve], "top-1 [%]")]),
        ("eval_top1", percent, [(found["Seeds together"], "score [%]")]),
    ):
        mean, *ends = (rows[metric][f"geometric_mean{end}"] for end in ("", "_low", "_high"))
        expected = [show(float(value)) for value in (mean, *ends) if value]
        assert len(expected) == (3 if seeds > 2 else 1), f"{metric} in seeds.csv: {expected}"
        for one, column in shown:
            cells = [c for t, c in zip(one.columns, one.rows[-1], strict=True) if column in t]
            # Of a mean and an interval in two columns, or in one; a chart has four digits.
            numbers = re.findall(NUMBER, re.sub(r"; .*|only .*", "", " ".join(cells)))
            numbers = [float(number.replace(",", "")) for number in numbers]
            wanted = [float(number.replace(",", "")) for number in expected]
            words = f"seeds.csv has {metric} {expected}, {one.title!r} {column} {cells}"
            assert numbers[:1] == pytest.approx(wanted[:1], abs=0.006), words
            # A curve has a band from the least to the greatest.
            if one.title != curve:
                ends = ends_of(" ".join(cells))
                assert (ends is not None) == (seeds > 2), words
                assert not ends or [float(e.replace(",", "")) for e in ends] == pytest.approx(
                    wanted[1:], abs=0.006
                ), words


@pytest.mark.parametrize(
    ("ends", "n", "failed"),
    [(("diverged", "done"), 2, 1), (("interrupted", "done"), 3, 0), (("done", "diverged"), 3, 0)],
)
def test_of_a_seed_that_was_run_again_the_first_that_ended_counts(tmp_path, ends, n, failed):
    """In the table of machines, and in those of seeds: of scores, and of times to the target."""
    runs = [(0, "done"), (1, ends[0]), (2, "done"), (1, ends[1])]
    for number, (seed, status) in enumerate(runs):
        fields = {"config": {"seed": seed}, "top1": 0.9, "target_accuracy": 0.95}
        write_training(tmp_path / f"{number}", 1500, minute=number, status=status, **fields)
    found = first_rows(report_of(tmp_path))
    [score] = [text for title, text in found[MACHINES].items() if title.startswith("top-1")]
    assert f"{n} seeds{f', {failed} failed' * bool(failed)})" in score
    seeds = found["Seeds together"]
    assert (seeds["n"], seeds["seeds that failed"]) == (str(n), str(failed))
    assert seeds["seeds that ended"] == "3 of 3"


def three_each(folder, first=(1000.0, 1010.0, 990.0), second=(1200.0, 1210.0, 1190.0)):
    """Three runs of fp32, and three faster ones of bf16."""
    write_setting(folder / "a", first)
    write_setting(folder / "b", second, 1, **BF16)
    return [str(folder / name) for name in "ab"]


ELSEWHERE = attempts({"step": 300, "elapsed_s": 5.0, "lost_s": 1.0, "num_devices": 4})


@pytest.mark.parametrize(
    ("epochs", "fields", "told"),
    [
        (12, {"status": "interrupted"}, "its status is interrupted"),
        (12, {"attempts": ELSEWHERE}, "was resumed on other devices"),
        # The first epoch is warm-up: it has no rate, and is no repeat.
        (1, {}, "bf16, batch 128 is fastest: 1,200"),
    ],
)
def test_what_is_no_repeat_is_none_in_every_output(tmp_path, epochs, fields, told):
    paths = three_each(tmp_path / "runs")
    write_training(tmp_path / "runs/b/3", 3000.0, epochs, minute=9, **BF16, **fields)
    text = report_of(tmp_path / "runs")
    [sentence] = first_sentences(text)
    assert told in sentence and "3,000" not in sentence, sentence
    done = run_command(tmp_path, *paths, module="jaxbench.compare")
    said = done.stdout + done.stderr
    assert ("faster" in said) == ("fastest" in told), said
    assert "fastest" in told or told in said, said


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "interrupted"}, "interrupted"),
        ({"status": "invalid"}, "invalid"),
        ({"attempts": ELSEWHERE}, "resumed on other devices"),
    ],
)
@pytest.mark.parametrize("write", [write_training, throughput])
def test_a_higher_rate_that_cannot_be_used_is_named(tmp_path, write, fields, why):
    write(tmp_path / "runs/a", 1000.0)
    write(tmp_path / "runs/b", 2000.0, **BF16, **fields)
    [sentence] = first_sentences(report_of(tmp_path / "runs"))
    assert "is the only setting with a rate that can be used" in sentence, sentence
    assert sentence.endswith(
        f"Left out: bf16, batch {{}} ({why}, 2,000 images/s).".format(
            re.search(r"batch (\d+)", sentence)[1]
        )
    ), sentence


def test_all_ratios_of_a_page_are_judged_together(tmp_path):
    """Those of several machines, too."""
    for number, devices in enumerate((1, 2, 4)):
        environment = {"environment": {"num_devices": devices}}
        for first, other in enumerate(({}, BF16)):
            folder = tmp_path / f"runs/{number}{first}"
            write_setting(folder, [1000.0, 1010.0], first, **environment, **other)
    sentences = first_sentences(report_of(tmp_path / "runs"))
    assert len(sentences) == 3
    assert all(one.endswith(" 3 ratios are judged together.") for one in sentences), sentences


@pytest.mark.parametrize(("factor", "runs"), [(500.0, 3), (1.8, 2)])
def test_a_ratio_of_any_size_has_its_interval(tmp_path, factor, runs):
    rates = [1000.0, 1010.0, 990.0][:runs]
    others = [factor * rate for rate in rates]
    if runs == 2:  # so far apart that the interval has no end
        others[1] *= 1e3
    first, second = three_each(tmp_path / "runs", rates, others)
    done = run_command(tmp_path, first, second, module="jaxbench.compare", env={"COLUMNS": "400"})
    text = done.stdout
    [ends] = re.findall(r"B / A [\d.]+ \((.*?)\)", text)
    assert (ends == "too few runs for an interval") == (runs == 2), text
    report_of(tmp_path / "runs")


def test_a_step_of_scaling_that_failed_leaves_no_verdict(tmp_path):
    for number, (name, factor) in enumerate([("a", 1.0), ("b", 1.1)] * 3):
        rates = {1: 1000.0 * factor, 2: 1900.0 * factor if number < 5 else None}
        recorded_run(
            tmp_path / f"runs/{name}/{number}",
            [scaling_record(n, r, **({} if r else {"status": "oom"})) for n, r in rates.items()],
            mode="scaling",
            config={"precision": {"a": "fp32", "b": "bf16"}[name]},
            environment={"num_devices": 2, "device_kind": "TPU v5e"},
            summary={"telemetry": QUIET},
            started_at=f"2026-01-01T00:0{number}:00+00:00",
            pid=number,
        )
    text = report_of(tmp_path / "runs")
    [of_two] = [sentence for sentence in first_sentences(text) if "2,090" in sentence]
    assert "fastest" not in of_two and "not all runs of a setting have this rate" in of_two, of_two
    compared = run_command(tmp_path, "runs/a", "runs/b", module="jaxbench.compare").stdout
    assert "scaling on 2" not in compared and "scaling on 1" in compared, compared


def test_an_interval_that_says_nothing_is_not_shown(tmp_path):
    for number in range(80):
        config = {"config": {"batch_size": 64 * (number % 40 + 1)}}
        rate = 1e6 if number == 79 else 1000.0 + number
        write_training(tmp_path / f"runs/{number}", rate, minute=number, **config)
    [sentence] = first_sentences(report_of(tmp_path / "runs"))
    assert "(too few runs for an interval). 39 ratios are judged together." in sentence, sentence


@pytest.mark.parametrize("lost", ["no run directory", "never reached"])
def test_seeds_that_failed_are_counted_and_summarised_in_one_way(tmp_path, lost):
    """A seed that left nothing, and one that takes endlessly."""
    sweep_dir, reached = tmp_path / "sweep", {"score": "top1", "value": 0.9}
    trials = make_trials("cnn10", [], {"seed": ["0", "1", "2", "3"]})
    for number, trial in enumerate(trials):
        if number == 3 and lost == "no run directory":
            outcome = {"key": trial.key, "place": trial.place}
            write_results(sweep_dir, outcome | {"status": "oom", "reason": "oom at start"})
            continue
        how = {"config": {"seed": number}, "minute": number, "target_accuracy": 0.9}
        how |= {"top1": 0.5 if number == 3 else 0.95, "summary": {"target_accuracy": reached}}
        write_trial(sweep_dir, trial, 1500.0, **how)
    ended_sweep(sweep_dir, {"seed": range(4)})
    rows = {row["figure"]: row for row in conftest.table(sweep_dir / "seeds.csv")}
    found = first_rows(report_of(sweep_dir))
    failed = 1 if lost == "no run directory" else 0
    assert rows["eval_top1"]["not_done"] == str(failed)
    together = found["Seeds together"]
    assert together.get("seeds that failed") == str(failed)
    [score] = [text for title, text in found[MACHINES].items() if title.startswith("top-1")]
    assert (", 1 failed" in score) == bool(failed), score
    time = together["time [s], mean (95 % interval)"]
    # Of times without an end there is no geometric mean, but a median.
    assert time.split()[0] == plain(float(rows["target_s"]["median"])), (time, rows)
