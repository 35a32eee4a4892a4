"""Attention drawn to a file: a panel for each text, as Bahdanau et al. 2015 draw it."""

from collections.abc import Sequence
from pathlib import Path

from relmo.analysis.core.show import picture
from relmo.tasks.seq2seq import Rewritten
from relmo.text.subwords import SPACE


def draw_attention(found: Sequence[Rewritten], path: str | Path) -> None:
    """The attention of each prediction's best candidate: what was read from left to right, what was written from top to
    bottom."""
    shapes = [(len(each.source), len(each.candidates[0].units) + 1) for each in found]
    width = max(4.0, 0.35 * max(columns for columns, _ in shapes) + 1.5)
    heights = [max(2.5, 0.3 * rows + 1.2) for _, rows in shapes]
    with picture(path, width, sum(heights)) as figure:
        panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, each in zip(panels, found, strict=True):
            best = each.candidates[0]
            axes.imshow(best.attention, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
            axes.xaxis.tick_top()
            axes.set_xticks(range(len(each.source)), _labels(each.source), rotation=90)
            axes.set_yticks(range(len(best.units) + 1), [*_labels(best.units), "(end)"])


def _labels(units: Sequence[str]) -> list[str]:
    """Subwords without the mark of a word's beginning; those inside a word begin with a hyphen, signs apart."""
    if not any(unit.startswith(SPACE) for unit in units):
        return list(units)
    return [unit.removeprefix(SPACE) if unit[0] == SPACE or not unit[0].isalnum() else f"-{unit}" for unit in units]
