"""What a report has to say, a module for each kind of section.

A section is a function that gets the `ReportContext` and returns a `Section`, or None where there
is nothing of its kind. Another one is added to `SECTIONS`, in the order of reading.
"""

from collections.abc import Callable

from jaxbench.report.blocks import Section
from jaxbench.report.context import ReportContext
from jaxbench.report.sections.batches import batches
from jaxbench.report.sections.conv2d import conv2d
from jaxbench.report.sections.cost import cost
from jaxbench.report.sections.history import history
from jaxbench.report.sections.learning import learning
from jaxbench.report.sections.overview import overview
from jaxbench.report.sections.rates import rates
from jaxbench.report.sections.roofline import roofline
from jaxbench.report.sections.scaling import scaling
from jaxbench.report.sections.telemetry import telemetry
from jaxbench.report.sections.time_split import time_split
from jaxbench.report.sections.to_target import to_target

SECTIONS: tuple[Callable[[ReportContext], Section | None], ...] = (
    overview,
    batches,
    history,
    rates,
    learning,
    time_split,
    scaling,
    roofline,
    telemetry,
    conv2d,
    cost,
    to_target,
)


def make_sections(context: ReportContext) -> list[Section]:
    """Return the sections that the context has something for."""
    made = [section(context) for section in SECTIONS]
    return [section for section in made if section is not None]
