"""Spans encoded as a tag for each word, and the legal transitions between tags.

    BIO     B-X begins a span of type X, I-X continues it, O is outside (also called IOB2)
    IOB1    the same, but B-X is used only if a span directly follows another of its type
    BIOUL   also L-X for the last word of a span and U-X for a span of one word (BIOES: E and S)

`bio` reads all of them, and invalid sequences as conlleval does: a span begins where a tag does not continue the span
before it.

    Ramshaw & Marcus 1995, Text chunking;  Ratinov & Roth 2009, Design challenges and misconceptions in NER
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

OUTSIDE = "O"
MIN_SPAN_TAGS = 0.9  # share of tags; a file of spans with a few broken tags is still a file of spans
BEGINS, ENDS = "BUS", "LEUS"  # prefixes that always begin or end a span


class Span(NamedTuple):
    """Words from `start` up to, but not including, `end`, and their type."""

    start: int
    end: int
    label: str


def _split_tag(tag: str) -> tuple[str, str]:
    """Split B-creative-work into B and creative-work; O has no type."""
    prefix, _, label = tag.partition("-")
    return prefix, label


def is_span_tag(tag: str) -> bool:
    """Return whether a tag is one of BIO, IOB1, BIOUL or BIOES."""
    prefix, label = _split_tag(tag)
    return tag == OUTSIDE or (len(prefix) == 1 and prefix in "BIULES" and bool(label))


def are_span_tags(tags: Iterable[str]) -> bool:
    """Return whether the tags of a text mark spans: nearly all are those of an encoding, and not all of them O."""
    counts = Counter(tags)
    num_span_tags = sum(count for tag, count in counts.items() if is_span_tag(tag))
    has_span = any(tag != OUTSIDE and is_span_tag(tag) for tag in counts)
    return has_span and num_span_tags >= MIN_SPAN_TAGS * counts.total()


def spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of tags in any of the encodings."""
    span_list = []
    start, previous = 0, OUTSIDE
    for i, tag in enumerate([*tags, OUTSIDE]):
        if not _continues_span(previous, tag):
            if previous != OUTSIDE:
                span_list.append(Span(start, i, _split_tag(previous)[1]))
            start = i
        previous = tag
    return span_list


def _continues_span(previous: str, tag: str) -> bool:
    (previous_prefix, previous_label), (prefix, label) = _split_tag(previous), _split_tag(tag)
    is_inside = OUTSIDE not in (previous, tag) and label == previous_label
    return is_inside and prefix not in BEGINS and previous_prefix not in ENDS


def bio(tags: Sequence[str]) -> list[str]:
    """Convert tags in any of the encodings to BIO."""
    bio_tags = [OUTSIDE] * len(tags)
    for start, end, label in spans(tags):
        bio_tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    return bio_tags


def bioul(tags: Sequence[str]) -> list[str]:
    """Convert tags in any of the encodings to BIOUL."""
    bioul_tags = [OUTSIDE] * len(tags)
    for start, end, label in spans(tags):
        inner = [f"I-{label}"] * (end - start - 2)
        bioul_tags[start:end] = [f"U-{label}"] if end - start == 1 else [f"B-{label}", *inner, f"L-{label}"]
    return bioul_tags


def legal_transitions(tags: Sequence[str]) -> np.ndarray:
    """Return the legal transitions of tags in BIO or BIOUL: bool (K + 2, K + 2), from row to column.

    Row K is the start of a sentence, column K + 1 its end. Tags with L or U are BIOUL, in which every span must be
    closed."""
    is_bioul = any(_split_tag(tag)[0] in "LU" for tag in tags)
    count = len(tags)
    legal = np.zeros((count + 2, count + 2), dtype=bool)
    ends = [tag == OUTSIDE or not is_bioul or _split_tag(tag)[0] in "LU" for tag in tags]
    starts = [_split_tag(tag)[0] in "OBU" for tag in tags]
    for i, previous in enumerate(tags):
        for j, tag in enumerate(tags):
            continues = _split_tag(tag)[0] in "IL" and _continues_span(previous, tag)
            legal[i, j] = continues or (ends[i] and starts[j])
    legal[count, :count], legal[:count, count + 1] = starts, ends
    return legal
