"""The flags that say what the hardware costs, the same in every entry point that has them."""

import math

from absl import flags

from jaxbench.analysis.pricing import Price, find_price, load_prices
from jaxbench.clock import now
from jaxbench.errors import BadInput

USD_PER_HOUR = flags.DEFINE_float(
    "usd_per_hour", None, "What an hour of the hardware costs, all of it."
)
OFFER = flags.DEFINE_string(
    "offer",
    None,
    "The name of an offer with its price; python -m jaxbench.cost --list_offers shows them.",
)
PRICES = flags.DEFINE_string(
    "prices",
    None,
    "A CSV file of your own offers: offer,hardware,devices,usd_per_hour,date,source.",
)
NAMES = ("usd_per_hour", "offer", "prices")


def stated_price() -> Price | None:
    """Returns the price that --usd_per_hour or --offer states, None without them.

    Raises:
      BadInput: both are given, or the price is none.
    """
    if USD_PER_HOUR.value is None and OFFER.value is None:
        if PRICES.value:
            raise BadInput("--prices: name one of its offers with --offer")
        return None
    if USD_PER_HOUR.value is not None and OFFER.value is not None:
        raise BadInput("--usd_per_hour and --offer: give one of them")
    if OFFER.value is not None:
        return find_price(OFFER.value, load_prices(PRICES.value))
    check_positive("usd_per_hour")
    if PRICES.value:
        raise BadInput("--prices with --usd_per_hour: name one of its offers with --offer")
    return Price("stated", "", None, USD_PER_HOUR.value, now().date().isoformat(), "--usd_per_hour")


def check_positive(*names: str) -> None:
    """Raises BadInput where one of these flags is given and is no number above 0."""
    for name in names:
        value = flags.FLAGS[name].value
        if value is not None and not 0 < value < math.inf:  # written so that nan fails it too
            raise BadInput(f"--{name}={value:g}: must be more than 0")


def check_target(name: str) -> None:
    """Raises BadInput where the flag of this name is given and is no share."""
    check_positive(name)
    value = flags.FLAGS[name].value
    if value is not None and value > 1:
        raise BadInput(f"--{name}={value:g}: must be a share, such as 0.94")
