"""Prices of hardware by the hour, published or a user's own, and the cost of work."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.published import load_published
from jaxbench.errors import BadInput, nearest
from jaxbench.files import read_text
from jaxbench.paths import user_path

S_PER_HOUR, J_PER_KWH = 3600.0, 3.6e6


class Price(NamedTuple):
    """What somebody asked for hardware at some time.

    Attributes:
      devices: how many chips that is, None where it is not said.
      usd_per_hour: for all of it.
    """

    offer: str
    hardware: str
    devices: int | None
    usd_per_hour: float
    date: str
    source: str


COLUMNS = Price._fields
# What cells hold; others are any text.
_CELLS = {"devices": "([1-9][0-9]{0,6})?", "usd_per_hour": r"(?=.*[1-9])[0-9]*\.?[0-9]+"}
# What tells a catalogue of SkyPilot apart, one file of each cloud.
_CATALOGUE = {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"}


def load_prices(path: str | None = None) -> list[Price]:
    """Return the offers that ship with jaxbench and those of a user's file.

    Args:
      path: a CSV file with the columns `COLUMNS`, or a catalogue of SkyPilot; one of its offers
        takes the place of a shipped one of the same name.

    Raises:
      BadInput: the file cannot be read, or a row lacks something: a price is worth nothing without
        its date and source.
    """
    shipped = [Price(**row) for row in load_published("prices")]
    own = read_prices(path) if path else []
    names = {price.offer for price in own}
    return own + [price for price in shipped if price.offer not in names]


def find_price(offer: str, prices: list[Price]) -> Price:
    """Return the offer of this name; raise BadInput where there is none."""
    by_name = {price.offer: price for price in reversed(prices)}
    if offer not in by_name:
        names = [price.offer for price in prices]
        raise BadInput(
            f"--offer={offer}: no such offer; there are {'; '.join(names)}{nearest(offer, names)}"
        )
    return by_name[offer]


def recorded_price(price: Mapping[str, Any] | None) -> Price | None:
    """Return the price in a run's record; None if it has none."""
    return price and Price(*(price.get(name) for name in Price._fields))


def read_prices(path: str) -> list[Price]:
    """Return the offers of a user's file, see `load_prices`."""
    try:
        text = read_text(user_path(path), encoding="utf-8-sig")
        rows = csv.DictReader(text.splitlines(), strict=True)
        listed = list(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"--prices={path}: {reason}") from error
    if rows.fieldnames and not listed:
        raise BadInput(f"--prices={path}: has no offer below its first line")
    if _CATALOGUE.issubset(rows.fieldnames or ()):
        return _lowest_of_catalogue(path, listed)
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise BadInput(
            f"--prices={path}: has no column {', '.join(missing)}; must be a CSV file with "
            f"{','.join(COLUMNS)}, or a catalogue of SkyPilot"
        )
    prices = [_parse(path, number, row) for number, row in enumerate(listed, 2)]
    names = [price.offer for price in prices]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"--prices={path}: has offers of one name: {', '.join(twice)}")
    return prices


def _parse(path: str, line: int, row: dict[str | None, Any]) -> Price:
    values = {name: (row[name] or "").strip() for name in COLUMNS}
    # A control character would steer the terminal that it is shown in.
    wrong = [
        name
        for name, value in values.items()
        if not (re.fullmatch(_CELLS[name], value) if name in _CELLS else value)
        or not value.isprintable()
    ]
    if wrong or None in row:
        raise BadInput(
            f"--prices={path}: line {line} has "
            + ("more cells than the first line" if None in row else f"no valid {', '.join(wrong)}")
            + '; a text with a comma stands in quotation marks ("like, this"), devices is a whole '
            "number above 0 or nothing, usd_per_hour a number above 0"
        )
    devices = int(values["devices"]) if values["devices"] else None
    return Price(**values | {"devices": devices, "usd_per_hour": float(values["usd_per_hour"])})


