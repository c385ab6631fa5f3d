"""Show what runs cost, as the report does: `jaxbench cost DIR [DIR ...] --usd_per_hour=6.7`.

DIR is as in `jaxbench report`. `--list_offers` shows the prices that are known.
"""

import json
from typing import Any

from jaxbench.analysis import pricing
from jaxbench.analysis.published import PublishedRate
from jaxbench.analysis.rate import Estimate, describe_steady_rate
from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.cli.price_flags import PRICES, check_positive, run_prices
from jaxbench.config.fields import check_fraction
from jaxbench.errors import BadInput
from jaxbench.metrics import UNKNOWN, words
from jaxbench.records.run_dir import finite
from jaxbench.reports import published
from jaxbench.reports.collect import collect
from jaxbench.reports.prices import Prices, price_mark
from jaxbench.reports.runs import ReportedRun, time_to_target
from jaxbench.reports.sections.cost import cost_of
from jaxbench.schema import value_of
from jaxbench.tables.columns import Column, metric_column, metric_columns
from jaxbench.terminal import print_wrapped, printable, warn

_LIST_OFFERS, _TARGET_ACCURACY, _USD_PER_KWH, _JSON = define_flags("cost")


def _describe(price: dict[str, Any] | None) -> str:
    if price is None:
        return UNKNOWN
    hardware = f" for {price['hardware']}" if price["hardware"] else ""
    return f"{price['usd_per_hour']:g} USD an hour{hardware} ({price['source']}, {price['date']})"


def _beside(rates: list[dict[str, Any]]) -> str:
    return published.rates_words([PublishedRate(**rate) for rate in rates])


# A line for each of them that was asked for.
_LINES = (
    Column("price", "price", _describe),
    Column("note", "price_note"),
    *metric_columns("images_per_s", "images_per_s_whole_run"),
    Column("rate", "rate_is"),
    *metric_columns("images_per_s_per_usd_per_hour", "usd_per_million_images"),
    *metric_columns("usd_per_billion_tokens", "wall_s", "paid_s", "wall_usd"),
    Column("published images/s", "published", _beside),
    metric_column("target_accuracy"),
    *metric_columns("target_epoch", "target_s", "target_usd"),
    *metric_columns("energy_j"),
    Column("energy covers, while training or measuring", "energy_covers"),
    *metric_columns("electricity_usd", "target_energy_j"),
)


def main(paths: list[str]) -> int:
    """Do what the flags say; return the exit code."""
    check_positive("usd_per_kwh")
    check_fraction("target_accuracy", _TARGET_ACCURACY.value)
    if _LIST_OFFERS.value:
        for price in pricing.load_prices(PRICES.value):
            print_wrapped(printable(f"{price.offer}: {_describe(vars(price))}"))
        return 0
    if not paths:
        raise BadInput("give at least one DIR: a run directory, a sweep, or a folder that has any")
    prices, collection = Prices(*run_prices(), _USD_PER_KWH.value), collect(paths)
    prices.check(collection.runs)
    costs, problems = {}, []
    for run in collection.all_runs:
        try:
            costs[str(run.path)] = cost_of_run(run, prices)
        except BadInput as problem:
            problems.append(str(problem))
    if not costs:
        raise BadInput(problems[0] if problems else f"{paths[0]}: has no run directory")
    notes = [*collection.notes, *(sweep.problem for sweep in collection.sweeps if sweep.problem)]
    for problem in [*notes, *problems]:
        warn(f"jaxbench: {problem}")
    if _JSON.value:
        print(json.dumps({"costs": finite(costs)}))
        return 0
    for name, amounts in costs.items():
        print(printable(name))
        for line in _LINES:
            if line.value in amounts:
                text = printable(words(line.cell(amounts).text))
                print_wrapped(f"  {line.title}: {text}", indent="    ")
    return 0


def cost_of_run(run: ReportedRun, prices: Prices) -> dict[str, Any]:
    """Return what a run and its rate cost; None for what its record does not have."""
    run.check_measured()
    rate, costs = _rate_of(run)
    if run.status != "done" or not rate.value:
        reason = f" ({run.reason})" if run.reason else ""
        raise BadInput(
            f"{run.name}: its status is {run.status}{reason}, and it has "
            f"{'a' if rate.value else 'no'} rate; only a run that is done and has a rate has costs"
        )
    # One that is of other hardware is marked.
    price = prices.lowest(run) or next(iter(prices.of(run)), None)
    changed_price = None if price else run.changed_price
    # Without a price only electricity can be asked for.
    if price is None and prices.usd_per_kwh is None and not changed_price:
        raise BadInput(
            f"{run.name}: its record has no price; give --usd_per_hour, --prices or --offer "
            "(--list_offers shows them)"
        )
    costs = {"price": price and vars(price), **costs}
    if note := changed_price or (price and price_mark(price, run)):
        costs["price_note"] = note
    cost = cost_of(run, rate, price)
    for name, amount in cost.items():
        costs |= amount.fields(name) if isinstance(amount, Estimate) else {}
    if beside := published.nearest(published.run_key(run), [run.batch_size]):
        costs["published"] = [*map(vars, beside)]
    costs |= {name: cost[name] for name in ("wall_s", "paid_s")} | {"wall_usd": cost["usd"]}
    to_target = None
    if _TARGET_ACCURACY.value is not None:
        to_target = time_to_target(run, _TARGET_ACCURACY.value)
        if to_target is None or not to_target.evaluations:
            raise BadInput(
                f"{run.name}: has no evaluations with an accuracy, for --target_accuracy"
            )
        costs |= {"target_accuracy": to_target.target, "target_epoch": to_target.epoch}
        paid = price and pricing.usd(to_target.paid_s, price.usd_per_hour)
        costs |= {"target_s": to_target.time_s, "target_usd": paid}
    if prices.usd_per_kwh is not None:
        energy_j = run.telemetry.get("energy_j")
        costs |= {"energy_j": energy_j, "energy_covers": run.telemetry.get("energy_covers")}
        costs |= {"target_energy_j": to_target.energy_j} if to_target else {}
        costs["electricity_usd"] = energy_j and pricing.electricity_usd(
            energy_j, prices.usd_per_kwh
        )
    return costs


def _rate_of(run: ReportedRun) -> tuple[Estimate, dict[str, Any]]:
    """Return the images/s that a run's costs are of, and the fields that say which rate it is."""
    definition = "median of windows"
    if run.mode == "train":
        if run.rate.value is None:
            mean = value_of(run.summary, "images_per_s_whole_run")
            definition = "mean over the whole run, first epoch included"
            return Estimate(mean), {"images_per_s_whole_run": mean, "rate_is": definition}
        definition = describe_steady_rate(run.rate)
    return run.rate, run.rate.fields("images_per_s") | {"rate_is": definition}


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
