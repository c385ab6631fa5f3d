"""Offers: what came back of machines that were to be rented, and what is still to run."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxbench.analysis import pricing
from jaxbench.offering.folder import Offer
from jaxbench.reports.blocks import Section
from jaxbench.reports.collect import ReportedCard
from jaxbench.reports.columns import run_cell, status_cell
from jaxbench.reports.compiled import compiled_steps
from jaxbench.reports.context import STAGES, Measurement, ReportContext, make_section
from jaxbench.reports.prices import price_words
from jaxbench.reports.published import Sources
from jaxbench.reports.sections import cards
from jaxbench.tables.table import Cell, Column, make_table, metric_column, with_figures


class _Row(NamedTuple):
    """An offer with something that came back; with neither, it has not run yet."""

    context: ReportContext
    offer: Offer
    ceiling: float | None
    measured: Measurement | None = None
    card: ReportedCard | None = None

    run = property(lambda self: self.measured and self.measured.run)
    to_target = property(lambda self: self.context.times_to_target.get(self.run))

    @property
    def price(self) -> pricing.Price | None:
        """The lowest of the run's own hardware; without a run, the catalogue's of the offer."""
        if self.run is None:
            return self.context.prices.of_offer(self.offer.name)
        return self.context.prices.lowest(self.run)


def _state(row: _Row) -> Cell:
    if row.card is not None:
        return cards.status_cell(row.card.card.verdict and row.card.card.verdict.outcome)
    return status_cell(row.run.status) if row.run else Cell("not yet run", "soft")


def _came_back(row: _Row) -> Cell | str | None:
    if row.card is not None:
        return row.card.id
    return run_cell(row.run.id) if row.run else None


def _usd_to_target(row: _Row) -> float | None:
    unknown = row.to_target is None or row.price is None
    return None if unknown else pricing.usd(row.to_target.paid_s, row.price.usd_per_hour)


def _usd_per_million(row: _Row) -> float | None:
    rate = row.measured and row.measured.rate.value
    if not rate or row.price is None:
        return None
    return pricing.usd_per_million_images(rate, row.price.usd_per_hour)


_COLUMNS = (
    Column("offer", "offer.name"),
    Column("of", "offer.label"),
    Column("state", _state, left=True),
    Column("run or card", _came_back, left=True),
    Column("what", lambda row: row.measured and STAGES.get(row.measured.stage)),
    metric_column("images_per_s", "measured.rate.value"),
    Column("target [%]", "to_target.label"),
    metric_column("target_s", "to_target.time_s"),
    metric_column("target_usd", _usd_to_target),
    metric_column("usd_per_million_images", _usd_per_million),
    metric_column("joules_per_image", "run.telemetry.joules_per_image"),
    metric_column("price.usd_per_hour"),
    Column("price: offer, date, source", lambda row: row.price and price_words(row.price, row.run)),
    metric_column("ceiling_images_per_s", "ceiling", " (predicted)"),
    Column("compiles as", "offer.target"),
)


def offers(context: ReportContext) -> Section | None:
    """Return a table of the offers: those that came back with their figures, and the others."""
    steps = compiled_steps(context, Sources()) if context.collection.offers else []
    ceilings: dict[tuple, float] = {}
    for step in steps:
        key = step.run.target, step.run.experiment
        ceilings[key] = max(step.ceiling or 0.0, ceilings.get(key, 0.0))
    rows = [
        row
        for offer in context.collection.offers
        for row in _rows(context, offer, ceilings.get((offer.target, offer.label)) or None)
    ]
    waiting = [row.offer for row in rows if not (row.run or row.card)]
    note = (
        "USD: at the lowest price that the report knows of just this hardware; what was paid may "
        "differ. The ceiling is predicted, see Before you rent."
    )
    if waiting and not ceilings:
        # The section Before you rent is made of such a sweep.
        targets = ",".join(dict.fromkeys(offer.target for offer in waiting))
        note += f" Ask the compiler first: jaxbench sweep --experiment=... --target={targets}."
    return make_section(
        "offers",
        "Offers",
        f"{len(context.collection.offers)} machines to rent, {len(waiting)} of them not yet run.",
        [make_table(with_figures(_COLUMNS, rows), rows, title="By offer", note=note)],
    )


def _rows(context: ReportContext, offer: Offer, ceiling: float | None) -> Iterator[_Row]:
    """Yield an offer with each rate and card in its folder, or alone."""
    folder = offer.folder.resolve()
    within = [card for card in context.collection.cards if card.path.is_relative_to(folder)]
    yield from (_Row(context, offer, ceiling, card=card) for card in within)
    measured = [
        row
        for row in context.measurements
        if row.run.path.resolve().is_relative_to(folder) and row.stage in (None, *STAGES)
    ]
    # The runs of a card are its parts.
    if not within:
        yield from (_Row(context, offer, ceiling, row) for row in measured)
        if not measured:
            yield _Row(context, offer, ceiling)
