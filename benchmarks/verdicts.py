"""How often verdicts and intervals are wrong: simulated runs of known rates, judged by jaxbench.

    python benchmarks/verdicts.py [--comparisons=3000]

The first table compares sides of the same rate, as `jaxbench.compare` does: how often one of its
verdicts is `faster` or `slower`, which must not be above 6 %, and how often there is a verdict at
all. Beside it, how often it notices that B is 3 % slower, and what drift adds to the ratio.
A design is the order of A's and B's runs in time; drift goes from the first run to the last.

The second table draws windows of one run: how often the 95 % interval contains the true median, how
often it lies above and below it, and how often the windows are said not to be independent. AR(1) r:
each window resembles the one before it, with correlation r.

The third table is of whole pages: runs of equal settings, read by the project's own readers, and
what the overview and `jaxbench compare` say of them. A page is wrong if any of
these claims a difference. Beside it, how many pages have any verdict, and how often the page and
`compare` name a setting that is 10 % faster. Noise: 1 % between the epochs of a run, 3 % between
runs.

Exit code 1 if the verdicts of a design or its pages are wrong in more than 6 %, if one that should
see the difference does not, or if independent windows have an interval that is wrong, or a warning,
in more than 6 %. The numbers are the same each time (--seed).
"""

import dataclasses
import math
import pathlib
import random
import re
import statistics
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxbench.analysis.rate import Estimate, Outcome, design_doubts, verdict
from jaxbench.analysis.statistics import dependent, median_interval
from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.reports.collect import Collection
from jaxbench.reports.context import ReportContext
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.sections.overview import overview
from jaxbench.reports.sides import Side, describe_comparison, judge, match_or_reason
from jaxbench.reports.write import render_markdown
from jaxbench.schema import decode_document, decode_record

MOST_WRONG, SLOWER = 0.06, 0.03
COUNTS = (6, 7, 8, 9, 10, 11, 12, 15, 20, 30, 50)
CORRELATIONS = (0.0, 0.5, 0.8)
# The part of a run's variance that its windows show, if its own interval is simulated.
_WITHIN = 0.5


@dataclasses.dataclass(frozen=True)
class Design:
    """A comparison of two sides.

    Attributes:
      order: A and B, in the order of their runs.
      spreads: standard deviation between the runs of A and of B, as a fraction of the rate.
      stages: rates that are judged together, each with noise of its own.
      drift: by what fraction the rate falls from the first run to the last.
      days: runs a day, and the standard deviation from day to day.
      is_skewed: whether delays, which are log-normal, make runs slower, in place of normal noise.
      has_windows: whether half of the variance is that of windows, which runs' own intervals show.
      same_host: whether both sides ran on one host.
      must_see: whether the difference must be noticed in half of the comparisons or more.
    """

    order: str
    spreads: tuple[float, float] = (0.005, 0.005)
    stages: int = 1
    drift: float = 0.0
    days: tuple[int, float] = (1, 0.0)
    is_skewed: bool = False
    has_windows: bool = False
    same_host: bool = True
    must_see: bool = True


