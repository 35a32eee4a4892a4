"""Parts that predictions share: spans of a text, and texts with marked spans or attention as HTML and plain text."""

import html
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from relmo.text.tokenize import Token

SHADES = ((0.7, "█"), (0.4, "▓"), (0.2, "▒"), (0.05, "░"), (0.0, " "))  # minimum weight and its character
MAX_COLUMN_NAME, MAX_ROW_NAME = 12, 16  # characters of a unit
END = "·"  # end of the text, in the last row
BEGIN, END_OF_MARK = "begin", "end"  # of a mark


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


@dataclass(frozen=True)
class Prediction:
    """Base class of predictions. If it has `pieces()`, parts of `as_text` with colours, terminals show them."""

    def as_text(self) -> str:
        """Return the prediction as text for a terminal."""
        return "".join(text for text, _ in self.pieces())  # type: ignore[attr-defined]

    def to_dict(self) -> dict[str, Any]:
        """Return the input and the prediction as values for JSON, as in `relmo predict --json` and `relmo serve`."""
        return asdict(self)


@dataclass(frozen=True)
class TokenizedText(Prediction):
    """Prediction with a text and its tokens."""

    text: str  # the given text; if a list of words was given, the words joined by spaces
    tokens: list[Token]  # words with their offsets in the text

    @property
    def words(self) -> list[str]:
        """Text of each token."""
        return [token.text for token in self.tokens]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Start and end of each token in the text, in characters."""
        return [(token.start, token.end) for token in self.tokens]


class MarkedSpan(NamedTuple):
    """Characters of a text, the label shown after them, and their hue in degrees."""

    start: int
    end: int
    label: str
    hue: int


def split_at_marks(text: str, marks: Sequence[MarkedSpan]) -> Iterator[tuple[str, MarkedSpan | None]]:
    """Yield parts of the text with None, and BEGIN or END_OF_MARK with a mark; the longest begins first, ends last."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, mark in enumerate(marks):
        begins[mark.start].append((-mark.end, number))
        ends[mark.end].append((-mark.start, -number))
    previous = 0
    for offset in sorted({*begins, *ends}):
        yield text[previous:offset], None
        yield from ((END_OF_MARK, marks[-number]) for _, number in sorted(ends[offset]))
        yield from ((BEGIN, marks[number]) for _, number in sorted(begins[offset]))
        previous = offset
    yield text[previous:].rstrip(), None


def mark_labels(spans: Iterable[LabelledSpan]) -> list[MarkedSpan]:
    """Mark spans in the hues of their labels, which depend on the label alone."""
    return [MarkedSpan(span.start, span.end, span.label, crc32(span.label.encode()) % 360) for span in spans]


def mark_html(text: str, marks: Sequence[MarkedSpan], begin: str, end: str) -> str:
    """Return a text as HTML with formats for the begin and the end of each mark, of its {label} and {hue}."""
    parts = []
    for part, mark in split_at_marks(text, marks):
        if mark is None:
            parts.append(html.escape(part))
        else:
            parts.append((begin if part == BEGIN else end).format(label=html.escape(mark.label), hue=mark.hue))
    return "".join(parts)


def render_html(text: str, marks: Sequence[MarkedSpan]) -> str:
    """Render a text with coloured spans for a notebook."""
    begin = (
        '<span style="color:#222;background:hsl({hue} 75% 88%);border-bottom:2px solid '
        'hsl({hue} 60% 45%);border-radius:3px;padding:1px 2px">'
    )
    marked = mark_html(text, marks, begin, '<sub style="color:hsl({hue} 70% 28%)"> {label}</sub></span>')
    return f'<p style="white-space:pre-wrap;line-height:1.9">{marked}</p>'


def shorten(text: str, max_length: int = 80) -> str:
    """Return a text on one line of at most `max_length` characters, for a repr."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def attention_text(source: Sequence[str], units: Sequence[str], weights: np.ndarray) -> str:
    """Draw attention weights (T + 1, S) for a terminal: rows are written units and the end, columns source units."""

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
