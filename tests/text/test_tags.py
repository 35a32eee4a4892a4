"""Encodings of spans, against lists of spans and against every sequence of a small set of tags."""

from itertools import pairwise, product

import numpy as np
import pytest

from relmo.text.readers.tagged import Span, are_span_tags, bio, bioul, is_span_tag, legal_transitions, spans

SENTENCES = [
    (["I-PER", "I-PER", "O", "I-LOC", "B-LOC"], [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]),  # IOB1
    (["B-PER", "I-PER", "O", "B-LOC", "B-LOC"], [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]),  # IOB2
    (["B-PER", "L-PER", "O", "U-LOC", "U-LOC"], [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]),  # BIOUL
    (["B-PER", "E-PER", "O", "S-LOC", "S-LOC"], [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]),  # BIOES
    (["B-PER", "I-LOC", "L-LOC", "I-LOC"], [(0, 1, "PER"), (1, 3, "LOC"), (3, 4, "LOC")]),  # broken
    (["B-creative-work", "I-creative-work"], [(0, 2, "creative-work")]),
    (["O", "O"], []),
    ([], []),
]


@pytest.mark.parametrize(("tags", "expected"), SENTENCES)
def test_spans_are_the_same_in_every_encoding(tags: list[str], expected: list[tuple[int, int, str]]) -> None:
    wanted = [Span(*span) for span in expected]
    assert spans(tags) == wanted
    assert spans(bio(tags)) == wanted
    assert spans(bioul(tags)) == wanted


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["B-PER", "I-PER", "O"], True),
        (["O", "I-LOC", "S-LOC", "E-LOC"], True),
        (["O"] * 20 + ["B-PER", "_"], True),  # one broken tag
        (["DET", "NOUN", "PUNCT"], False),
        (["O", "O"], False),
        (["B-NOUN", "VERB", "ADJ"], False),
        ([], False),
    ],
)
def test_tags_of_a_text_tell_whether_they_mark_spans(tags: list[str], expected: bool) -> None:
    assert are_span_tags(tags) is expected


def test_bio_and_bioul_are_written_as_their_definitions_say() -> None:
    tags = ["I-A", "I-A", "I-A", "B-A", "O", "I-B"]
    assert bio(tags) == ["B-A", "I-A", "I-A", "B-A", "O", "B-B"]
    assert bioul(tags) == ["B-A", "I-A", "L-A", "U-A", "O", "U-B"]


@pytest.mark.parametrize(("encode", "prefixes"), [(bio, "BI"), (bioul, "BIUL")])
def test_legal_sequences_are_exactly_those_that_encode_some_spans(encode, prefixes: str) -> None:
    tags = ["O", *(f"{prefix}-{label}" for prefix in prefixes for label in "XY")]
    legal = legal_transitions(tags)
    start, end = len(tags), len(tags) + 1
    for length in (1, 2, 3, 4) if encode is bio else (1, 2, 3):
        for sequence in product(range(len(tags)), repeat=length):
            steps = [start, *sequence, end]
            allowed = all(legal[a, b] for a, b in pairwise(steps))
            written = [tags[i] for i in sequence]
            assert allowed == (encode(written) == written), written


def test_nothing_comes_before_the_start_or_after_the_end() -> None:
    legal = legal_transitions(["O", "B-X", "I-X"])
    assert not legal[:, 3].any()
    assert not legal[4].any()
    assert legal.dtype == np.bool_


def test_a_tag_of_a_span_has_a_prefix_and_a_type() -> None:
    assert all(map(is_span_tag, ["O", "B-PER", "I-a-b", "L-X", "U-X", "E-X", "S-X"]))
    assert not any(map(is_span_tag, ["NOUN", "B", "B-", "", "X-PER", "BI-PER", "-PER"]))
