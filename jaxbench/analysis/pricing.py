"""Prices of hardware by the hour, published or a user's own, and the cost of work."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from jaxbench.analysis.published import load_published
from jaxbench.analysis.rate import Estimate
from jaxbench.errors import BadInput, one_of
from jaxbench.files import parse_rows, read_text
from jaxbench.paths import user_path
from jaxbench.terminal import warn

S_PER_HOUR, J_PER_KWH = 3600.0, 3.6e6
# Of a price and of what it is multiplied with: larger ones are mistakes, and overflow.
MOST = 1e12
# A control character would steer the terminal that it is shown in.
_Text = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]


@dataclasses.dataclass(frozen=True)
class Price:
    """What somebody asked for hardware at some time.

    Attributes:
      devices: how many chips that is, None if it is not said.
      usd_per_hour: for all of it.
    """

    offer: _Text
    hardware: _Text
    devices: Annotated[int, Meta(ge=1)] | None
    usd_per_hour: Annotated[float, Meta(gt=0, le=MOST)]
    date: _Text
    source: _Text


@dataclasses.dataclass(frozen=True)
class _Machine:
    """A row of a catalogue of SkyPilot, which has one file for each cloud."""

    AcceleratorName: _Text | None
    AcceleratorCount: float | None
    InstanceType: _Text | None
    Price: float | None
    Region: _Text | None


COLUMNS = tuple(Price.__dataclass_fields__)


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
    custom = read_prices(path) if path else []
    names = {price.offer for price in custom}
    return custom + [price for price in shipped if price.offer not in names]


def find_price(offer: str, prices: list[Price]) -> Price:
    """Return the offer of this name; raise BadInput if there is none."""
    by_name = {price.offer: price for price in reversed(prices)}
    if offer not in by_name:
        raise BadInput(f"--offer={offer}: no such offer; {one_of(offer, by_name)}")
    return by_name[offer]


def recorded_price(price: Mapping[str, Any] | None) -> Price | None:
    """Return the price in a run's record; None if it has none."""
    fields: dict[str, Any] = {name: (price or {}).get(name) for name in COLUMNS}
    return Price(**fields) if price else None


def read_prices(path: str) -> list[Price]:
    """Return the offers of a user's file, see `load_prices`."""
    try:
        text = read_text(user_path(path), encoding="utf-8-sig")
        if "AcceleratorName" in text.partition("\n")[0]:
            return _lowest_of_catalogue(path, parse_rows(text, _Machine))
        prices = parse_rows(text, Price)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"--prices={path}: {reason}; must be a CSV file in UTF-8 with {','.join(COLUMNS)}, "
            "or a catalogue of SkyPilot"
        ) from error
    names = [price.offer for price in prices]
    if not prices:
        raise BadInput(f"--prices={path}: has no offer below its first line")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"--prices={path}: has offers of one name: {', '.join(twice)}")
    return prices


def _lowest_of_catalogue(path: str, rows: Sequence[_Machine]) -> list[Price]:
    """Return the lowest price of each number of each accelerator in a catalogue of SkyPilot.

    Spot prices are left out: such a machine may be taken away. So are prices of accelerators
    without a machine (Google's GPUs); a TPU slice is a machine of its own.
    """
    file = user_path(path)
    # The file's own time says when it was copied.
    dated = re.search(r"(20\d\d)-?([01]\d)-?([0-3]\d)", file.name)
    date = "-".join(dated.groups()) if dated else "date unknown"
    prices: dict[str, Price] = {}
    unusable: list[str] = []
    for row in rows:
        name, machine, count = row.AcceleratorName or "", row.InstanceType, row.AcceleratorCount
        is_tpu = name.startswith("tpu-")
        # A count below 1 is a part of a GPU.
        if not name or not (machine or is_tpu) or row.Price is None or not count or 0 < count < 1:
            continue
        offer = name if is_tpu else f"{name}:{count:.0f}"
        place = f"{machine or name} in {row.Region or 'some region'}"
        source = f"SkyPilot's catalogue {file.name}, {place}"
        values = (offer, name, None if is_tpu else count, row.Price, date, source)
        try:
            price = msgspec.convert(dict(zip(COLUMNS, values, strict=True)), Price, strict=False)
        except msgspec.ValidationError:
            unusable.append(f"AcceleratorCount {count:g}, Price {row.Price:g}")
            continue
        prices[offer] = min(price, prices.get(offer, price), key=lambda offer: offer.usd_per_hour)
    if unusable:
        warn(
            f"jaxbench: --prices={path}: {len(unusable)} row(s) with an impossible price or count "
            f"left out, such as {unusable[0]}"
        )
    if not prices:
        raise BadInput(
            f"--prices={path}: a catalogue without a price of a machine with accelerators"
        )
    return [*prices.values()]


def usd_per_million_images(images_per_s: float, usd_per_hour: float) -> float:
    """Return what a million images cost at a rate and a price."""
    return usd_per_hour / S_PER_HOUR * 1e6 / images_per_s


def usd(time_s: float, usd_per_hour: float) -> float:
    """Return what a time costs; infinite if it never ends."""
    return time_s / S_PER_HOUR * usd_per_hour


def electricity_usd(energy_j: float, usd_per_kwh: float) -> float:
    """Return what energy costs."""
    return energy_j / J_PER_KWH * usd_per_kwh


def lost_s(attempts: Sequence[Mapping[str, Any]] | None, elapsed_s: float = math.inf) -> float:
    """Return the seconds that the processes of a resumed run took and its clock leaves out.

    Processes that were killed took them for work that was lost. They were paid for.

    Args:
      elapsed_s: up to which moment of the run's clock.
    """
    entries = attempts or ()
    # A process may go on before the place where an earlier one did.
    starts_s = [sum(one["resumed_phases_s"].values()) for one in entries]
    before = [i for i, start_s in enumerate(starts_s) if start_s < elapsed_s]
    return sum(one.get("lost_s", 0.0) for one in entries[: max(before, default=-1) + 1])


def add_costs(summary: dict[str, Any], usd_per_hour: float | None, attempts: Any = None) -> None:
    """Add to a summary record what the run took: USD, and energy and USD up to its target.

    The time of all processes is paid for, that of lost work too, but none between two processes.
    Energy is what telemetry measured, see its `energy_covers`; a run that reached its target
    ended there, so that all of it was spent on the way.
    """
    target = summary.get("target_accuracy")
    if target is not None:
        telemetry = summary.get("telemetry") or {}
        for name in ("energy_j", "energy_covers"):
            target[name] = telemetry.get(name) if target["reached"] else None
        time_s = target["time_s"]
        target["usd"] = None
        if time_s is not None and usd_per_hour is not None:
            target["usd"] = usd(time_s + lost_s(attempts), usd_per_hour)
    if usd_per_hour is not None and "wall_s" in summary:
        summary["usd"] = usd(summary["wall_s"] + lost_s(attempts), usd_per_hour)


def costs_to_expect(
    rates: Sequence[Estimate], usd_per_hour: Sequence[float | None]
) -> list[Estimate]:
    """Return the USD per million images of each machine; without any price, the time of an image.

    A cost without its rate, or without a price beside others that have one, is unknown.
    """
    if not any(usd_per_hour):
        return [rate.map(lambda one: 1 / one) for rate in rates]
    million_s = [rate.map(lambda one: 1e6 / one) for rate in rates]
    return [
        time_s.map(functools.partial(usd, usd_per_hour=hourly)) if hourly else Estimate()
        for time_s, hourly in zip(million_s, usd_per_hour, strict=True)
    ]
