"""Attention as a picture in text and in HTML: a row for each unit that was written, a column for each that was read."""

from collections.abc import Sequence
from html import escape

import numpy as np

SHADES = ((0.7, "█"), (0.4, "▓"), (0.2, "▒"), (0.05, "░"), (0.0, " "))
"""A weight of at least so much looks so."""
TALLEST, WIDEST = 12, 16  # letters of a unit that are shown above the columns, and before the rows
END = "·"  # the end of a text, in the last row


def attention_text(source: Sequence[str], units: Sequence[str], weights: np.ndarray) -> str:
    """A picture for a terminal; the units of the source stand above their columns, from top to bottom. Weights (T + 1,
    S) have a row for the end too."""
    columns, rows = [_cut(unit, TALLEST) for unit in source], [_cut(unit, WIDEST) for unit in [*units, END]]
    height, width = max(map(len, columns), default=0), max(map(len, rows))
    header = [" ".join(word.rjust(height)[i] for word in columns) for i in range(height)]
    body = [" ".join(map(_shade, row)) for row in weights.tolist()]
    names = [" " * width] * height + [row.rjust(width) for row in rows]
    return "\n".join(f"{name}  {line}".rstrip() for name, line in zip(names, header + body, strict=True))


def attention_html(source: Sequence[str], units: Sequence[str], weights: np.ndarray) -> str:
    """A table for a notebook; the darker, the more weight."""
    head = "".join(f"<th>{escape(unit)}</th>" for unit in source)
    lines = [
        f"<tr><th style='text-align:right'>{escape(unit)}</th>{''.join(map(_cell, row))}</tr>"
        for unit, row in zip([*units, END], weights.tolist(), strict=True)
    ]
    return f"<table><tr><th></th>{head}</tr>{''.join(lines)}</table>"


def _cell(weight: float) -> str:
    return f"<td title='{weight:.3f}' style='background:rgba(31,119,180,{weight:.2f})'></td>"


def _cut(unit: str, most: int) -> str:
    shown = "".join(c if c.isprintable() and c != " " else "␣" for c in unit)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _shade(weight: float) -> str:
    return next((shade for least, shade in SHADES if weight >= least), " ")
