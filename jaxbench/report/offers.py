"""Which prices hold for which run."""

from collections.abc import Iterable, Sequence

from jaxbench.errors import BadInput
from jaxbench.prices import Price, recorded_price
from jaxbench.report.collect import ReportedRun
from jaxbench.report.values import words


class Offers:
    """What the hardware of runs costs.

    Args:
      stated: a price for all runs, in place of what their records say.
      listed: offers that hold for the runs on just that hardware.
      usd_per_kwh: what a kWh of electricity costs, None if nobody said.
    """

    def __init__(
        self,
        stated: Price | None = None,
        listed: Sequence[Price] = (),
        usd_per_kwh: float | None = None,
    ):
        self._stated = stated
        self._listed = listed
        self.usd_per_kwh = usd_per_kwh

    def check(self, runs: Iterable[ReportedRun]) -> None:
        """Raises BadInput where one price is stated for different hardware, or fits none."""
        runs = [run for run in runs if run.environment]
        kinds = sorted({run.device_kind for run in runs})
        if self._stated and len(kinds) > 1:
            raise BadInput(
                f"one price, but the runs are on {' and on '.join(kinds)}: state the price when "
                "a run is made (--usd_per_hour of jaxbench.main), or give --prices=FILE with an "
                "offer for each"
            )
        if self._listed and not any(_fits(offer, run) for offer in self._listed for run in runs):
            raise BadInput(
                f"--prices: has no offer whose hardware is one of {', '.join(kinds) or 'none'}"
            )

    def of(self, run: ReportedRun) -> list[Price]:
        """Returns the prices of a run's hardware, none where nobody said."""
        if self._stated:
            return [self._stated]
        listed = [offer for offer in self._listed if _fits(offer, run)]
        own = recorded_price(run.document)
        return ([own] if own else []) + [offer for offer in listed if offer != own]


def price_words(price: Price) -> str:
    """A price with its origin."""
    offer = "" if price.offer == "stated" else f"{words(price.offer)}; "
    return f"{offer}{words(price.date)}, {words(price.source)}"


def _fits(offer: Price, run: ReportedRun) -> bool:
    """Whether it is an offer of the run's hardware: its very name, and devices enough."""
    names = {run.device_kind.casefold(), (run.processor or run.device_kind).casefold()}
    enough = offer.devices is None or offer.devices >= (run.num_devices or 1)
    return offer.hardware.casefold() in names and enough