def _lowest_of_catalogue(path: str, rows: list[dict[str | None, Any]]) -> list[Price]:
    """Return the lowest price of each number of each accelerator in a catalogue of SkyPilot.

    Spot prices are left out: such a machine may be taken away. So are prices of accelerators
    without a machine (Google's GPUs); a TPU slice is a machine of its own.
    """
    file = user_path(path)
    # The file's own time says when it was copied.
    dated = re.search(r"(20\d\d)-?([01]\d)-?([0-3]\d)", file.name)
    date = "-".join(dated.groups()) if dated else "date unknown"
    prices: dict[str, Price] = {}
    for row in rows:
        name, machine, region = (
            (row.get(column) or "").strip()
            for column in ("AcceleratorName", "InstanceType", "Region")
        )
        is_tpu = name.startswith("tpu-")
        count, amount = _number(row, "AcceleratorCount"), _number(row, "Price")
        odd = not "".join((name, machine, region)).isprintable()
        if not name or not (machine or is_tpu) or amount is None or count is None or odd:
            continue
        if count != int(count):  # a part of a GPU
            continue
        offer = name if is_tpu else f"{name}:{count:.0f}"
        source = f"SkyPilot's catalogue {file.name}, {machine or name} in {region or 'some region'}"
        price = Price(offer, name, None if is_tpu else int(count), amount, date, source)
        prices[offer] = min(price, prices.get(offer, price), key=lambda own: own.usd_per_hour)
    if not prices:
        raise BadInput(f"--prices={path}: a catalogue without a price of an accelerator")
    return [*prices.values()]


def _number(row: Mapping[str | None, Any], column: str) -> float | None:
    """Return a number above 0 of a catalogue; None where it has none."""
    try:
        found = float(row.get(column) or "nan")
    except (TypeError, ValueError):
        return None
    return found if 0 < found < math.inf else None


def rate_per_price(images_per_s: float, usd_per_hour: float) -> float:
    """Return images/s for each USD/h."""
    return images_per_s / usd_per_hour


def usd_per_million_images(images_per_s: float, usd_per_hour: float) -> float:
    return usd_per_hour / S_PER_HOUR * 1e6 / images_per_s


def usd_per_billion_tokens(images_per_s: float, usd_per_hour: float, tokens: float) -> float:
    """Return the price of a billion tokens; an image is a sequence of `tokens` of them."""
    return usd_per_million_images(images_per_s, usd_per_hour) * 1e3 / tokens


def usd(time_s: float, usd_per_hour: float) -> float:
    """Return what a time costs; infinite if it never ends."""
    return time_s / S_PER_HOUR * usd_per_hour


def training_s(epochs: float, images_per_epoch: int, images_per_s: float) -> float:
    """Return the seconds that epochs take at a rate, without evaluations and compilation."""
    return epochs * images_per_epoch / images_per_s


def electricity_usd(energy_j: float, usd_per_kwh: float) -> float:
    return energy_j / J_PER_KWH * usd_per_kwh


def lost_s(resumes: Sequence[Mapping[str, Any]] | None, elapsed_s: float = math.inf) -> float:
    """Return the seconds that the processes of a resumed run took and its clock leaves out.

    Processes that were killed took them for work that was lost. They were paid for.

    Args:
      resumes: run.json's.
      elapsed_s: up to which moment of the run's clock.
    """
    entries = resumes or ()
    # A process may go on before the place where an earlier one did.
    before = [i for i, one in enumerate(entries) if one["elapsed_s"] < elapsed_s]
    return sum(one["lost_s"] for one in entries[: max(before, default=-1) + 1])


def add_costs(summary: dict[str, Any], usd_per_hour: float | None, resumes: Any = None) -> None:
    """Add to a summary record what the run took: USD, and energy and USD up to its target.

    The time of all processes is paid for, that of lost work too, but none between two processes.
    Energy is what telemetry measured, see its `energy_covers`; a run that reached its target
    ended there, so that all of it was spent on the way.

    Args:
      resumes: run.json's, of a run that was resumed.
    """
    target = summary.get("target_accuracy")
    if target is not None:
        telemetry = summary.get("telemetry") or {}
        for name in ("energy_j", "energy_covers"):
            target[name] = telemetry.get(name) if target["reached"] else None
        time_s = target["time_s"]
        known = time_s is not None and usd_per_hour is not None
        target["usd"] = usd(time_s + lost_s(resumes), usd_per_hour) if known else None
    if usd_per_hour is not None and "wall_s" in summary:
        summary["usd"] = usd(summary["wall_s"] + lost_s(resumes), usd_per_hour)
