"""Work in parts: the caller hears of the whole, whatever a part is told."""

import pytest

from relmo.analysis.core.show import split_progress


def test_each_part_has_its_share_of_the_whole_by_its_weight() -> None:
    heard: list[float] = []
    first, none, last = split_progress(heard.append, [1, 0, 3])
    for tell in (first, none, last):
        tell(0.5)
        tell(1.0)
    assert heard == pytest.approx([0.125, 0.25, 0.25, 0.25, 0.625, 1.0])


def test_where_nobody_listens_parts_can_be_told_all_the_same() -> None:
    for tell in split_progress(None, [1, 1]):
        tell(0.5)
