"""What a report has to say, a module for each kind of section.

A section is a function that gets the `ReportContext` and returns a `Section`, or None if there
is nothing of its kind. Another one is added to `SECTIONS`, in the order of reading.
"""

from collections.abc import Callable, Sequence

from jaxbench.reports.blocks import Section
from jaxbench.reports.context import ReportContext
from jaxbench.reports.sections.before_you_rent import before_you_rent
from jaxbench.reports.sections.cards import card_details, cards
from jaxbench.reports.sections.cost import cost, to_target
from jaxbench.reports.sections.history import conv2d, history
from jaxbench.reports.sections.learning import learning
from jaxbench.reports.sections.overview import overview
from jaxbench.reports.sections.rates import rates, scaling
from jaxbench.reports.sections.runs import list_runs
from jaxbench.reports.sections.telemetry import telemetry, time_split

SECTIONS: Sequence[Callable[[ReportContext], Section | None]] = (
    *(overview, cards, card_details, before_you_rent, list_runs, history),
    *(rates, learning, time_split, scaling, telemetry, conv2d, cost, to_target),
)

# A report of more runs begins with its answers, and details are unfolded on demand.
_MOST_UNFOLDED = 6
_NEVER_FOLDED = (
    *("cards", "card-details", "overview", "runs"),
    *("rates", "learning", "before-you-rent"),
)


def make_sections(context: ReportContext) -> list[Section]:
    """Return the sections that the context has something for; of many runs, most are folded."""
    made = [made_section for section in SECTIONS if (made_section := section(context)) is not None]
    many = len(context.runs) > _MOST_UNFOLDED
    return [one._replace(folded=many and one.name not in _NEVER_FOLDED) for one in made]
