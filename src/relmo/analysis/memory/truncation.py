"""Use of context: the loss of a model that reads the last k symbols only.

    curve = truncation(relmo.load("models/mine"), text)
    curve.nats[3], curve.context               # context: smallest k whose loss is within 1 % of the full context's

At some positions of a text the next symbol is predicted from the last k symbols, for several k, and from the full
context. Differences are taken per position, so they are more precise than the losses; intervals are bootstrapped.

    Khandelwal et al. 2018, Sharp nearby, fuzzy far away: how neural language models use context
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relmo.analysis.core.effects import bootstrap_difference
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.reading import BATCH_SYMBOLS, Reading, make_reading
from relmo.analysis.core.show import Table, format_number, save_figure
from relmo.analysis.core.trace import Texts
from relmo.analysis.memory.gradients import check_counts
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TOLERANCE = 0.01  # of the loss with the full context


@dataclass(frozen=True)
class Truncation:
    """Mean loss in nats by the number of symbols read.

    more, low, high     increase over the full context in nats, with its 95% interval
    whole               mean loss with the full context
    context             smallest number of symbols from which the loss stays within 1 % of `whole`, if any
    """

    name: str
    lengths: list[int]
    nats: list[float]
    more: list[float]
    low: list[float]
    high: list[float]
    whole: float
    positions: int
    context: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        return truncation_table([self]).html()


def truncation(
    model: LanguageModel | BiLM,
    text: Texts,
    *,
    lengths: Sequence[int] = LENGTHS,
    positions: int = 2000,
    direction: Literal["forward", "backward"] = "forward",
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> Truncation:
    """Measure any language model (n-gram and fixed-window ones too) at random positions of a text.

    A bidirectional model reads in one direction, and its text is a stream of sentences, one per line.
    """
    lengths = sorted({*lengths})
    if not lengths or lengths[0] < 1:
        raise SettingError(f"lengths must be 1 or more, not {', '.join(map(str, lengths)) or 'empty'}.")
    check_counts(positions=positions)
    model.network.eval()
    reading = make_reading(model, text, direction=("forward", "backward").index(direction))
    ends = reading.sample_ends(positions, lengths[-1] - 1, seed)
    full_nll = reading.full_context_nll(ends).astype(np.float64)
    nats, gaps = [], []
    for length, callback in zip(lengths, split_progress(progress, lengths), strict=True):
        nll = truncated_nll(reading, ends, length)
        nats.append(float(nll.mean()))
        gaps.append(bootstrap_difference(nll, full_nll, np.arange(len(ends)), seed=seed))
        callback(1.0)
    increases = np.array([gap.value for gap in gaps])
    insufficient = np.flatnonzero(increases > TOLERANCE * full_nll.mean())
    sufficient = lengths[insufficient[-1] + 1 :] if len(insufficient) else lengths
    return Truncation(
        name=name or (model.settings.model.cell if isinstance(model, LanguageModel) else "bilm"),
        lengths=list(lengths),
        nats=nats,
        more=increases.tolist(),
        low=[gap.low for gap in gaps],
        high=[gap.high for gap in gaps],
        whole=float(full_nll.mean()),
        positions=len(ends),
        context=sufficient[0] if sufficient else None,
    )


def truncated_nll(reading: Reading, ends: np.ndarray, length: int) -> np.ndarray:
    """Return -log p after each of the steps (N,) when only the last `length` steps up to it are read; (N,)."""
    batches = np.array_split(ends, -(-len(ends) * length // BATCH_SYMBOLS))
    losses = [reading.last_nll(batch[:, None] + np.arange(1 - length, 1)) for batch in batches]
    return np.concatenate(losses).astype(np.float64)


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
        axes.set_xlabel("symbols")
        axes.set_ylabel("nats per symbol")
        axes.grid(True, alpha=0.3)
        axes.legend()
