"""The flags that say what the hardware costs, the same in every entry point that has them."""

from absl import flags

from jaxbench.analysis.pricing import MOST, Price, find_price, load_prices, read_prices
from jaxbench.cli.flag_table import define_flags
from jaxbench.clock import now
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import parse_target, split_targets
from jaxbench.offering.accelerators import lowest_price

USD_PER_HOUR, OFFER, PRICES = define_flags("price")


def target_prices(names: str) -> dict[str, Price]:
    """Return {target: what an hour of it costs} for --target; a stated price is of each of them.

    Of the offers of --prices it is the lowest of just that machine; raise BadInput if there is none
    of any of them, or as `stated_price`.
    """
    targets, (stated, listed) = [*map(parse_target, split_targets(names))], run_prices()
    if not listed:
        return {target.name: stated for target in targets if stated}
    prices = {}
    for target in targets:
        if price := lowest_price(listed, target.kind, target.num_devices):
            prices[target.name] = price
    if not prices:
        just = ", ".join(target.name for target in targets)
        raise BadInput(f"--prices={PRICES.value}: has no offer of just {just}")
    return prices


def run_prices() -> tuple[Price | None, list[Price]]:
    """Return the price of all runs, see `stated_price`, or else the offers of --prices."""
    if not PRICES.value or OFFER.value is not None:
        return stated_price(), []
    if USD_PER_HOUR.value is not None:
        raise BadInput("--usd_per_hour and --prices: give one of them")
    return None, read_prices(PRICES.value)


def stated_price() -> Price | None:
    """Return the price that --usd_per_hour or --offer states, None without them.

    Raise BadInput if both are given, or the price is none.
    """
    if OFFER.value is not None:
        if USD_PER_HOUR.value is not None:
            raise BadInput("--usd_per_hour and --offer: give one of them")
        return find_price(OFFER.value, load_prices(PRICES.value))
    if PRICES.value:
        raise BadInput("--prices: name one of its offers with --offer")
    if USD_PER_HOUR.value is None:
        return None
    check_positive("usd_per_hour")
    return Price("stated", "", None, USD_PER_HOUR.value, now().date().isoformat(), "--usd_per_hour")


def check_positive(*names: str) -> None:
    """Raise BadInput if one of these flags is given and is no number above 0, or an absurd one."""
    for name in names:
        value = flags.FLAGS[name].value
        if value is not None and not 0 < value <= MOST:  # written so that nan fails it too
            raise BadInput(f"--{name}={value:g}: must be more than 0, at most {MOST:g}")
