"""What a report consists of, whatever it is written as: sections of tables and charts."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxbench.tables.columns import Cell
from jaxbench.tables.table import Table

# As many as can be told apart.
MOST_SERIES = 7


class Point(NamedTuple):
    """A value at a place, with the ends of its bar.

    Attributes:
      tooltip: what the bar is.
      runs: the values that it is of, drawn as small dots.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    tooltip: str = ""
    runs: Sequence[float] = ()


class Series(NamedTuple):
    """What is drawn as one line.

    Attributes:
      band: whether low and high are an area rather than bars at the points.
      reference: an ideal or a limit, not a measurement: grey, and its points are not marked.
    """

    label: str
    points: Sequence[Point]
    band: bool = False
    reference: bool = False


class LineChart(NamedTuple):
    """Lines over an axis, at most `MOST_SERIES` besides references.

    Attributes:
      note: n, interval, run ids: what a reader must know to believe it.
      from_zero: whether the y axis begins at 0.
      numbers: whether its points are listed below it, because no table of the section has them.
    """

    title: str
    note: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    from_zero: bool = True
    numbers: bool = False


class Dot(NamedTuple):
    """A value of a `DotChart`.

    Attributes:
      kind: `measured`, `published` (hollow) or `predicted`, whose interval is a bar.
      tooltip: what the bar is.
      runs: the values that it is of, drawn as small dots.
      beside: further dots in its row.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    kind: str = "measured"
    tooltip: str = ""
    runs: Sequence[float] = ()
    beside: Sequence["Dot"] = ()


class DotChart(NamedTuple):
    """Values beside one another, a row each."""

    title: str
    note: str
    x_label: str
    dots: Sequence[Dot]
    x_log: bool = False


class Answer(NamedTuple):
    """What a machine came to: a sentence and a few large values.

    Attributes:
      tiles: of each value its name, itself, and its interval with what it is of.
      marks: what makes its values no figures of an accelerator's work: simulated, tiny, synthetic.
    """

    title: str
    sentence: str
    tiles: Sequence[tuple[str, Cell, str]]
    marks: Sequence[str] = ()


class Banner(NamedTuple):
    """What a reader must know before the values, in sentences; the details are folded."""

    sentences: Sequence[str]
    details: Table


Chart = LineChart | DotChart
# A string is a paragraph.
Block = Table | Chart | Answer | Banner | str


class Section(NamedTuple):
    """A heading, one or two sentences on how to read what is below it, and that.

    Attributes:
      folded: whether only the heading is seen at first.
    """

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]
    folded: bool = False
