"""Says what runs cost: `python -m jaxbench.cost RUN... --usd_per_hour=6.7`.

Or what would be: `--images_per_s=2796 --epochs=64 --images_per_epoch=1281167 --offer=...` in place
of runs. `--list_offers` shows the prices that are known.
"""

import json
import math
from typing import Any

from absl import flags

from jaxbench import cli
from jaxbench.economics import (
    electricity_usd,
    rate_per_price,
    time_to_target_s,
    training_s,
    usd,
    usd_per_million_images,
)
from jaxbench.errors import BadInput
from jaxbench.price_flags import PRICES, check_positive, check_target, stated_price
from jaxbench.prices import Price, load_prices, recorded_price
from jaxbench.runs import Run, load_run

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
    """Does what the flags say; returns the exit code."""
    _check(paths)
    if _LIST_OFFERS.value:
        for price in load_prices(PRICES.value):
            print(f"{price.offer}: {_describe(price)}")
        return 0
    price = stated_price()
    if paths:
        runs = [load_run(path) for path in paths]
        costs = {str(run.path): cost_of_run(run, _price_of(run, price)) for run in runs}
    elif price is None:
        raise BadInput(_NO_PRICE)
    else:
        costs = {"as stated": cost_of_rate(price)}
    if _JSON.value:
        print(json.dumps({"costs": _finite(costs)}))
        return 0
    for name, found in costs.items():
        print(name)
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
        raise BadInput(f"--{given[0]}: it goes with --images_per_s")
    if (_EPOCHS.value is None) != (_IMAGES_PER_EPOCH.value is None):
        raise BadInput("--epochs and --images_per_epoch go together")
    for name in ("target", "usd_per_kwh"):
        if not paths and flags.FLAGS[name].present:
            raise BadInput(f"--{name}: it is for run directories")


def _price_of(run: Run, stated: Price | None) -> Price:
    """The stated price, else the one that the run's own record has."""
    price = stated or recorded_price(run.document)
    if price is None:
        raise BadInput(f"{run.path}: its record has no price; {_NO_PRICE}")
    return price


def cost_of_rate(price: Price) -> dict[str, Any]:
    """What the stated rate comes to."""
    rate = _IMAGES_PER_S.value
    found = {"price": price._asdict(), "images_per_s": rate, **_per_price(rate, price)}
    if _EPOCHS.value is not None:
        time_s = training_s(_EPOCHS.value, _IMAGES_PER_EPOCH.value, rate)
        found |= {"time_s": time_s, "usd": usd(time_s, price.usd_per_hour)}
    return found


def cost_of_run(run: Run, price: Price) -> dict[str, Any]:
    """What a run cost, and what its rate comes to.

    Raises:
      BadInput: it has no figures to go by.
    """
    summary = run.document.get("summary") or {}
    rate = summary.get("images_per_s")
    if run.document["status"] != "done" or rate is None:
        raise BadInput(
            f"{run.path}: its status is {run.document['status']}, and it has "
            f"{'a' if rate else 'no'} rate; costs are told of runs that are done and have one"
        )
    found: dict[str, Any] = {"price": price._asdict(), "images_per_s": rate}
    found |= _per_price(rate, price)
    found |= {"wall_s": summary["wall_s"], "wall_usd": usd(summary["wall_s"], price.usd_per_hour)}
    if _TARGET.value is not None:
        evaluations = run.of_kind("epoch")
        if not evaluations:
            raise BadInput(f"{run.path}: has no evaluations to look for --target in")
        score = "eval_top1" if "eval_top1" in evaluations[0] else "eval_dice"
        time_s, epoch = time_to_target_s(evaluations, score, _TARGET.value)
        found |= {
            "target": _TARGET.value,
            "target_epoch": epoch,
            "target_s": time_s,
            "target_usd": usd(time_s, price.usd_per_hour),
        }
    telemetry = summary.get("telemetry") or {}
    if _USD_PER_KWH.value is not None:
        energy_j = telemetry.get("energy_j")
        found |= {
            "energy_j": energy_j,
            "energy_covers": telemetry.get("energy_covers"),
            "electricity_usd": (
                None if energy_j is None else electricity_usd(energy_j, _USD_PER_KWH.value)
            ),
        }
    return found


def _per_price(rate: float, price: Price) -> dict[str, float]:
    return {
        "images_per_s_per_usd_per_hour": rate_per_price(rate, price.usd_per_hour),
        "usd_per_million_images": usd_per_million_images(rate, price.usd_per_hour),
    }


def _describe(price: Price) -> str:
    hardware = f" for {price.hardware}" if price.hardware else ""
    return f"{price.usd_per_hour:g} USD an hour{hardware} ({price.source}, {price.date})"


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"price: {_describe(Price(**found['price']))}",
        f"{found['images_per_s']:,.1f} images/s: "
        f"{found['images_per_s_per_usd_per_hour']:,.1f} images/s per USD/h, "
        f"{found['usd_per_million_images']:,.4f} USD per million images",
    ]
    if "time_s" in found:
        lines.append(f"{found['time_s'] / 3600:,.2f} h, {found['usd']:,.2f} USD")
    if "wall_s" in found:
        lines.append(
            f"the whole run: {found['wall_s'] / 3600:,.4f} h, {found['wall_usd']:,.4f} USD"
        )
    if "target" in found:
        if found["target_epoch"] is None:
            lines.append(f"{found['target']:.2%}: never reached, costs without end")
        else:
            lines.append(
                f"{found['target']:.2%} in epoch {found['target_epoch']}: "
                f"{found['target_s'] / 3600:,.4f} h, {found['target_usd']:,.4f} USD"
            )
    if "electricity_usd" in found:
        if found["electricity_usd"] is None:
            lines.append("electricity: the run has no energy readings")
        else:
            lines.append(
                f"electricity: {found['energy_j'] / 3.6e6:,.4f} kWh, "
                f"{found['electricity_usd']:,.4f} USD ({found['energy_covers']})"
            )
    return lines


def _finite(value: Any) -> Any:
    """JSON has no infinity: what is never reached is null there."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    cli.run_with_arguments(main)