DESIGNS = {
    "2 + 2 runs, spread 0.2 %": Design("ABAB", (0.002, 0.002)),
    "2 + 2, 5 % and 0.2 %": Design("ABAB", (0.05, 0.002), must_see=False),
    "3 + 3": Design("ABABAB"),
    "5 + 5": Design("ABABABABAB"),
    "10 + 10, 1 %": Design("AB" * 10, (0.01, 0.01)),
    "5 + 5, 1 % and 0.1 %": Design("ABABABABAB", (0.01, 0.001)),
    "2 + 10, 5 % and 0.2 %": Design("BBBABBBBBABB", (0.05, 0.002), must_see=False),
    "2 + 10, 0.4 % and 0.2 %": Design("BBBABBBBBABB", (0.004, 0.002), must_see=False),
    "3 + 10, 2 % and 1 %": Design("BBABBBBABBBAB", (0.02, 0.01), must_see=False),
    "10 + 3, 0.5 % and 1 %": Design("AABAAAABAAABA", (0.005, 0.01)),
    "1 + 10, 3 % and 0.3 %": Design("BBBBBABBBBB", (0.03, 0.003), must_see=False),
    "3 stages, 3 + 3": Design("ABABAB", stages=3),
    "3 stages, 5 + 5": Design("ABABABABAB", stages=3),
    "30 stages and trials, 10 + 10": Design("AB" * 10, stages=30),
    "3 + 3, log-normal delays": Design("ABABAB", is_skewed=True),
    "3 + 10, log-normal delays": Design("BBABBBBABBBAB", is_skewed=True),
    "3 + 3, with own intervals": Design("ABABAB", has_windows=True),
    "3 + 3 interleaved, drift 1 %": Design("ABABAB", drift=0.01, must_see=False),
    "3 + 3 interleaved, drift 3 %": Design("ABABAB", drift=0.03, must_see=False),
    "2 + 2 as A B B A, drift 3 %": Design("ABBA", drift=0.03, must_see=False),
    "10 + 10 interleaved, drift 3 %": Design("AB" * 10, drift=0.03),
    "2 + 10, drift 3 %": Design("BBBABBBBBABB", drift=0.03, must_see=False),
    "5 + 5 interleaved, days 2 %": Design("AB" * 5, days=(2, 0.02), must_see=False),
    "10 + 10 interleaved, days 2 %": Design("AB" * 10, days=(4, 0.02), must_see=False),
    "A A A B B B, drift 3 %": Design("AAABBB", drift=0.03, must_see=False),
    "A A A B B B, days 2 %": Design("AAABBB", days=(3, 0.02), must_see=False),
    "A A A A B A B, drift 3 %": Design("AAAABAB", drift=0.03, must_see=False),
    "two hosts, A A A A A B B B B B": Design("AAAAABBBBB", same_host=False),
}


def draw_stage(design: Design, generator: random.Random, slower: float) -> dict[str, list]:
    """Return the rates of each side's runs, with intervals, in the order of the runs."""
    runs_a_day, between_days = design.days
    rates: dict[str, list[Estimate]] = {"A": [], "B": []}
    for number, side in enumerate(design.order):
        if number % runs_a_day == 0:
            day = generator.gauss(0, between_days)
        noise = generator.gauss(0, 1)
        if design.is_skewed:  # of mean 0 and deviation 1
            noise = (math.exp(0.5) - math.exp(noise)) / math.sqrt(math.e * (math.e - 1))
        spread = design.spreads["AB".index(side)]
        drift = design.drift * number / (len(design.order) - 1)
        level = day - drift + noise * spread + (math.log(1 - slower) if side == "B" else 0)
        half = 1.96 * math.sqrt(_WITHIN) * spread if design.has_windows else 0
        rate = 1000 * math.exp(level)
        ends = (rate * math.exp(-half), rate * math.exp(half)) if half else ()
        rates[side].append(Estimate(rate, *ends))
    return rates


def compare(design: Design, generator: random.Random, slower: float) -> list[tuple[Outcome, float]]:
    """Return the verdict and the ratio of each stage."""
    starts = [
        (side, [f"{number:02}" for number, own in enumerate(design.order) if own == side])
        for side in "AB"
    ]
    doubts = design_doubts(starts, design.same_host)
    rates = [draw_stage(design, generator, slower) for _ in range(design.stages)]
    judged = [verdict(one["A"], one["B"], doubts, design.stages) for one in rates]
    return [(one.outcome, one.ratio.value) for one in judged]


