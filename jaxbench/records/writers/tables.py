"""The tables of the console, for the writers of records."""

from jaxbench.tables.spreadsheet import inert_cell
from jaxbench.tables.text import Cell, GrowingTable, text_table

__all__ = ["Cell", "GrowingTable", "inert_cell", "text_table"]
