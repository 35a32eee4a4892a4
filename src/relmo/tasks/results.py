"""Parts that predictions share: spans of a text, and texts with marked spans or attention as HTML and plain text."""

import html
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from zlib import crc32

import numpy as np

from relmo.text.tokenize import Token

SHADES = ((0.7, "█"), (0.4, "▓"), (0.2, "▒"), (0.05, "░"), (0.0, " "))  # minimum weight and its character
MAX_COLUMN_NAME, MAX_ROW_NAME = 12, 16  # characters of a unit
END = "·"  # end of the text, in the last row


@dataclass(frozen=True)
class TextSpan:
    """Span of a text: characters `text[start:end]`, words `words[start_word:end_word]`."""

    text: str
    start: int
    end: int
    start_word: int
    end_word: int


@dataclass(frozen=True)
class LabelledSpan(TextSpan):
    """Span with a label, and the joint probability of the tags of its words."""

    label: str
    probability: float


class TokenizedText:
    """Mixin of predictions with a text and its tokens.

    text     the given text; if a list of words was given, the words joined by spaces
    tokens   words with their offsets in the text
    """

    text: str
    tokens: list[Token]

    @property
    def words(self) -> list[str]:
        """Text of each token."""
        return [token.text for token in self.tokens]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Start and end of each token in the text, in characters."""
        return [(token.start, token.end) for token in self.tokens]


class MarkedPart(NamedTuple):
    """Part of a marked text: characters, or the begin or end of the span with this number."""

    kind: Literal["text", "begin", "end"]
    text: str
    number: int = 0


def split_at_spans(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[MarkedPart]:
    """Split a text at the begins and ends of spans so that they nest: the longest span begins first and ends last."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (start, end) in enumerate(spans):
        begins[start].append((-end, number))
        ends[end].append((-start, -number))
    previous = 0
    for offset in sorted({*begins, *ends}):
        yield MarkedPart("text", text[previous:offset])
        yield from (MarkedPart("end", "", -number) for _, number in sorted(ends[offset]))
        yield from (MarkedPart("begin", "", number) for _, number in sorted(begins[offset]))
        previous = offset
    yield MarkedPart("text", text[previous:].rstrip())


class MarkedSpan(NamedTuple):
    """Characters of a text, the label shown after them, and their hue in degrees."""

    start: int
    end: int
    label: str
    hue: int


def mark_labels(spans: Iterable[LabelledSpan]) -> list[MarkedSpan]:
    """Mark spans in the hues of their labels, which depend on the label alone."""
    return [MarkedSpan(span.start, span.end, span.label, crc32(span.label.encode()) % 360) for span in spans]


def render_html(text: str, marks: Sequence[MarkedSpan]) -> str:
    """Render a text with coloured spans for a notebook."""
    parts = []
    for part in split_at_spans(text, [(mark.start, mark.end) for mark in marks]):
        mark = marks[part.number] if part.kind != "text" else None
        if mark is None:
            parts.append(html.escape(part.text))
        elif part.kind == "begin":
            parts.append(
                f'<span style="color:#222;background:hsl({mark.hue} 75% 88%);border-bottom:2px solid '
                f'hsl({mark.hue} 60% 45%);border-radius:3px;padding:1px 2px">'
            )
        else:
            parts.append(f'<sub style="color:hsl({mark.hue} 70% 28%)"> {html.escape(mark.label)}</sub></span>')
    return f'<p style="white-space:pre-wrap;line-height:1.9">{"".join(parts)}</p>'


def shorten(text: str, max_length: int = 80) -> str:
    """Return a text on one line of at most `max_length` characters, for a repr."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def attention_text(source: Sequence[str], units: Sequence[str], weights: np.ndarray) -> str:
    """Draw attention weights (T + 1, S) for a terminal: a row per written unit and the end, a column per source unit.

    The names of columns are written from top to bottom.
    """

    def shorten_name(unit: str, max_length: int) -> str:
        visible = "".join(c if c.isprintable() and c != " " else "␣" for c in unit)
        return visible if len(visible) <= max_length else visible[: max_length - 1] + "…"

    columns = [shorten_name(unit, MAX_COLUMN_NAME) for unit in source]
    rows = [shorten_name(unit, MAX_ROW_NAME) for unit in [*units, END]]
    height, width = max(map(len, columns), default=0), max(map(len, rows))
    lines = [" ".join(name.rjust(height)[i] for name in columns) for i in range(height)]
    for row in weights.tolist():
        lines.append(" ".join(next((shade for least, shade in SHADES if weight >= least), " ") for weight in row))
    names = [" " * width] * height + [row.rjust(width) for row in rows]
    return "\n".join(f"{name}  {line}".rstrip() for name, line in zip(names, lines, strict=True))


def attention_html(source: Sequence[str], units: Sequence[str], weights: np.ndarray) -> str:
    """Render attention weights (T + 1, S) as a table for a notebook; darker cells have more weight."""
    lines = ["".join(f"<th>{html.escape(unit)}</th>" for unit in ["", *source])]
    for unit, row in zip([*units, END], weights.tolist(), strict=True):
        cells = (f"<td title='{weight:.3f}' style='background:rgba(31,119,180,{weight:.2f})'></td>" for weight in row)
        lines.append(f"<th style='text-align:right'>{html.escape(unit)}</th>{''.join(cells)}")
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
