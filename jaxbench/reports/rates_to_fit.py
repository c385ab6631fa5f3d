"""The measured rates of runs and cards that `jaxbench calibrate` fits, and what it leaves out."""

import collections
import math
from collections.abc import Callable, Sequence

import jax

from jaxbench.cli import registry
from jaxbench.cli.overrides import create_experiment
from jaxbench.config import Config
from jaxbench.config.custom import Code
from jaxbench.config.fields import walk_fields
from jaxbench.errors import BadInput
from jaxbench.modes.measured_rates import Measured, NoRate, measured_rates
from jaxbench.modes.predictions import Predictor
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.rates import Rate
from jaxbench.records.reader import flat
from jaxbench.reports.collect import ReportedCard, collect
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.work import grouped
from jaxbench.schema import Environment

# Failures of a card that say nothing against its rates: a part that was not measured, and a rate
# that is not the expected one, from which a fit is to learn.
_NO_DOUBT = ("status", "slower_than_predicted", "slower_than_fleet")


def rates_to_fit(
    paths: Sequence[str], progress: Callable[[str], None]
) -> tuple[list[Rate], list[str]]:
    """Return the rates of runs and cards in or below folders, and lines that say what was taken.

    Raises:
      BadInput: a path has no run or card, or none of them has a rate to fit.
    """
    # No device is used. JAX would look for all, and its plugins complain about missing ones.
    jax.config.update("jax_platforms", "cpu")
    collection = collect(paths)
    cards = [("card", one.path, one.card, _doubt_of_card(one)) for one in collection.cards]
    runs = [("run", one.path, one, _doubt_of_run(one)) for one in collection.all_runs]
    left_out: collections.Counter[str] = collections.Counter()
    measured: dict[tuple, tuple[str, Measured]] = {}
    for kind, path, records, doubt in [*cards, *runs]:
        try:
            if doubt:
                raise NoRate(doubt)
            for one in measured_rates(records, str(path)):
                # A card has the rates of its runs, too.
                key = one.experiment, one.target.name, one.precision, one.batch, f"{one.step_s:.6g}"
                left_out["rate(s) (a second copy)"] += key in measured
                measured.setdefault(key, (kind, one))
        except NoRate as error:
            left_out[f"{kind}(s) ({error})"] += 1
    networks = grouped(measured.values(), lambda pair: _network(pair[1])).values()
    rates: dict[str, list[Rate]] = collections.defaultdict(list)
    for number, same in enumerate(networks, 1):
        progress(f"tracing {same[0][1].experiment} ({number} of {len(networks)})")
        try:
            shape = _trace(same[0][1])
            for kind, one in same:
                rate = one.rate(shape)
                rates[kind].append(rate)
        except BadInput as error:
            left_out[f"rate(s) ({error})"] += len(same)
    lines = [*collection.notes, *collection.card_notes]
    if +left_out:
        reasons = (f"{number:,} {reason}" for reason, number in (+left_out).items())
        lines.append(f"left out: {', '.join(reasons)}")
    if not rates:
        raise NoRate(f"{', '.join(paths)}: no rate to fit; {'; '.join(lines)}")
    taken = (
        f"{len(some):,} rate(s) of {len({rate.source for rate in some}):,} {kind}(s)"
        for kind, some in rates.items()
    )
    return [rate for some in rates.values() for rate in some], [", ".join(taken), *lines]


def _doubt_of_card(reported: ReportedCard) -> str:
    """Return why the rates of a card may not be those of a machine of its kind, or nothing."""
    if reported.problems:
        return "`jaxbench qualify check` refuses it"
    for one in reported.card.verdict.findings:
        if one.part == "host" or (one.status == "fail" and one.rule not in _NO_DOUBT):
            return f"{one.part}: {one.rule.replace('_', ' ')}"
    return _lowered_power(reported.card.environment)


def _doubt_of_run(run: ReportedRun) -> str:
    """Return why the rate of a run may not be that of a machine of its kind, or nothing."""
    if run.status != "done":
        return f"its status is {run.status}"
    if run.changed_devices:
        return "it was resumed on other devices"
    return next(iter(run.doubts), "") or _lowered_power(run.environment)


def _lowered_power(environment: Environment) -> str:
    lowered = any(
        board.get("power_limit_w", math.inf) < board.get("default_power_limit_w", 0.0)
        for board in environment.get("boards", ())
    )
    return "its power limit is below the default" if lowered else ""


def _network(one: Measured) -> tuple:
    """Return what is equal for rates of one network; a device may choose another attention."""
    kind, model = one.target.kind, repr(one.settings.get("model"))
    return one.experiment, one.precision, kind, f"{one.macs:.3g}", model


def _trace(one: Measured) -> NetworkShape:
    """Return the shape of the network that a rate is of, from its experiment and its fields.

    Raises:
      BadInput: this jaxbench has no such experiment, or makes another network of it.
    """
    # A name from a record is no path: nothing that it names is run.
    if one.experiment.partition(":")[0] not in registry.available():
        raise NoRate(f"jaxbench has no experiment {one.experiment}")
    config = registry.load(one.experiment)
    if not isinstance(config, Config):
        raise NoRate(f"{one.experiment} trains no network")
    # A record has only the text of code.
    kept = {"name", *(name for name, value, *_ in walk_fields(config) if isinstance(value, Code))}
    fields = flat({"precision": one.precision, **one.settings})
    config = create_experiment(config, {name: v for name, v in fields if name not in kept})
    shape, network = Predictor(config).trace(one.target)
    if not math.isclose(one.macs, network["forward_macs_per_image"], rel_tol=1e-3):
        raise NoRate(f"this jaxbench makes another network of {one.experiment}")
    return shape
