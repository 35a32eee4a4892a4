"""What predictions are made of: stretches of a text; and texts with such stretches marked, as HTML for notebooks.

A text is what was given. Where a list of words was given, it is these words with a space between them.
"""

import html
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from zlib import crc32


@dataclass(frozen=True)
class TextSpan:
    """A stretch of a text: `text[start:end]`, and of its words: `words[start_word:end_word]`."""

    text: str
    start: int
    end: int
    start_word: int
    end_word: int


@dataclass(frozen=True)
class LabelledSpan(TextSpan):
    """A stretch with its label, and the probability that all of its words have the tags that make it up."""

    label: str
    probability: float


class MarkedPart(NamedTuple):
    """A part of a marked text: characters, or where the stretch of this number begins or ends."""

    kind: Literal["text", "begin", "end"]
    text: str
    number: int = 0


def marked_parts(text: str, places: Sequence[tuple[int, int]]) -> Iterator[MarkedPart]:
    """The text with the beginnings and ends of stretches, given by their characters. Where several begin, the longest
    is first; where several end, the one that began last."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (first, last) in enumerate(places):
        begins[first].append((-last, number))
        ends[last].append((-first, -number))
    before = 0
    for place in sorted({*begins, *ends}):
        yield MarkedPart("text", text[before:place])
        yield from (MarkedPart("end", "", -number) for _, number in sorted(ends[place]))
        yield from (MarkedPart("begin", "", number) for _, number in sorted(begins[place]))
        before = place
    yield MarkedPart("text", text[before:].rstrip())


class MarkedSpan(NamedTuple):
    """Characters of a text, what stands behind them, and their colour in degrees."""

    start: int
    end: int
    label: str
    hue: int


def label_marks(spans: Iterable[LabelledSpan]) -> list[MarkedSpan]:
    """Stretches in the colours of their labels, which are always the same."""
    return [MarkedSpan(each.start, each.end, each.label, crc32(each.label.encode()) % 360) for each in spans]


def marked_html(text: str, marks: Sequence[MarkedSpan]) -> str:
    """A text with coloured stretches, for a notebook."""
    shown = []
    for part in marked_parts(text, [(mark.start, mark.end) for mark in marks]):
        if part.kind == "text":
            shown.append(html.escape(part.text))
            continue
        mark = marks[part.number]
        if part.kind == "begin":
            shown.append(
                f'<span style="color:#222;background:hsl({mark.hue} 75% 88%);border-bottom:2px solid '
                f'hsl({mark.hue} 60% 45%);border-radius:3px;padding:1px 2px">'
            )
        else:
            shown.append(f'<sub style="color:hsl({mark.hue} 70% 28%)"> {html.escape(mark.label)}</sub></span>')
    return f'<p style="white-space:pre-wrap;line-height:1.9">{"".join(shown)}</p>'


def shortened(text: str, most: int = 80) -> str:
    """A text in one line of at most so many characters, to stand in a repr."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
