"""Which prices hold for which run."""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxbench.analysis.pricing import Price, usd_per_million_images
from jaxbench.analysis.rate import Estimate
from jaxbench.errors import BadInput
from jaxbench.metrics import plain, words
from jaxbench.offering.accelerators import catalogue_names, is_price_of, num_chips
from jaxbench.reports.runs import ReportedRun


@dataclasses.dataclass(frozen=True)
class Prices:
    """What the hardware of runs costs.

    `stated` holds for all runs, in place of what their records say; `listed` offers hold for the
    runs on just that hardware.
    """

    stated: Price | None = None
    listed: Sequence[Price] = ()
    usd_per_kwh: float | None = None

    def check(self, runs: Iterable[ReportedRun]) -> None:
        """Raise BadInput if one price is stated for different hardware, or none fits."""
        runs = [run for run in runs if run.environment]
        # CPU devices are all of one kind, and in one host: their processor tells them apart.
        machines = sorted({run.processor or run.hardware for run in runs})
        if self.stated and len(machines) > 1:
            raise BadInput(
                f"one price, but the runs are on {' and on '.join(machines)}: state the price when "
                "a run is made (--usd_per_hour of jaxbench.main), or give --prices=FILE with an "
                "offer for each"
            )
        fits = any(_fits(offer, run) for offer in self.listed for run in runs)
        kinds = sorted({run.processor or run.device_kind for run in runs})
        # Runs that cannot be read have no kind: the report says so.
        if self.listed and kinds and not fits:
            raise BadInput(f"--prices: has no offer whose hardware is one of {', '.join(kinds)}")

    def of(self, run: ReportedRun) -> list[Price]:
        """Return the prices of a run's hardware, none if no price is known."""
        if self.stated:
            return [self.stated]
        listed = _smallest([offer for offer in self.listed if _fits(offer, run)], run)
        recorded = run.price
        return ([recorded] if recorded else []) + [offer for offer in listed if offer != recorded]

    def lowest(self, run: ReportedRun) -> Price | None:
        """Return the lowest price of the run's own hardware, of more of it only if none fits."""
        fitting = [price for price in self.of(run) if not is_of_other_hardware(price, run)]
        return min(fitting, key=lambda p: (price_mark(p, run), p.usd_per_hour), default=None)


def _smallest(offers: Sequence[Price], run: ReportedRun) -> list[Price]:
    """Leave out a catalogue's machines with more devices than its smallest that has enough."""
    names = catalogue_names(run.device_kind, run.num_devices)
    listed = [offer for offer in offers if words(offer.hardware).casefold() in names]
    fewest = min((offer.devices or 0 for offer in listed), default=0)
    return [offer for offer in offers if offer not in listed or (offer.devices or 0) == fewest]


def at_price(rate: Estimate, price: Price, tokens: int | None = None) -> dict[str, Estimate]:
    """Return what a rate of images costs; of sequences, also what their tokens cost."""
    paid = price.usd_per_hour
    costs = {
        "images_per_s_per_usd_per_hour": rate.map(lambda x: x / paid),
        "usd_per_million_images": rate.map(lambda x: usd_per_million_images(x, paid)),
    }
    if tokens:  # in a sequence, which counts as an image
        of_tokens = rate.map(lambda x: usd_per_million_images(x, paid) * 1e3 / tokens)
        costs["usd_per_billion_tokens"] = of_tokens
    return costs


def price_words(price: Price, run: ReportedRun | None) -> str:
    """Return a price's origin, and how it does not belong to the run, if any."""
    offer = "" if price.offer == "stated" else f"{words(price.offer)}; "
    text = f"{offer}{words(price.date)}, {words(price.source)}"
    return "; ".join(filter(None, [text, price_mark(price, run) if run else ""]))


def price_label(price: Price, run: ReportedRun) -> str:
    """Return a price in few words, with its offer: two may be of one amount."""
    offer = "" if price.offer == "stated" else words(price.offer)
    parts = [f"{plain(price.usd_per_hour)} USD/h", offer, price_mark(price, run)]
    return ", ".join(filter(None, parts))


def price_mark(price: Price, run: ReportedRun) -> str:
    """Say that a price is of other hardware than the run's, or of more of it; nothing else."""
    if is_of_other_hardware(price, run):
        return f"PRICE OF OTHER HARDWARE: {words(price.hardware)}"
    devices = price.devices or 0
    chips = num_chips(run.device_kind, run.num_devices)
    more = price.hardware and devices > chips
    return f"PRICE OF {devices:.0f} CHIPS, THE RUN USED {chips}" if more else ""


def is_of_other_hardware(price: Price, run: ReportedRun) -> bool:
    """Return whether a price names hardware that the run did not use."""
    # --usd_per_hour names none.
    return bool(price.hardware) and not _fits(price, run)


def _fits(offer: Price, run: ReportedRun) -> bool:
    """Return whether an offer is of the run's hardware: its very name, and chips enough."""
    return is_price_of(offer, run.num_devices, run.device_kind, run.processor or run.device_kind)
