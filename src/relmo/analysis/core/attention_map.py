"""Attention drawn to a file: a panel for each text, as Bahdanau et al. 2015 draw it."""

from collections.abc import Sequence
from pathlib import Path

from relmo.analysis.core.show import picture
from relmo.tasks.attention_map import END
from relmo.tasks.seq2seq import Rewritten


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
            axes.set_xticks(range(len(each.source)), each.source, rotation=90)
            axes.set_yticks(range(len(best.units) + 1), [*best.units, END])