def simulate(design: Design, comparisons: int, seed: int) -> dict[str, float]:
    """Return the fractions of comparisons that are wrong, and that have a verdict; and so on."""
    generator = random.Random(seed)
    equal = [compare(design, generator, 0.0) for _ in range(comparisons)]
    unequal = [compare(design, generator, SLOWER) for _ in range(comparisons // 3)]
    return {
        "wrong": statistics.fmean(any(v in ("faster", "slower") for v, _ in one) for one in equal),
        "decided": statistics.fmean(one[0][0] != "inconclusive" for one in equal),
        "seen": statistics.fmean(verdict == "slower" for one in unequal for verdict, _ in one),
        "bias": statistics.fmean(value for one in equal for _, value in one) - 1,
    }


def simulate_windows(count: int, r: float, times: int, seed: int) -> dict[str, float]:
    """Return how often windows' interval contains the median, and how often they are doubted."""
    generator = random.Random(seed)
    intervals, warned = [], []
    for _ in range(times):
        windows = [generator.gauss(0, 1)]
        while len(windows) < count:
            windows.append(r * windows[-1] + math.sqrt(1 - r * r) * generator.gauss(0, 1))
        intervals.append(median_interval(windows))
        warned.append(any("are not independent" in x for x in dependent("windows", windows)))
    return {
        "contains": statistics.fmean(low <= 0 <= high for _, low, high in intervals),
        "above": statistics.fmean(low > 0 for _, low, _ in intervals),
        "below": statistics.fmean(high < 0 for _, _, high in intervals),
        "warned": statistics.fmean(warned),
    }


# What users read as a claim that settings differ, and as any verdict on them.
_CLAIM = re.compile(r"\b(is fastest|faster|slower|cheaper|better|worse)\b")
_VERDICT = re.compile(rf"{_CLAIM.pattern}|no significant difference")
_WITHIN_RUN, _BETWEEN_RUNS, _FASTER = 0.01, 0.03, 0.10
_EPOCHS = 12
# The same work, so that nothing but the rates forbids a verdict: {setting: remat}.
_SETTINGS = {"A": None, "B": "save_dots", "C": "save_nothing"}
# {design: the order of the runs of its settings on each machine, how many machines, and the drift
# from the first run to the last}.
PAGES = {
    f"{name}{', drift 3 %' if drift else ''}": (order, machines, drift)
    for name, (order, machines) in {
        "1 + 1 runs": ("AB", 1),
        "2 + 2": ("ABBA", 1),
        "3 + 3": ("AB" * 3, 1),
        "5 + 5": ("AB" * 5, 1),
        "1 + 5": ("BBABBB", 1),
        "2 + 10": ("BBBABBBBBABB", 1),
        "1 + 1 + 1": ("ABC", 1),
        "2 + 2 + 2": ("ABCCBA", 1),
        "3 + 3 + 3": ("ABC" * 3, 1),
        "5 + 5 + 5": ("ABC" * 5, 1),
        "3 machines, 10 + 10 each": ("AB" * 10, 3),
    }.items()
    for drift in (0.0, 0.03)
}
_HOST = {"host_busy": False, "devices": {"host": {"other_cpu_percent_mean": 1.0}}}


def make_run(
    number: int, remat: str | None, rate: float, generator: random.Random, devices: int = 1
) -> ReportedRun:
    """Return a training run as it is read from its directory."""
    began = f"2026-01-01T{number // 60:02}:{number % 60:02}:00+00:00"
    document = {
        **{"experiment": "cnn10", "mode": "train", "status": "done", "started_at": began},
        **{"pid": number + 1, "telemetry_s": 1.0, "command_line": [], "working_directory": ""},
        "config": {"batch_size": 128, "precision": "fp32", "seed": 0, "remat": remat or "none"},
        "data": {"feed": "resident", "description": "cifar10"},
        "environment": {"hostname": "lab", "device_kind": "NVIDIA H200", "num_devices": devices},
        "summary": {"status": "done", "telemetry": _HOST},
    }
    records = []
    for epoch in range(1, _EPOCHS + 1):
        images_per_s = rate * math.exp(generator.gauss(0, _WITHIN_RUN))
        time_s = 50_000 / images_per_s
        times = {"train_time_s": time_s, "epoch_time_s": time_s, "elapsed_s": epoch * time_s}
        zeros = dict.fromkeys(("data_wait_s", "eval_time_s", "profiled_steps"), 0)
        line = {"kind": "epoch", "epoch": epoch, "epochs": _EPOCHS, "complete": True}
        line |= {"step": 390 * epoch, "images": 50_000, "images_per_s": images_per_s}
        records.append(decode_record(line | times | zeros))
    name = f"run{number}"
    read = decode_document(document)
    return ReportedRun(f"R{number + 1}", name, pathlib.Path(name), read, records, "done")


def read_page(
    order: str, machines: int, drift: float, generator: random.Random, faster: float
) -> dict[str, str]:
    """Return what the page, and `jaxbench compare` of one machine, say of runs.

    B is faster by a fraction.
    """
    runs: dict[tuple[int, str], list[ReportedRun]] = {}
    for number, setting in enumerate(order):
        for machine in range(machines):
            level = generator.gauss(0, _BETWEEN_RUNS) - drift * number / (len(order) - 1)
            rate = 1000 * math.exp(level) * (1 + faster * (setting == "B"))
            run = make_run(
                number * machines + machine, _SETTINGS[setting], rate, generator, 2**machine
            )
            runs.setdefault((machine, setting), []).append(run)
    context = ReportContext(Collection(runs=[run for each in runs.values() for run in each]))
    sections = filter(None, [overview(context)])
    sides = [Side(setting, runs[machine, setting]) for machine, setting in sorted(runs)]
    return {
        # Markdown escapes letters.
        "page": render_markdown([*sections], "a page").replace("\\", ""),
        "compare": _compare_lines(sides[: len(sides) // machines]),
    }


def _compare_lines(sides: Sequence[Side]) -> str:
    matches = [match_or_reason(sides[0], other) for other in sides[1:]]
    judged: Any = judge([one for one in matches if not isinstance(one, str)])
    return "\n".join(line for one in judged for line in describe_comparison(one))


def simulate_pages(
    order: str, machines: int, drift: float, pages: int, seed: int
) -> dict[str, float]:
    """Return how many pages of equal settings are wrong, have a verdict, and see 10 %."""
    generator = random.Random(seed)
    design = order, machines, drift, generator
    equal = [read_page(*design, 0.0) for _ in range(pages)]
    unequal = [read_page(*design, _FASTER) for _ in range(pages // 3)]
    claims = [re.search(rf"{_SETTINGS['B']}[^.]* is fastest", one["page"]) for one in unequal]
    return {
        "wrong": statistics.fmean(any(map(_CLAIM.search, one.values())) for one in equal),
        "decided": statistics.fmean(any(map(_VERDICT.search, one.values())) for one in equal),
        "seen": statistics.fmean(
            bool(claim) and ": faster" in one["compare"]
            for claim, one in zip(claims, unequal, strict=True)
        ),
    }


def main(rest: list[str]) -> int:
    if rest:
        raise BadInput(f"{rest[0]!r}: flags begin with --")
    times, seed, failed = flags.FLAGS.comparisons, flags.FLAGS.seed, []
    print(f"{'design':<32} {'wrong':>6} {'verdict':>8} {'3 % seen':>9} {'bias':>8}")
    for name, design in DESIGNS.items():
        rates = simulate(design, max(30, times // design.stages), seed)
        print(
            f"{name:<32} {rates['wrong']:>6.1%} {rates['decided']:>8.0%} {rates['seen']:>9.0%} "
            f"{rates['bias']:>+8.2%}"
        )
        if rates["wrong"] > MOST_WRONG or (design.must_see and rates["seen"] < 0.5):
            failed.append(name)
    print(f"\n{'windows':<32} {'contains':>9} {'above':>7} {'below':>7} {'not independent':>16}")
    for r in CORRELATIONS:
        for count in COUNTS:
            name = f"{count}, {f'AR(1) {r}' if r else 'independent'}"
            rates = simulate_windows(count, r, times, seed)
            checked = f"{rates['warned']:.1%}" if count > 7 else "too few"
            print(
                f"{name:<32} {rates['contains']:>9.1%} {rates['above']:>7.1%} "
                f"{rates['below']:>7.1%} {checked:>16}"
            )
            if not r and max(1 - rates["contains"], rates["warned"]) > MOST_WRONG:
                failed.append(name)
    print(f"\n{'pages of equal settings':<32} {'wrong':>6} {'verdict':>8} {'10 % seen':>10}")
    for name, design_of_page in PAGES.items():
        rates = simulate_pages(*design_of_page, max(30, times // 10), seed)
        print(f"{name:<32} {rates['wrong']:>6.1%} {rates['decided']:>8.0%} {rates['seen']:>10.0%}")
        must_see = name == "5 + 5"
        if rates["wrong"] > MOST_WRONG or (must_see and rates["seen"] < 0.5):
            failed.append(f"page: {name}")
    print(f"\nwrong too often, or blind: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    flags.DEFINE_integer("comparisons", 3000, "Simulated comparisons of a design.", lower_bound=30)
    flags.DEFINE_integer("seed", 0, "Of the simulation.")
    entry_point.run_with_arguments(main)
