"""Shows what runs cost: `python -m jaxbench.cost RUN... --usd_per_hour=6.7`.

Or what would be: `--images_per_s=2796 --epochs=64 --images_per_epoch=1281167 --offer=...` in place
of runs. `--list_offers` shows the prices that are known.
"""

import json
import math
import pathlib
import statistics
from typing import Any

from absl import flags

from jaxbench.analysis.pricing import (
    J_PER_KWH,
    S_PER_HOUR,
    Price,
    electricity_usd,
    load_prices,
    rate_per_price,
    recorded_price,
    training_s,
    usd,
    usd_per_million_images,
)
from jaxbench.cli import entry_point
from jaxbench.cli.price_flags import PRICES, check_positive, check_target, stated_price
from jaxbench.errors import BadInput
from jaxbench.report.fields import number, text
from jaxbench.report.formats import plain
from jaxbench.report.measurements import later_rates
from jaxbench.report.runs import ReportedRun, read_run
from jaxbench.report.time_to_target import time_to_target

_LIST_OFFERS = flags.DEFINE_bool("list_offers", False, "Show the offers that are known.")
_TARGET = flags.DEFINE_float(
    "target", None, "What it takes to reach this top-1 (or Dice), as a share: 0.94."
)
_USD_PER_KWH = flags.DEFINE_float("usd_per_kwh", None, "What a kWh of electricity costs.")
_IMAGES_PER_S = flags.DEFINE_float("images_per_s", None, "A rate, in place of a run.")
_EPOCHS = flags.DEFINE_float("epochs", None, "With --images_per_s: how long to train.")
_IMAGES_PER_EPOCH = flags.DEFINE_integer("images_per_epoch", None, "With --epochs.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")

_NO_PRICE = "give --usd_per_hour or --offer (--list_offers shows them)"
_HYPOTHETICAL = ("images_per_s", "epochs", "images_per_epoch")


def main(paths: list[str]) -> int:
    """Do what the flags say; return the exit code."""
    _check(paths)
    if _LIST_OFFERS.value:
        for price in load_prices(PRICES.value):
            print(f"{_printable(price.offer)}: {_describe(price)}")
        return 0
    price = stated_price()
    if paths:
        runs = [read_run(path, path, pathlib.Path(path).expanduser()) for path in paths]
        costs = {run.name: cost_of_run(run, price) for run in runs}
    elif price is None:
        raise BadInput(_NO_PRICE)
    else:
        costs = {"as stated": cost_of_rate(price)}
    if _JSON.value:
        print(json.dumps({"costs": _finite(costs)}))
        return 0
    for name, found in costs.items():
        print(_printable(name))
        for line in _lines(found):
            print(f"  {line}")
    return 0


def _check(paths: list[str]) -> None:
    given = [name for name in _HYPOTHETICAL if flags.FLAGS[name].present]
    check_positive("usd_per_hour", "usd_per_kwh", *_HYPOTHETICAL)
    check_target("target")
    if _LIST_OFFERS.value:
        return
    if bool(paths) == bool(given):
        raise BadInput("give run directories, or --images_per_s")
    if given and not _IMAGES_PER_S.value:
        raise BadInput(f"--{given[0]}: needs --images_per_s")
    if (_EPOCHS.value is None) != (_IMAGES_PER_EPOCH.value is None):
        raise BadInput("--epochs and --images_per_epoch go together")
    for name in ("target", "usd_per_kwh"):
        if not paths and flags.FLAGS[name].present:
            raise BadInput(f"--{name}: it is for run directories")


def _price_of(run: ReportedRun, stated: Price | None) -> Price | None:
    """Return the stated price, else the recorded one; None where only electricity is asked for."""
    price = stated or recorded_price(run.document)
    if price is None and _USD_PER_KWH.value is None:
        raise BadInput(f"{run.name}: its record has no price; {_NO_PRICE}")
    return price


def cost_of_rate(price: Price) -> dict[str, Any]:
    """Return what the stated rate costs."""
    rate = _IMAGES_PER_S.value
    found = {"price": price._asdict(), "images_per_s": rate, **_per_price(rate, price)}
    if _EPOCHS.value is not None:
        time_s = training_s(_EPOCHS.value, _IMAGES_PER_EPOCH.value, rate)
        found |= {"time_s": time_s, "usd": usd(time_s, price.usd_per_hour)}
    return found


