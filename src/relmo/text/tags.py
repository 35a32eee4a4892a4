"""Spans written as a tag for each word, and which tag may follow which.

    BIO     B-X begins a span of type X, I-X goes on with it, O is outside (also called IOB2)
    IOB1    the same, but B-X stands only where a span follows another of its type
    BIOUL   also L-X for a span's last word and U-X for a span of a single word (BIOES: E and S)

`bio` reads all of them. Like the field's scorers it also reads broken sequences: a span begins wherever a tag does not
continue the span before it.

    Ramshaw & Marcus 1995, Text chunking;  Ratinov & Roth 2009, Design challenges and misconceptions in NER
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

OUTSIDE = "O"
MIN_SPAN_TAGS = 0.9  # share of tags; a file of spans with a few broken tags is still a file of spans
BEGINS, ENDS = "BUS", "LEUS"  # prefixes that always begin a span, and that always end one


class Span(NamedTuple):
    """The words from `start` up to `end`, which is not one of them, and their type."""

    start: int
    end: int
    label: str


def _split_tag(tag: str) -> tuple[str, str]:
    """B-creative-work -> B, creative-work; O has no type."""
    prefix, _, label = tag.partition("-")
    return prefix, label


def is_span_tag(tag: str) -> bool:
    """Whether a tag is one of BIO, IOB1, BIOUL or BIOES."""
    prefix, label = _split_tag(tag)
    return tag == OUTSIDE or (len(prefix) == 1 and prefix in "BIULES" and bool(label))


def are_span_tags(tags: Iterable[str]) -> bool:
    """Return whether the tags of a text mark spans: nearly all are those of an encoding, and not all of them O."""
    counts = Counter(tags)
    num_span_tags = sum(count for tag, count in counts.items() if is_span_tag(tag))
    has_span = any(tag != OUTSIDE and is_span_tag(tag) for tag in counts)
    return has_span and num_span_tags >= MIN_SPAN_TAGS * counts.total()


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of tags in any of the encodings."""
    found: list[Span] = []
    start, before = 0, OUTSIDE
    for i, tag in enumerate([*tags, OUTSIDE]):
        if before != OUTSIDE and not _goes_on(before, tag):
            found.append(Span(start, i, _split_tag(before)[1]))
        if not _goes_on(before, tag):
            start = i
        before = tag
    return found


def _goes_on(before: str, tag: str) -> bool:
    """Whether a tag goes on with the span of the tag before it."""
    (old, old_label), (new, label) = _split_tag(before), _split_tag(tag)
    return OUTSIDE not in (before, tag) and label == old_label and new not in BEGINS and old not in ENDS


def bio(tags: Sequence[str]) -> list[str]:
    """Tags in any of the encodings as BIO."""
    result = [OUTSIDE] * len(tags)
    for start, end, label in spans(tags):
        result[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    return result


def bioul(tags: Sequence[str]) -> list[str]:
    """Tags in any of the encodings as BIOUL."""
    result = [OUTSIDE] * len(tags)
    for start, end, label in spans(tags):
        inner = [f"I-{label}"] * (end - start - 2)
        result[start:end] = [f"U-{label}"] if end - start == 1 else [f"B-{label}", *inner, f"L-{label}"]
    return result


def legal_transitions(tags: Sequence[str]) -> np.ndarray:
    """Which tag may follow which in BIO or BIOUL: bool (K + 2, K + 2), from row to column.

    Row K is the sentence's start, column K + 1 its end. Tags with L or U are BIOUL, where a span that has begun must
    end."""
    closes = any(_split_tag(tag)[0] in "LU" for tag in tags)
    count = len(tags)
    legal = np.zeros((count + 2, count + 2), dtype=bool)
    ends = [tag == OUTSIDE or not closes or _split_tag(tag)[0] in "LU" for tag in tags]
    starts = [_split_tag(tag)[0] in "OBU" for tag in tags]
    for i, before in enumerate(tags):
        for j, tag in enumerate(tags):
            inside = _split_tag(tag)[0] in "IL" and _goes_on(before, tag)
            legal[i, j] = inside or (ends[i] and starts[j])
    legal[count, :count], legal[:count, count + 1] = starts, ends
    return legal
