"""Rows of published tables."""

from experiments.tables import ComparedRow, PublishedTable


def find_row(table: PublishedTable, name: str) -> ComparedRow:
    return next(row for row in table.rows if row.name == name)
