"""Writes a report as Markdown, and its measurements as CSV."""

import csv
import html
import io
from collections.abc import Sequence
from typing import Any

from jaxbench.analysis.published import load_published
from jaxbench.report.blocks import Cell, Section, Table, Text
from jaxbench.report.measurements import COLUMNS, Measurement

MARKDOWN_MARK = "<!-- jaxbench.report -->"
# Its first columns have always been these; others may have been added since it was written.
CSV_MARK = ",".join(COLUMNS[:8])


def render_markdown(sections: Sequence[Section], title: str) -> str:
    """Returns headings, paragraphs and tables; of a chart, the table behind it."""
    lines = [MARKDOWN_MARK, f"# {_inline(title)}", ""]
    for section in sections:
        lines += [f"## {_inline(section.title)}", "", _inline(section.lead), ""]
        for block in section.blocks:
            if isinstance(block, Text):
                lines += [_inline(block.words), ""]
            elif isinstance(block, Table):
                lines += _table(block, block.title, block.note)
            elif not any(block.table is other for other in section.blocks):
                lines += _table(block.table, block.title, block.note)
    return "\n".join(lines)


def _table(table: Table, title: str, note: str) -> list[str]:
    columns = [*table.columns]
    lines = [f"### {_inline(title)}", ""] if title else []
    if table.groups:
        columns = ["", *columns]
    rules = ["---" if i in table.text_columns else "---:" for i in range(len(table.columns))]
    lines += [_row(columns), _row(["---"] * bool(table.groups) + rules)]
    group = ""
    for number, row in enumerate(table.rows):
        group = table.groups.get(number, group)
        cells = [group] if table.groups else []
        for entry in row:
            cell = entry if isinstance(entry, Cell) else Cell(entry)
            mark = "≠ " if cell.mark == "differs" else ""
            cells += [mark + cell.text, *[""] * (cell.span - 1)]
        lines.append(_row(cells))
    lines.append("")
    return [*lines, _inline(note), ""] if note else lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_inline, cells))} |"


def _inline(words: str) -> str:
    """Text that stays text: no markup of either kind, no second line, no new column."""
    escaped = html.escape(" ".join(words.split()), quote=False)
    for character in "\\`*_[]|":
        escaped = escaped.replace(character, "\\" + character)
    return escaped


def render_csv(measurements: Sequence[Measurement]) -> str:
    """Returns a row for each measurement, and for each published run and rate of its networks.

    Times are in seconds, an unknown value is an empty cell. Text that a spreadsheet would take for
    a formula has an apostrophe before it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    networks = {row.published_network for row in measurements}
    for row in [*measurements, *_published(networks)]:
        writer.writerow([_inert(getattr(row, name)) for name in COLUMNS])
    return out.getvalue()


def _inert(value: Any) -> Any:
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def _published(networks: set[str | None]) -> list[Measurement]:
    rows = []
    for table in ("training_runs", "throughput"):
        for row in load_published(table):
            if row["model"] in networks:
                rows.append(
                    Measurement(
                        origin="published",
                        status=row.get("status", "ok"),
                        network=row["model"],
                        data=row.get("data") or row["dataset"],
                        stage="training",
                        precision=row["precision"],
                        batch_size=row["global_batch"],
                        num_devices=row["devices"],
                        hardware=row["hardware"],
                        framework=row["framework"],
                        images_per_s=row.get("images_per_s"),
                        first_epoch_with_compile_s=row.get("first_epoch_s"),
                        median_epoch_s=row.get("median_epoch_s"),
                        total_s=row.get("total_time_s"),
                        figure="top-1" if row.get("top1") is not None else None,
                        score=row.get("top1"),
                        date=row["date"],
                        source=row["source"],
                    )
                )
    return rows
