"""Show what runs cost: `jaxbench cost RUN... --usd_per_hour=6.7`.

Or what would be: `--images_per_s=2796 --epochs=64 --images_per_epoch=1281167 --offer=...` in place
of runs; or `--experiment=NAME --target=gpu:a100:8,gpu:h100:8 --prices=FILE`, by predicted rates.
`--list_offers` shows the prices that are known.
"""

import json
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxbench.analysis import pricing
from jaxbench.analysis.pricing import Price
from jaxbench.analysis.published import PublishedRate
from jaxbench.analysis.rate import Estimate, describe_steady_rate
from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.cli.price_flags import PRICES, check_positive, stated_price, target_prices
from jaxbench.errors import BadInput
from jaxbench.fields import check_fraction
from jaxbench.hardware.targets.target import split_targets
from jaxbench.metrics import UNKNOWN, words
from jaxbench.paths import user_path
from jaxbench.records.run_dir import finite
from jaxbench.reports import published
from jaxbench.reports.prices import Prices, at_price, price_mark
from jaxbench.reports.runs import ReportedRun, read_run, time_to_target
from jaxbench.schema import value_of
from jaxbench.tables.columns import Column, metric_column, metric_columns
from jaxbench.terminal import print_wrapped, printable

_LIST_OFFERS, _TARGET_ACCURACY, _USD_PER_KWH, *_OF_A_RATE, _TARGET, _JSON = define_flags("cost")
_IMAGES_PER_S, _EPOCHS, _IMAGES_PER_EPOCH = _OF_A_RATE

_NO_PRICE = "give --usd_per_hour or --offer (--list_offers shows them)"
_HYPOTHETICAL = ("images_per_s", "epochs", "images_per_epoch")


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
    *metric_columns("usd_per_billion_tokens", "wall_s", "paid_s", "wall_usd", "time_s", "usd"),
    Column("published images/s", "published", _beside),
    metric_column("target_accuracy"),
    *metric_columns("target_epoch", "target_s", "target_usd"),
    *metric_columns("energy_j"),
    Column("energy covers, while training or measuring", "energy_covers"),
    *metric_columns("electricity_usd", "target_energy_j", "target_electricity_usd"),
)


def main(spec: str | None, overrides: Sequence[str], paths: list[str]) -> int:
    """Do what the flags say; return the exit code."""
    if spec is not None or _TARGET.value is not None:
        return _predict(spec, overrides, paths)
    if overrides:
        raise BadInput(f"{overrides[0]}: it needs --experiment and --target")
    _check(paths)
    if _LIST_OFFERS.value:
        for price in pricing.load_prices(PRICES.value):
            print_wrapped(printable(f"{price.offer}: {_describe(vars(price))}"))
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
        print(json.dumps({"costs": finite(costs)}))
        return 0
    for name, amounts in costs.items():
        print(printable(name))
        for line in _LINES:
            if line.value in amounts:
                text = printable(words(line.cell(amounts).text))
                print_wrapped(f"  {line.title}: {text}", indent="    ")
    return 0


def _predict(spec: str | None, overrides: Sequence[str], paths: Sequence[str]) -> int:
    """Print what the training of an experiment would cost on machines that are not here."""
    others = ("list_offers", "target_accuracy", "usd_per_kwh", *_HYPOTHETICAL)
    others = [f"--{name}" for name in others if flags.FLAGS[name].present]
    if refused := [*paths, *others]:
        raise BadInput(f"{refused[0]}: not with --experiment and --target, which predict")
    if _TARGET.value is None:
        raise BadInput(
            "--experiment: needs --target=gpu:h100:8,...; --target=list of jaxbench.main"
        )
    experiment = entry_point.load_experiment(spec, overrides)
    # They import JAX.
    from jaxbench.modes.predictions import Predictor, ranked, ranking_lines
    from jaxbench.modes.targets import check_target

    targets = [check_target(experiment, name) for name in split_targets(_TARGET.value)]
    prices = target_prices(targets)
    if not prices:
        raise BadInput(
            "give --usd_per_hour, --offer, or --prices=FILE with an offer of each machine"
        )
    predictor = Predictor(experiment)
    answers = [predictor.predict(target, prices.get(target.name)) for target in targets]
    if not any(answer["predicted"] for answer in answers):
        raise BadInput(
            f"{answers[0]['target']}: not predicted, because {answers[0]['not_predicted']}"
        )
    if _JSON.value:
        rows = [
            {**answer, "rank": rank, "price": vars(price) if price else None}
            for rank, answer in ranked(answers)
            for price in [prices.get(answer["target"])]
        ]
        print(json.dumps({"costs": {row["target"]: row for row in rows}}))
        return 0
    for line in ranking_lines(experiment, answers):
        print_wrapped(line)
    return 0


