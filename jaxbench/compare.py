"""Compare rates: `jaxbench compare BASE OTHER...`, or one SWEEP.

Each argument is a run directory, a folder of repeats of one run, or a sweep (its trials are
matched by their overrides; other seeds are repeats); or all are cards, see below. The first setting
of a single SWEEP is compared with each of its others.
For each OTHER its rate over BASE's is printed with an interval, for every stage that both have.
`faster` or `slower` is printed only

* of the same work: network, images and data;
* of two runs or more on each side, interleaved (A B A B) if both sides ran on one host;
* of a host that other processes did not use, as the runs' telemetry says;
* without settings for debugging, which distort rates;
* if the interval, which contains what changes between runs, excludes 1. The intervals of all ratios
  in one command hold together at 95 %.

If two trainings have the same experiment and seed, it says whether their losses are equal, digit
for digit, or from which epoch on they differ.

With --baseline BASE is what the others must reach, to within --tolerance. The exit code is 0 if
their intervals show that they do, 1 if one shows that they do not or is missing, and 3 if the runs
cannot decide.

Of two cards (card.json, or a folder that holds one) each figure that both have is printed with
their ratio: a card is one run, so there is no verdict. Of more, from devices of one kind: the
outliers by node and device, and each figure's median over the fleet and its spread.
"""

import json
import math
import os
from typing import Any

from absl import flags

from jaxbench.analysis.rate import Outcome
from jaxbench.cards.card_file import is_card, read_card
from jaxbench.cards.compare import compare_cards, describe_cards
from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.errors import BadInput
from jaxbench.paths import user_path
from jaxbench.records.same import is_work
from jaxbench.reports import sides
from jaxbench.terminal import print_wrapped, printable

_BASELINE, _TOLERANCE, _JSON = define_flags("compare")


def main(paths: list[str]) -> int:
    """Compare the first with each of the others; return the exit code."""
    if not paths:
        raise BadInput("give two or more runs, sweeps or cards: BASE OTHER..., or one SWEEP")
    if not math.isfinite(_TOLERANCE.value):
        raise BadInput(f"--tolerance={_TOLERANCE.value}: must be a fraction, such as 0.02")
    if flags.FLAGS["tolerance"].present and not _BASELINE.value:
        raise BadInput("--tolerance: needs --baseline")
    if any(map(is_card, paths)):
        return _compare_cards(paths)
    base, *others = [sides.read_sides(path) for path in paths]
    matches = [one for other in others for one in sides.match_trials(base, other)]
    matches = matches or sides.match_settings(base)
    missing = [one for one in matches if isinstance(one, str)]
    comparisons = sides.judge([one for one in matches if isinstance(one, sides.Match)])
    if not comparisons:
        raise BadInput("; ".join(missing))
    for comparison in comparisons if _BASELINE.value else ():
        if different := list(filter(is_work, comparison["differences"])):
            names = ", ".join(different)
            raise BadInput(f"--baseline: needs runs of the same work; these differ in {names}")
    if _JSON.value:
        print(json.dumps({"comparisons": comparisons, "not_compared": missing}))
    else:
        for comparison in comparisons:
            print_wrapped(*sides.describe_comparison(comparison))
        print_wrapped(*map(printable, missing))
    return _decide(comparisons, missing) if _BASELINE.value else 0


def _decide(comparisons: list[dict[str, Any]], missing: list[str]) -> int:
    """Print which ratios are not shown to reach the baseline; return the exit code."""
    least, slower, undecided = 1 - _TOLERANCE.value, [], []
    for comparison in comparisons:
        for stage, ratio in comparison["stages"].items():
            name = printable(f"{comparison['other']}: {stage}")
            if ratio["verdict"] == Outcome.INCONCLUSIVE:
                undecided.append(f"{name}: {ratio['verdict']}: {'; '.join(ratio['reasons'])}")
            elif ratio["ratio_high"] < least:
                slower.append(name)
            elif ratio["ratio_low"] < least:
                undecided.append(f"{name}: the interval contains {least:g}; measure more repeats")
    if not _JSON.value:
        if slower:
            names = ", ".join(slower)
            percent = f"{100 * _TOLERANCE.value:g}%"
            print_wrapped(f"slower than the baseline by more than {percent}: {names}")
        print_wrapped(*(f"undecided: {line}" for line in undecided))
    # What the other side has no result for is no pass.
    return 1 if slower or missing else 3 if undecided else 0


def _compare_cards(paths: list[str]) -> int:
    if len(paths) < 2:
        raise BadInput("give two or more cards")
    if no_cards := [path for path in paths if not is_card(path)]:
        if not os.path.exists(user_path(no_cards[0])):
            raise BadInput(f"{no_cards[0]}: no such file or folder")
        raise BadInput(f"{no_cards[0]}: is no card; give only cards, or only runs")
    if _BASELINE.value:
        raise BadInput("--baseline: is for runs; a card has its own verdict")
    cards = [read_card(path) for path in paths]
    if _JSON.value:
        print(json.dumps(compare_cards(cards)))
    else:
        print_wrapped(*describe_cards(cards))
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
