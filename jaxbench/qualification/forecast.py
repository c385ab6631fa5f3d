"""Forecasts: predictions of a card's rates that are made before the card, and their score."""

import dataclasses
import hashlib
import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from msgspec import Meta

from jaxbench import __version__
from jaxbench.cards.card_file import read_card
from jaxbench.cards.check import impossible
from jaxbench.cards.figures import NETWORK, STANDARD, PresetNetwork
from jaxbench.clock import now, seconds_since_1970
from jaxbench.errors import BadInput, as_refusal
from jaxbench.files import parse_rows, read_text
from jaxbench.hardware.environment import describe_git
from jaxbench.hardware.peak_table import without_maker
from jaxbench.hardware.targets.target import Target, parse_target, split_targets
from jaxbench.modes.predictions import Predictor
from jaxbench.paths import new_csv, user_path
from jaxbench.predict import calibration
from jaxbench.qualification.networks import make_config
from jaxbench.tables.spreadsheet import render_csv

_Amount = Annotated[float, Meta(gt=0, le=1e12)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """A row of a forecast: a rate of a training step, in examples/s of all devices.

    Attributes:
      low_80, high_80: of the 80 % interval.
      not_predicted: why there is no rate.
    """

    target: str
    device_kind: str
    num_devices: int
    network: str
    precision: str
    batch: int
    images_per_s: _Amount | None = None
    low_80: _Amount | None = None
    high_80: _Amount | None = None
    low_90: _Amount | None = None
    high_90: _Amount | None = None
    not_predicted: str | None = None

    @property
    def measured_as(self) -> tuple[str, int, str, str, int]:
        """What a card's rate has in common with it."""
        kind = without_maker(self.device_kind)
        return kind, self.num_devices, self.network, self.precision, self.batch


_RATES = {
    "images_per_s": "images_per_s",
    "low_80": "images_per_s_low",
    "high_80": "images_per_s_high",
    "low_90": "images_per_s_90_low",
    "high_90": "images_per_s_90_high",
}
_COLUMNS = [field.name for field in dataclasses.fields(Forecast)]


def make_forecast(names: str, out: str, progress: Callable[[str], None]) -> int:
    """Write the predicted rates of a card's networks on targets; return how many rows.

    Each network has a stated batch and half of it, in each precision, as a card measures them.

    Args:
      names: the targets, with commas between them.

    Raises:
      BadInput: an unknown target, or a file that exists or cannot be written.
    """
    path = new_csv(out)
    targets = [parse_target(name) for name in split_targets(names)]
    predictors = []
    for network, precision in itertools.product(STANDARD.networks, STANDARD.precisions):
        progress(f"tracing {network.spec} in {precision}")
        predictors.append((network, Predictor(make_config(network, precision, 1), targets)))
    rows = [
        _predict(target, network, predictor, half)
        for target in targets
        for network, predictor in predictors
        for half in (False, True)
    ]
    git = describe_git() or {}
    about = {
        "date": now().isoformat(timespec="seconds"),
        "jaxbench": __version__,
        "commit": git.get("commit", "unknown")[:9] + "+changes" * git.get("dirty", False),
        "preset": STANDARD.name,
        "calibration": f"sha256 {hashlib.sha256(calibration.FILE.read_bytes()).hexdigest()[:12]}",
    }
    lines = [f"# {name}: {value}\n" for name, value in about.items()]
    with as_refusal(f"--out={out}"), open(path, "x", encoding="utf-8") as file:
        file.write("".join(lines) + render_csv(_COLUMNS, map(dataclasses.asdict, rows)))
    return len(rows)


def _predict(target: Target, network: PresetNetwork, predictor: Predictor, half: bool) -> Forecast:
    batch = network.batch_per_device * target.num_devices // (2 if half else 1)
    answer = predictor.predict(target, batch_size=batch)
    rates = answer["predicted"] or {}
    same: Any = {n: answer.get(n) for n in ("device_kind", "num_devices", "not_predicted")}
    intervals: Any = {name: float(f"{rates[field]:.5g}") for name, field in _RATES.items() if rates}
    return Forecast(
        target=target.name,
        network=network.spec,
        precision=answer["precision"],
        batch=batch,
        **same,
        **intervals,
    )


def read_forecast(name: str) -> tuple[dict[str, str], list[Forecast]]:
    """Return what a forecast says of itself, and its rows; raise BadInput if it is none."""
    with as_refusal(f"{name}: no forecast", ValueError):
        text = read_text(user_path(name))
        rows = parse_rows(text, Forecast)
    comments = (line[2:].partition(": ") for line in text.splitlines() if line[:2] == "# ")
    about = {key: value for key, _, value in comments}
    halves = [one for one in rows if one.images_per_s and None in (getattr(one, n) for n in _RATES)]
    dated = seconds_since_1970(about.get("date", "")) is not None
    if halves or not (dated and about.get("preset") and rows):
        raise BadInput(f"{name}: no forecast: it lacks a date, its preset, rows or an interval")
    if len({one.measured_as for one in rows}) < len(rows):
        raise BadInput(f"{name}: no forecast: it has two rows of one rate")
    return about, rows


def score_forecast(name: str, paths: Sequence[str]) -> dict[str, Any]:
    """Return the rates that cards measured beside those that were forecast, and a summary.

    Raise BadInput for no forecast, no card, or a card that has none of its rates.
    """
    about, forecasts = read_forecast(name)
    by_key: dict[tuple, Forecast] = {one.measured_as: one for one in forecasts}
    rows, warnings, copies = [], [], set()
    for path in paths:
        card = read_card(path)
        if card.preset != about["preset"]:
            raise BadInput(f"{path}: is of {card.preset}, the forecast of {about['preset']}")
        if problem := next(impossible(card), None):
            raise BadInput(f"{path}: {problem}")
        if card.values in copies:
            raise BadInput(f"{path}: is a copy of another card")
        copies.add(card.values)
        kind, count = card.environment["device_kind"], card.environment["num_devices"]
        devices = dict.fromkeys(f"{one.num_devices} x {one.device_kind}" for one in forecasts)
        machine = without_maker(kind), count
        if machine not in {one.measured_as[:2] for one in forecasts}:
            raise BadInput(f"{path}: is of {card.hardware}, the forecast of {', '.join(devices)}")
        if (seconds_since_1970(card.created_at) or 0) < (seconds_since_1970(about["date"]) or 0):
            warnings.append(f"{path}: is older ({card.created_at}) than the forecast")
        for figure in card.named("images_per_s"):
            if one := by_key.get((*machine, *(figure.labels[label] for label in NETWORK))):
                rows.append(dataclasses.asdict(one) | {"card": path, **_judge(one, figure.value)})
    if not rows:
        raise BadInput(f"{', '.join(paths)}: measured no rate that is in {name}")
    measured = {tuple(row[field] for field in _COLUMNS[:6]) for row in rows}
    judged = [row for row in rows if row["ratio"]]
    errors = [abs(1 / row["ratio"] - 1) for row in judged]
    return {
        **about,
        "rows": rows,
        "warnings": warnings,
        "not_measured": len(forecasts) - len(measured),
        "forecasts": len(forecasts),
        "judged": len(judged),
        "median_error": statistics.median(errors) if errors else None,
        **{name: sum(row[name] for row in judged) for name in ("inside_80", "inside_90")},
    }


def _judge(one: Forecast, measured: float) -> dict[str, Any]:
    rate, low_80, high_80, low_90, high_90 = (getattr(one, name) for name in _RATES)
    return {
        "measured": measured,
        "ratio": rate and measured / rate,
        "inside_80": rate and low_80 <= measured <= high_80,
        "inside_90": rate and low_90 <= measured <= high_90,
    }
