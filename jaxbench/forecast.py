"""Predict a card before it is measured, and score the prediction.

    jaxbench forecast make --target=gpu:h100,gpu:a100 --out=FORECAST.csv
    jaxbench forecast score FORECAST.csv CARD [CARD ...]

make writes the predicted rates, with 80 % and 90 % intervals, of all networks that `jaxbench
qualify` trains: in each precision, with the stated batch and half of it. A file that exists is not
overwritten, because it is evidence: commit it before the machine is measured. score prints each
rate that the cards measured beside the predicted one, and whether it is inside the intervals.
"""

import json

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.errors import BadInput, one_of
from jaxbench.metrics import percent, plain
from jaxbench.tables.text import text_table
from jaxbench.terminal import print_wrapped, printable, warn

_TARGET, _OUT, _JSON = define_flags("forecast")
_WORDS = ("make", "score")


def main(arguments: list[str]) -> int:
    """Do what the first argument says; return the exit code."""
    word, *paths = arguments or [""]
    if word not in _WORDS:
        raise BadInput(f"{word!r}: {one_of(word, _WORDS)}" if word else "give make or score")
    refused = ("json",) if word == "make" else ("target", "out")
    if given := [name for name in refused if flags.FLAGS[name].present]:
        raise BadInput(f"--{given[0]}: is not for {word}")
    return _make(paths) if word == "make" else _score(paths)


def _make(paths: list[str]) -> int:
    if paths or not (_TARGET.value and _OUT.value):
        raise BadInput("give --target and --out: jaxbench forecast make --target=... --out=...")
    from jaxbench.qualification.forecast import make_forecast  # imports JAX

    count = make_forecast(_TARGET.value, _OUT.value, warn)
    print(printable(f"{count} rates: {_OUT.value}"))
    return 0


def _score(paths: list[str]) -> int:
    if len(paths) < 2:
        raise BadInput(
            "give a forecast and cards: jaxbench forecast score FORECAST CARD [CARD ...]"
        )
    from jaxbench.qualification.forecast import score_forecast  # imports JAX

    score = score_forecast(paths[0], paths[1:])
    for line in score["warnings"]:
        warn(f"jaxbench: {line}")
    if _JSON.value:
        print(json.dumps(score))
        return 0
    rows = [
        {
            **{name: str(row[name]) for name in ("target", "network", "precision", "batch")},
            "predicted": plain(row["images_per_s"]),
            "80 %": f"{plain(row['low_80'])} to {plain(row['high_80'])}" if row["ratio"] else "-",
            "measured": plain(row["measured"]),
            "measured / predicted": plain(row["ratio"], 2),
            **{f"inside {n} %": _YES[row[f"inside_{n}"]] for n in (80, 90)},
        }
        for row in score["rows"]
    ]
    cells, spare = [[*row.values()] for row in rows], ("80 %", "inside 90 %")
    print("\n".join(map(printable, text_table([*rows[0]], cells, spare))))
    judged = score["judged"]
    print_wrapped(
        f"{judged} of {len(rows)} measured rates were predicted: median error "
        f"{percent(score['median_error'])} %, {score['inside_80']} of {judged} inside the 80 % "
        f"interval, {score['inside_90']} of {judged} inside the 90 % interval",
        f"not measured: {score['not_measured']} of {score['forecasts']} rates of the forecast of "
        f"{score['date'][:10]}",
    )
    return 0


_YES = {True: "yes", False: "no", None: "-"}


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
