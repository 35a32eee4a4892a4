"""Use of context: the loss of a model that reads the last k symbols only, compared position by position with the loss
with the full context (Khandelwal et al. 2018, Sharp nearby, fuzzy far away: how neural language models use context)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from relmo.analysis.core.effects import bootstrap_difference
from relmo.analysis.core.show import Report, Table, format_number, save_figure, split_progress
from relmo.analysis.memory.gradients import check_counts
from relmo.errors import SettingError
from relmo.models.evaluate import full_precision
from relmo.models.sequence_model import BATCH_SYMBOLS, SequenceModel
from relmo.models.surprisal import Texts
from relmo.settings.fields import Progress

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TOLERANCE = 0.01  # of the loss with the full context


@dataclass(frozen=True)
class Truncation(Report):
    """Mean loss in nats by the number of symbols read."""

    name: str
    lengths: list[int]
    nats: list[float]
    more: list[float]  #: increase over the full context in nats
    low: list[float]  #: its 95% interval
    high: list[float]
    whole: float  #: mean loss with the full context
    positions: int
    context: int | None  #: smallest number of symbols from which the loss stays within 1 % of `whole`, if any

    def table(self) -> Table:
        return truncation_table([self])


def truncation(
    model: SequenceModel,
    text: Texts,
    *,
    lengths: Sequence[int] = LENGTHS,
    positions: int = 2000,
    direction: Literal["forward", "backward"] = "forward",
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> Truncation:
    """Measure any language model at random positions of a text; a biLM's is a stream of sentences, one per line."""
    lengths = sorted({*lengths})
    if not lengths or lengths[0] < 1:
        raise SettingError(f"lengths must be 1 or more, not {', '.join(map(str, lengths)) or 'empty'}.")
    check_counts(positions=positions)
    model.network.eval()
    reading = model.make_reading(text, direction)
    ends = reading.sample_ends(positions, lengths[-1] - 1, seed)
    full_nll = reading.full_context_nll(ends).astype(np.float64)
    nats, gaps = [], []
    for length, callback in zip(lengths, split_progress(progress, lengths), strict=True):
        batches = np.array_split(ends, -(-len(ends) * length // BATCH_SYMBOLS))
        windows = (batch[:, None] + np.arange(1 - length, 1) for batch in batches)
        last = np.array([length - 1])
        with torch.no_grad(), full_precision():  # each window is read from the initial state
            losses = [reading.compute_nll(window, last, None)[0][:, 0].cpu().numpy() for window in windows]
        nll = np.concatenate(losses).astype(np.float64)
        nats.append(float(nll.mean()))
        gaps.append(bootstrap_difference(nll, full_nll, np.arange(len(ends)), seed=seed))
        callback(1.0)
    increases, low, high = map(list, zip(*gaps, strict=True))
    full_loss = float(full_nll.mean())
    insufficient = np.flatnonzero(np.array(increases) > TOLERANCE * full_loss)
    sufficient = lengths[insufficient[-1] + 1 :] if len(insufficient) else lengths
    context = sufficient[0] if sufficient else None
    return Truncation(name or model.label, lengths, nats, increases, low, high, full_loss, len(ends), context)


def truncation_table(curves: Sequence[Truncation]) -> Table:
    """Return a table of models, with one row per number of symbols."""
    rows = []
    for length in sorted({length for curve in curves for length in curve.lengths}):
        row = [f"{length:,}"]
        for curve in curves:
            if length not in curve.lengths:
                row += ["", "", ""]
                continue
            i = curve.lengths.index(length)
            row += [format_number(curve.nats[i]), format_number(curve.more[i], signed=True)]
            row.append(f"{curve.low[i]:+.3f} to {curve.high[i]:+.3f}")
        rows.append(row)
    rows.append(["full context", *(cell for curve in curves for cell in (format_number(curve.whole), "", ""))])
    columns = ["symbols", *(name for curve in curves for name in (curve.name, "more", "95%"))]
    notes = [f"nats per symbol; more: increase over the full context; {curves[0].positions:,} positions"]
    for curve in curves:
        context = "no tested context is" if curve.context is None else f"{curve.context} symbols are"
        notes.append(f"{curve.name}: {context} within 1 % of the loss with the full context")
    return Table(columns, rows, notes=notes)


def draw_truncation(curves: Sequence[Truncation], path: str | Path) -> None:
    """Plot the loss by the number of symbols, with its interval; the dotted line is the loss with the full context."""
    with save_figure(path, 8, 4.5) as figure:
        axes = figure.subplots()
        for i, curve in enumerate(curves):
            colour = f"C{i % 10}"
            axes.plot(curve.lengths, curve.nats, "o-", color=colour, label=curve.name)
            low, high = ([curve.whole + gap for gap in gaps] for gaps in (curve.low, curve.high))
            axes.fill_between(curve.lengths, low, high, color=colour, alpha=0.2, lw=0)
            axes.axhline(curve.whole, color=colour, ls=":")
        axes.set_xscale("log", base=2)
        axes.set(xlabel="symbols", ylabel="nats per symbol")
        axes.grid(True, alpha=0.3)
        axes.legend()
