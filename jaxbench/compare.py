"""Compare rates: `python -m jaxbench.compare BASE OTHER...`.

Each argument is a run directory, a folder of repeats of one run, or a sweep (its trials are
matched by their overrides; other seeds are repeats); or all are cards, see below.
For each OTHER its rate over BASE's is printed with an interval, for every stage that both have.
`faster` or `slower` is said only

* of the same work: network, images, data, batch and precision;
* of repeats, at least two of one side, where the interval, which holds what changes between runs,
  leaves out 1;
* of a host that other processes left alone, as the runs' telemetry says.

With --baseline BASE is what the others must reach: exit code 1 where one is slower by more than
--tolerance.

Of two cards (card.json, or a folder that holds one) each figure that both have is printed, and
whether their intervals overlap. Of more, from devices of one kind: the outliers by node and device,
and each figure's median over the fleet and its spread.
"""

import json
import math
import os
from typing import Any

from absl import flags

from jaxbench.cards.card_file import is_card, read_card
from jaxbench.cards.compare import compare_cards
from jaxbench.cards.compare_text import describe_cards
from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.paths import user_path
from jaxbench.reports.sides import compare_trials, describe_comparison, is_work, read_sides
from jaxbench.terminal import print_wrapped, printable

_BASELINE = flags.DEFINE_bool("baseline", False, "Exit with 1 where one is slower than BASE.")
_TOLERANCE = flags.DEFINE_float(
    "tolerance", 0.02, "With --baseline: by what share one may be slower.", 0.0, 1.0
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")


def main(paths: list[str]) -> int:
    """Compare the first with each of the others; return the exit code."""
    if len(paths) < 2:
        raise BadInput(
            f"give two or more runs, sweeps or cards: BASE OTHER...; given: {len(paths)}"
        )
    if not math.isfinite(_TOLERANCE.value):
        raise BadInput(f"--tolerance={_TOLERANCE.value}: must be a share, such as 0.02")
    if flags.FLAGS["tolerance"].present and not _BASELINE.value:
        raise BadInput("--tolerance: needs --baseline")
    if any(map(is_card, paths)):
        return _compare_cards(paths)
    base, *others = [read_sides(path) for path in paths]
    told = []
    for other in others:
        try:
            told += compare_trials(base, other)
        except BadInput as error:
            # Of several, one that cannot be compared leaves the others their ratios.
            if len(others) == 1 or _BASELINE.value:
                raise
            told.append(str(error))
    found = [one for one in told if isinstance(one, dict)]
    missing = [one for one in told if isinstance(one, str)]
    if not found:
        raise BadInput("; ".join(missing))
    if _BASELINE.value:
        _check_baseline(found)
    if _JSON.value:
        print(json.dumps({"comparisons": found, "not_compared": missing}))
    else:
        for comparison in found:
            print_wrapped(*describe_comparison(comparison))
        print_wrapped(*map(printable, missing))
    if not _BASELINE.value:
        return 0
    slower = [
        f"{comparison['other']}: {stage}"
        for comparison in found
        for stage, ratio in comparison["stages"].items()
        if ratio["verdict"] == "slower" and ratio["ratio_high"] < 1 - _TOLERANCE.value
    ]
    # A trial of the baseline that the other sweep has no result for is no pass.
    if missing:
        return 1
    if slower and not _JSON.value:
        print_wrapped(
            f"slower than the baseline by more than {_TOLERANCE.value:.0%}: {', '.join(slower)}"
        )
    return int(bool(slower))


def _compare_cards(paths: list[str]) -> int:
    if no_cards := [path for path in paths if not is_card(path)]:
        if not os.path.exists(user_path(no_cards[0])):
            raise BadInput(f"{no_cards[0]}: no such file or folder")
        raise BadInput(f"{no_cards[0]}: is no card, another side is; give cards alone, or runs")
    if _BASELINE.value:
        raise BadInput("--baseline: is for runs; a card is judged by its own thresholds")
    cards = [read_card(path) for path in paths]
    if _JSON.value:
        print(json.dumps(compare_cards(cards)))
    else:
        print_wrapped(*describe_cards(cards))
    return 0


def _check_baseline(found: list[dict[str, Any]]) -> None:
    for comparison in found:
        if different := list(filter(is_work, comparison["differences"])):
            raise BadInput(
                f"--baseline: the runs differ in {', '.join(different)}; a baseline is of the same "
                "work"
            )
        if comparison["runs"] == [1, 1]:
            raise BadInput("--baseline: needs repeats, a folder with two runs or more of one side")


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
