"""Show what runs cost: `python -m jaxbench.cost RUN... --usd_per_hour=6.7`.

Or what would be: `--images_per_s=2796 --epochs=64 --images_per_epoch=1281167 --offer=...` in place
of runs. `--list_offers` shows the prices that are known.
"""

import json
import math
from typing import Any

from absl import flags

from jaxbench.analysis import pricing
from jaxbench.analysis.pricing import J_PER_KWH, S_PER_HOUR, Price
from jaxbench.analysis.statistics import Estimate
from jaxbench.analysis.steady_rate import describe_steady_rate, steady_rate
from jaxbench.cli import entry_point
from jaxbench.cli.price_flags import PRICES, check_fraction, check_positive, stated_price
from jaxbench.errors import BadInput
from jaxbench.metrics import plain
from jaxbench.paths import user_path
from jaxbench.records.schema import EpochRecord
from jaxbench.reports.prices import Prices, at_price, price_mark
from jaxbench.reports.runs import ReportedRun, read_run
from jaxbench.reports.time_to_target import time_to_target
from jaxbench.terminal import print_wrapped, printable

_LIST_OFFERS = flags.DEFINE_bool("list_offers", False, "Show the offers that are known.")
_TARGET_ACCURACY = flags.DEFINE_float(
    "target_accuracy", None, "What it takes to reach this top-1 (or Dice), as a fraction: 0.94."
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
        for price in pricing.load_prices(PRICES.value):
            print_wrapped(f"{printable(price.offer)}: {_describe(price)}")
        return 0
    price = stated_price()
    if paths:
        runs = [read_run(path, path, user_path(path)) for path in paths]
        Prices(price).check(runs)
        costs = {run.name: cost_of_run(run, price) for run in runs}
    elif price is None:
        raise BadInput(_NO_PRICE)
    else:
        costs = {"as stated": cost_of_rate(price)}
    if _JSON.value:
        print(json.dumps({"costs": _finite(costs)}))
        return 0
    for name, found in costs.items():
        print(printable(name))
        for line in _lines(found):
            print_wrapped(f"  {line}", indent="    ")
    return 0


def _check(paths: list[str]) -> None:
    given = [name for name in _HYPOTHETICAL if flags.FLAGS[name].present]
    check_positive("usd_per_hour", "usd_per_kwh", *_HYPOTHETICAL)
    check_fraction("target_accuracy")
    if _LIST_OFFERS.value:
        return
    if bool(paths) == bool(given):
        raise BadInput("give run directories, or --images_per_s")
    if given and not _IMAGES_PER_S.value:
        raise BadInput(f"--{given[0]}: needs --images_per_s")
    if (_EPOCHS.value is None) != (_IMAGES_PER_EPOCH.value is None):
        raise BadInput("--epochs and --images_per_epoch go together")
    for name in ("target_accuracy", "usd_per_kwh"):
        if not paths and flags.FLAGS[name].present:
            raise BadInput(f"--{name}: it is for run directories")


def cost_of_rate(price: Price) -> dict[str, Any]:
    """Return what the stated rate costs."""
    rate = _IMAGES_PER_S.value
    found = {"price": price._asdict(), "images_per_s": rate, **_per_price(rate, price)}
    if _EPOCHS.value is not None:
        time_s = pricing.training_s(_EPOCHS.value, _IMAGES_PER_EPOCH.value, rate)
        found |= {"time_s": time_s, "usd": _usd(time_s, price)}
    return found


def cost_of_run(run: ReportedRun, stated: Price | None) -> dict[str, Any]:
    """Return what a run and its rate cost; None for what its record does not have.

    A stated price takes the place of the one in its record.
    """
    run.check_measured()
    rate, fields = rate_of(run)
    if run.status == "corrupt":
        reason = str(run.reason)
        raise BadInput(reason if reason.startswith(run.name) else f"{run.name}: {reason}")
    if run.status != "done" or not rate:
        told = f" ({run.reason})" if run.reason else ""
        raise BadInput(
            f"{run.name}: its status is {run.status}{told}, and it has "
            f"{'a' if rate else 'no'} rate; only a run that is done and has a rate has costs"
        )
    # Without a price only electricity can be asked for.
    price = stated or run.price
    changed_price = None if stated else run.changed_price
    if price is None and _USD_PER_KWH.value is None and not changed_price:
        raise BadInput(f"{run.name}: its record has no price; {_NO_PRICE}")
    found = {"price": price and price._asdict(), **fields}
    if note := changed_price or (price_mark(price, run) if price else ""):
        found["price_note"] = note
    found |= _per_price(rate, price, run.sequence_length) if price else {}
    wall_s = run.summary.wall_s
    paid_s = None if wall_s is None else run.paid_s(wall_s)
    found |= {"wall_s": wall_s, "paid_s": paid_s, "wall_usd": _usd(paid_s, price)}
    to_target = None
    if _TARGET_ACCURACY.value is not None:
        to_target = time_to_target(run, _TARGET_ACCURACY.value)
        if to_target is None or not to_target.evaluations:
            raise BadInput(f"{run.name}: has no evaluations to look for --target_accuracy in")
        found |= {"target_accuracy": _TARGET_ACCURACY.value, "target_epoch": to_target.epoch}
        found |= {"target_s": to_target.time_s, "target_usd": _usd(to_target.paid_s, price)}
    if _USD_PER_KWH.value is not None:
        found |= {name: run.telemetry.get(name) for name in ("energy_j", "energy_covers")}
        found["electricity_usd"] = _electricity(found["energy_j"])
        if to_target is not None:
            found["target_energy_j"] = to_target.energy_j
            found["target_electricity_usd"] = _electricity(to_target.energy_j)
    return found


def rate_of(run: ReportedRun) -> tuple[float | None, dict[str, Any]]:
    """Return the images/s that a run's costs are of, and the fields that tell which rate it is."""
    rate, definition = vars(run.summary), "median of windows"
    if run.mode == "train":
        rate = steady_rate(run.of_kind(EpochRecord))
        if not rate["steady_epochs"]:
            mean = run.summary.images_per_s_whole_run
            definition = "mean over the whole run, first epoch included"
            return mean, {"images_per_s_whole_run": mean, "rate_is": definition}
        definition = describe_steady_rate(rate)
    names = ("images_per_s", "images_per_s_low", "images_per_s_high")
    fields = {name: rate.get(name) for name in names}
    return fields["images_per_s"], fields | {"rate_is": definition}


def _usd(time_s: float | None, price: Price | None) -> float | None:
    return None if None in (time_s, price) else pricing.usd(time_s, price.usd_per_hour)


def _electricity(energy_j: float | None) -> float | None:
    return None if energy_j is None else pricing.electricity_usd(energy_j, _USD_PER_KWH.value)


def _per_price(rate: float, price: Price, tokens: int | None = None) -> dict[str, float]:
    costs = at_price(Estimate(rate), price, tokens)
    return {name: cost.value for name, cost in costs.items()}


def _describe(price: Price) -> str:
    hardware = f" for {price.hardware}" if price.hardware else ""
    where = f"{hardware} ({price.source}, {price.date})"
    return printable(f"{price.usd_per_hour:g} USD an hour{where}")


def _lines(found: dict[str, Any]) -> list[str]:
    price = found["price"]
    definition = f" ({found['rate_is']})" if "rate_is" in found else ""
    rate = found.get("images_per_s") or found["images_per_s_whole_run"]
    rate = f"{_amount(rate, 1)} images/s{definition}"
    lines = [rate]
    if price:
        lines = [
            f"price: {_describe(Price(**price))}",
            f"{rate}: {_amount(found['images_per_s_per_usd_per_hour'], 1)} images/s per USD/h, "
            f"{_amount(found['usd_per_million_images'])} USD per million images",
        ]
    if "price_note" in found:
        lines.append(printable(found["price_note"]))
    if "usd_per_billion_tokens" in found:
        amount = _amount(found["usd_per_billion_tokens"])
        lines.append(f"images are sequences: {amount} USD per billion tokens")
    if "time_s" in found:
        lines.append(_with_usd(found["time_s"] / S_PER_HOUR, "h", found["usd"], digits=2))
    if found.get("wall_s") is not None:
        took = _with_usd(found["paid_s"] / S_PER_HOUR, "h", found["wall_usd"])
        lost = found["paid_s"] > found["wall_s"]
        lines.append(f"the whole run{', with the work that was lost' * lost}: {took}")
    if "target_accuracy" in found and found["target_epoch"] is None:
        lines.append(f"{found['target_accuracy']:.2%}: never reached, costs without end")
    elif "target_accuracy" in found:
        took = _with_usd(found["target_s"] / S_PER_HOUR, "h", found["target_usd"])
        lines.append(f"{found['target_accuracy']:.2%} in epoch {found['target_epoch']:.0f}: {took}")
    if "electricity_usd" in found:
        of = f" of {printable(found['energy_covers'])}" if found["energy_covers"] else ""
        took = _energy(found["energy_j"], found["electricity_usd"])
        lines.append(f"electricity{of}, while training or measuring: {took}")
    if "target_electricity_usd" in found:
        took = _energy(found["target_energy_j"], found["target_electricity_usd"])
        lines.append(f"electricity up to {found['target_accuracy']:.2%}: {took}")
    return lines


def _energy(energy_j: float | None, paid: float | None) -> str:
    return "no reading" if energy_j is None else _with_usd(energy_j / J_PER_KWH, "kWh", paid)


def _with_usd(amount: float, unit: str, paid: float | None, digits: int = 4) -> str:
    cost = "" if paid is None else f", {_amount(paid, digits)} USD"
    return f"{_amount(amount, digits)} {unit}{cost}"


def _amount(value: float, digits: int = 4) -> str:
    return f"{value:,.{digits}f}" if abs(value) < 1e12 else plain(value)


def _finite(value: Any) -> Any:
    """Return null for infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