def cost_of_run(run: ReportedRun, stated: Price | None) -> dict[str, Any]:
    """Return what a run and its rate cost; None for what its record does not have.

    Args:
      run: that ended well.
      stated: the price of its hardware, in place of the one in its record.

    Raises:
      BadInput: it has no figures to go by.
    """
    rate, definition = rate_of(run)
    has_rate = rate is not None and rate > 0
    if run.status == "corrupt":
        reason = str(run.reason)
        raise BadInput(reason if reason.startswith(run.name) else f"{run.name}: {reason}")
    if run.status != "done" or not has_rate:
        told = f" ({run.reason})" if run.reason else ""
        raise BadInput(
            f"{run.name}: its status is {run.status}{told}, and it has "
            f"{'a' if has_rate else 'no'} rate; only runs that are done and have a rate have costs"
        )
    price = _price_of(run, stated)
    wall_s = number(run.summary, "wall_s")
    found = {"price": price and price._asdict(), "images_per_s": rate, "rate_is": definition}
    found |= _per_price(rate, price) if price else {}
    found |= {"wall_s": wall_s, "wall_usd": _usd(wall_s, price)}
    to_target = None
    if _TARGET.value is not None:
        to_target = time_to_target(run, _TARGET.value)
        if to_target is None or not to_target.evaluations:
            raise BadInput(f"{run.name}: has no evaluations to look for --target in")
        found |= {
            "target": _TARGET.value,
            "target_epoch": to_target.epoch,
            "target_s": to_target.time_s,
            "target_usd": _usd(to_target.time_s, price),
        }
    if _USD_PER_KWH.value is not None:
        energy_j = number(run.summary, "telemetry", "energy_j")
        found |= {
            "energy_j": energy_j,
            "energy_covers": text(run.summary, "telemetry", "energy_covers"),
            "electricity_usd": _electricity(energy_j),
        }
        if to_target is not None:
            found |= {
                "target_energy_j": to_target.energy_j,
                "target_electricity_usd": _electricity(to_target.energy_j),
            }
    return found


def rate_of(run: ReportedRun) -> tuple[float | None, str]:
    """Return a run's images/s and its definition: the report's figure wherever it has one."""
    if run.mode != "train":
        return number(run.summary, "images_per_s"), "median of windows"
    rates = later_rates(run)
    if rates:
        return statistics.median(rates), f"median of {len(rates)} epochs from the 2nd on"
    mean = number(run.summary, "images_per_s")
    return mean, "mean over all of its training, the first epoch included"


def _usd(time_s: float | None, price: Price | None) -> float | None:
    return None if time_s is None or price is None else usd(time_s, price.usd_per_hour)


def _electricity(energy_j: float | None) -> float | None:
    return None if energy_j is None else electricity_usd(energy_j, _USD_PER_KWH.value)


def _per_price(rate: float, price: Price) -> dict[str, float]:
    return {
        "images_per_s_per_usd_per_hour": rate_per_price(rate, price.usd_per_hour),
        "usd_per_million_images": usd_per_million_images(rate, price.usd_per_hour),
    }


def _describe(price: Price) -> str:
    hardware = f" for {price.hardware}" if price.hardware else ""
    told = f"{price.usd_per_hour:g} USD an hour{hardware} ({price.source}, {price.date})"
    return _printable(told)


def _lines(found: dict[str, Any]) -> list[str]:
    price = found["price"]
    definition = f" ({found['rate_is']})" if "rate_is" in found else ""
    rate = f"{_amount(found['images_per_s'], 1)} images/s{definition}"
    lines = [rate]
    if price:
        lines = [
            f"price: {_describe(Price(**price))}",
            f"{rate}: {_amount(found['images_per_s_per_usd_per_hour'], 1)} images/s per USD/h, "
            f"{_amount(found['usd_per_million_images'])} USD per million images",
        ]
    if "time_s" in found:
        lines.append(f"{_hours(found['time_s'], 2)}, {_amount(found['usd'], 2)} USD")
    if found.get("wall_s") is not None:
        lines.append(f"the whole run: {_hours(found['wall_s'])}{_in_usd(found['wall_usd'])}")
    if "target" in found:
        if found["target_epoch"] is None:
            lines.append(f"{found['target']:.2%}: never reached, costs without end")
        else:
            lines.append(
                f"{found['target']:.2%} in epoch {found['target_epoch']:.0f}: "
                f"{_hours(found['target_s'])}{_in_usd(found['target_usd'])}"
            )
    if "electricity_usd" in found:
        covers = found["energy_covers"]
        lines.append(
            f"electricity{f' of {_printable(covers)}' if covers else ''}, while training or "
            f"measuring: {_paid(found['energy_j'], found['electricity_usd'])}"
        )
    if "target_electricity_usd" in found:
        paid = _paid(found["target_energy_j"], found["target_electricity_usd"])
        lines.append(f"electricity up to {found['target']:.2%}: {paid}")
    return lines


def _paid(energy_j: float | None, paid_usd: float | None) -> str:
    if energy_j is None:
        return "no reading"
    return f"{_amount(energy_j / J_PER_KWH)} kWh{_in_usd(paid_usd)}"


def _hours(time_s: float, digits: int = 4) -> str:
    return f"{_amount(time_s / S_PER_HOUR, digits)} h"


def _in_usd(paid: float | None) -> str:
    return "" if paid is None else f", {_amount(paid)} USD"


def _printable(words: str) -> str:
    """Replace what would steer a terminal by question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def _amount(value: float, digits: int = 4) -> str:
    return f"{value:,.{digits}f}" if abs(value) < 1e12 else plain(value)


def _finite(value: Any) -> Any:
    """Return null for infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
