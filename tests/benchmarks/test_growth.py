"""The figure of how the cost of a token grows."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import clock, growth


@pytest.mark.slow
def test_growth_is_timed_over_sentences_of_one_length_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    for name in ("LENGTHS", "BATCHES", "VOCABULARIES"):
        monkeypatch.setattr(growth, name, (2, 8))
    monkeypatch.setitem(clock.MIN_SECONDS, "cpu", 0.0)
    drawn: dict[str, Any] = {}
    draw = growth.draw
    monkeypatch.setattr(growth, "draw", lambda points, *rest: (drawn.update(points), draw(points, *rest)))
    monkeypatch.setattr(sys, "argv", ["growth.py", str(tmp_path / "plot.png"), "--geometry", "tiny"])
    growth.main()
    assert {panel: [point[0] for point in points] for panel, points in drawn.items()} == {
        "length": [2, 8],
        "batch": [2, 8],
        "vocabulary": [2, 8],
    }
    assert all(ours > 0 and theirs > 0 for points in drawn.values() for _, ours, theirs in points)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_made_up_sentences_have_the_length_and_the_words_asked_for() -> None:
    text = growth.make_sentences([str(i) for i in range(50)], 4, 10, 20)
    assert [len(sentence) for sentence in text] == [10] * 4
    assert {word for sentence in text for word in sentence} == {str(i) for i in range(20)}
