"""What a report consists of, whatever it is written as: sections of tables and charts."""

import dataclasses
from collections.abc import Sequence

# As many as can be told apart.
MOST_SERIES = 7


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
      mark: differs, bad, good, soft, measured, published, running or nothing; the text says so too.
      span: over so many columns.
      run: the id of the run that the cell links to.
      left: whether it is aligned left, as words are.
    """

    text: str
    mark: str = ""
    span: int = 1
    run: str | None = None
    left: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """Figures in rows of cells; a row may be shorter by what its cells span.

    Attributes:
      note: what a reader must know of it.
      text_columns: places of the columns that are words.
      anchors: of each row, the id that links lead to.
      groups: {row number: heading above that row}.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    text_columns: Sequence[int] = (0,)
    anchors: Sequence[str] = ()
    groups: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Point:
    """A value at a place, with the ends of its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Series:
    """What is drawn as one line.

    Attributes:
      points: in order of x.
      line: whether points are joined.
      band: whether low and high are an area rather than bars at the points.
      reference: an ideal or a limit, not a measurement: grey, and its points are not marked.
    """

    label: str
    points: Sequence[Point]
    line: bool = True
    band: bool = False
    reference: bool = False


@dataclasses.dataclass(frozen=True)
class LineChart:
    """Lines over an axis.

    Attributes:
      note: n, interval, run ids: what a reader must know to believe it.
      series: at most `MOST_SERIES` that are no reference.
      table: the numbers behind it.
      from_zero: whether the y axis begins at 0.
    """

    title: str
    note: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    table: Table
    x_log: bool = False
    y_log: bool = False
    from_zero: bool = True


@dataclasses.dataclass(frozen=True)
class BarChart:
    """Stacked horizontal bars: (label, a value for each part)."""

    title: str
    note: str
    x_label: str
    parts: Sequence[str]
    bars: Sequence[tuple[str, Sequence[float]]]
    table: Table


@dataclasses.dataclass(frozen=True)
class Dot:
    """One row of a `DotChart`; `published` ones are hollow."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    published: bool = False


@dataclasses.dataclass(frozen=True)
class DotChart:
    """Values beside one another, a row each; published ones are drawn apart."""

    title: str
    note: str
    x_label: str
    dots: Sequence[Dot]
    table: Table


Chart = LineChart | BarChart | DotChart


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading, one or two sentences on how to read what is below it, and that.

    `name` is for links, one word.
    """

    name: str
    title: str
    lead: str
    blocks: Sequence[Table | Chart | Text]