def _check(paths: list[str]) -> None:
    hypothetical = [name for name in _HYPOTHETICAL if flags.FLAGS[name].present]
    check_positive("usd_per_hour", "usd_per_kwh", *_HYPOTHETICAL)
    check_fraction("target_accuracy", _TARGET_ACCURACY.value)
    if _LIST_OFFERS.value:
        return
    if missing := [path for path in paths if not user_path(path).is_dir()]:
        raise BadInput(f"{missing[0]}: no such folder")
    if bool(paths) == bool(hypothetical):
        raise BadInput("give run directories, or --images_per_s")
    if hypothetical and not _IMAGES_PER_S.value:
        raise BadInput(f"--{hypothetical[0]}: needs --images_per_s")
    if (_EPOCHS.value is None) != (_IMAGES_PER_EPOCH.value is None):
        raise BadInput("--epochs and --images_per_epoch go together")
    for name in ("target_accuracy", "usd_per_kwh"):
        if not paths and flags.FLAGS[name].present:
            raise BadInput(f"--{name}: it is for run directories")


def cost_of_rate(price: Price) -> dict[str, Any]:
    """Return what the stated rate costs."""
    rate = _IMAGES_PER_S.value
    costs = {"price": vars(price), "images_per_s": rate, **_per_price(Estimate(rate), price)}
    if _EPOCHS.value is not None:
        time_s = pricing.training_s(_EPOCHS.value, _IMAGES_PER_EPOCH.value, rate)
        costs |= {"time_s": time_s, "usd": _usd(time_s, price)}
    return costs


def cost_of_run(run: ReportedRun, stated: Price | None) -> dict[str, Any]:
    """Return what a run and its rate cost; None for what its record does not have.

    A stated price takes the place of the one in its record.
    """
    run.check_measured()
    rate, costs = rate_of(run)
    if run.status != "done" or not rate.value:
        reason = f" ({run.reason})" if run.reason else ""
        raise BadInput(
            f"{run.name}: its status is {run.status}{reason}, and it has "
            f"{'a' if rate.value else 'no'} rate; only a run that is done and has a rate has costs"
        )
    # Without a price only electricity can be asked for.
    price = stated or run.price
    changed_price = None if stated else run.changed_price
    if price is None and _USD_PER_KWH.value is None and not changed_price:
        raise BadInput(f"{run.name}: its record has no price; {_NO_PRICE}")
    costs = {"price": price and vars(price), **costs}
    if note := changed_price or (price and price_mark(price, run)):
        costs["price_note"] = note
    costs |= _per_price(rate, price, run.sequence_length) if price else {}
    if beside := published.nearest(published.run_key(run), [run.batch_size]):
        costs["published"] = [*map(vars, beside)]
    wall_s = run.summary.wall_s
    paid_s = None if wall_s is None else run.paid_s(wall_s)
    costs |= {"wall_s": wall_s, "paid_s": paid_s, "wall_usd": _usd(paid_s, price)}
    energy = {name: run.telemetry.get(name) for name in ("energy_j", "energy_covers")}
    if _TARGET_ACCURACY.value is not None:
        to_target = time_to_target(run, _TARGET_ACCURACY.value)
        if to_target is None or not to_target.evaluations:
            raise BadInput(f"{run.name}: has no evaluations to look for --target_accuracy in")
        costs |= {"target_accuracy": _TARGET_ACCURACY.value, "target_epoch": to_target.epoch}
        costs |= {"target_s": to_target.time_s, "target_usd": _usd(to_target.paid_s, price)}
        energy["target_energy_j"] = to_target.energy_j
    if _USD_PER_KWH.value is not None:
        costs |= energy
        costs["electricity_usd"] = _electricity(energy["energy_j"])
        if "target_energy_j" in energy:
            costs["target_electricity_usd"] = _electricity(energy["target_energy_j"])
    return costs


def rate_of(run: ReportedRun) -> tuple[Estimate, dict[str, Any]]:
    """Return the images/s that a run's costs are of, and the fields that say which rate it is."""
    definition = "median of windows"
    if run.mode == "train":
        if run.rate.value is None:
            mean = value_of(run.summary, "images_per_s_whole_run")
            definition = "mean over the whole run, first epoch included"
            return Estimate(mean), {"images_per_s_whole_run": mean, "rate_is": definition}
        definition = describe_steady_rate(run.rate)
    return run.rate, run.rate.fields("images_per_s") | {"rate_is": definition}


def _usd(time_s: float | None, price: Price | None) -> float | None:
    return None if None in (time_s, price) else pricing.usd(time_s, price.usd_per_hour)


def _electricity(energy_j: float | None) -> float | None:
    return None if energy_j is None else pricing.electricity_usd(energy_j, _USD_PER_KWH.value)


def _per_price(rate: Estimate, price: Price, tokens: int | None = None) -> dict[str, float]:
    costs = at_price(rate, price, tokens)
    return {name: value for cost in costs for name, value in costs[cost].fields(cost).items()}


if __name__ == "__main__":
    entry_point.run_with_experiment(main, takes_arguments=True)
