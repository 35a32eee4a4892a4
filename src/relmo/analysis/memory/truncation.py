"""How much of the past a model uses: its loss when only the last k symbols are given.

    curve = truncation(relmo.load("models/mine"), text)
    curve.nats[3], curve.context               the smallest k whose loss is within 1 % of that with everything

At some places of a text the next symbol is predicted from the last k symbols, for several k, and from everything since
the text's beginning. Differences between the two are taken place by place, so they are known better than either loss.
Their intervals come from drawing the places anew.

    Khandelwal et al. 2018, Sharp nearby, fuzzy far away: how neural language models use context
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relmo.analysis.core.intervals import bootstrap_difference
from relmo.analysis.core.reading import AT_ONCE, Reading, read_text
from relmo.analysis.core.show import Table, figure, picture
from relmo.analysis.core.trace import Texts
from relmo.analysis.memory.gradients import check_counts
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
NEAR = 0.01  # of the loss with the whole past


@dataclass(frozen=True)
class Truncation:
    """The mean loss in nats by how many symbols are given.

    more, low, high     nats more than with the whole past, and the 95% interval of that
    whole               the mean loss with the whole past
    context             the smallest number of symbols from which on the loss stays within 1 % of `whole`; None where
                        even the largest number is not enough
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
        """Plain numbers by name."""
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
    """The losses of any language model (n-gram and fixed-window ones too) at so many places of a text, drawn at random.
    A bidirectional model reads in one direction, and its text is a stream of sentences, one a line."""
    lengths = sorted({*lengths})
    if not lengths or lengths[0] < 1:
        raise SettingError(f"lengths are 1 or more symbols, not {', '.join(map(str, lengths)) or 'none'}")
    check_counts(positions=positions)
    model.network.eval()
    reading = read_text(model, text, direction=("forward", "backward").index(direction))
    ends = reading.ends(positions, lengths[-1] - 1, seed)
    whole = reading.whole_nll(ends).astype(np.float64)
    total, done = sum(lengths), 0
    nats, gaps = [], []
    for length in lengths:
        cut = truncated_nll(reading, ends, length)
        nats.append(float(cut.mean()))
        gaps.append(bootstrap_difference(cut, whole, np.arange(len(ends)), seed=seed))
        done += length
        if progress is not None:
            progress(done / total)
    more = np.array([gap.value for gap in gaps])
    far = np.flatnonzero(more > NEAR * whole.mean())
    enough = lengths[far[-1] + 1 :] if len(far) else lengths
    return Truncation(
        name=name or (model.settings.model.cell if isinstance(model, LanguageModel) else "bilm"),
        lengths=list(lengths),
        nats=nats,
        more=more.tolist(),
        low=[gap.low for gap in gaps],
        high=[gap.high for gap in gaps],
        whole=float(whole.mean()),
        positions=len(ends),
        context=enough[0] if enough else None,
    )


def truncated_nll(reading: Reading, ends: np.ndarray, length: int) -> np.ndarray:
    """-log p of what follows each of the steps (N,) when the last `length` steps up to it are read; (N,)."""
    found = []
    for part in np.array_split(ends, -(-len(ends) * length // AT_ONCE)):
        found.append(reading.last_nll(part[:, None] + np.arange(1 - length, 1)))
    return np.concatenate(found).astype(np.float64)


def truncation_table(curves: Sequence[Truncation]) -> Table:
    """Models side by side, a row for each number of symbols."""
    lengths = sorted({length for curve in curves for length in curve.lengths})
    rows = []
    for length in lengths:
        row = [f"{length:,}"]
        for curve in curves:
            at = curve.lengths.index(length) if length in curve.lengths else None
            row += ["", "", ""] if at is None else [figure(curve.nats[at]), *_gap(curve, at)]
        rows.append(row)
    rows.append(["all before", *(cell for curve in curves for cell in (figure(curve.whole), "", ""))])
    columns = ["symbols given", *(name for curve in curves for name in (curve.name, "more", "95%"))]
    notes = [f"nats a symbol; more: than with all that stands before; {curves[0].positions:,} places"]
    for curve in curves:
        reach = "no number that was tried is" if curve.context is None else f"{curve.context} symbols are"
        notes.append(f"{curve.name}: {reach} enough to come within 1 % of the loss with all")
    return Table(columns, rows, notes=notes)


def _gap(curve: Truncation, at: int) -> list[str]:
    return [figure(curve.more[at], signed=True), f"{curve.low[at]:+.3f} to {curve.high[at]:+.3f}"]


def draw_truncation(curves: Sequence[Truncation], path: str | Path) -> None:
    """The loss by how many symbols are given, with its interval; the dotted line is the loss with all of them."""
    with picture(path, 8, 4.5) as drawn:
        axes = drawn.subplots()
        for number, curve in enumerate(curves):
            colour = f"C{number % 10}"
            axes.plot(curve.lengths, curve.nats, "o-", color=colour, label=curve.name)
            low, high = ([curve.whole + value for value in ends] for ends in (curve.low, curve.high))
            axes.fill_between(curve.lengths, low, high, color=colour, alpha=0.2, lw=0)
            axes.axhline(curve.whole, color=colour, ls=":")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("symbols given")
        axes.set_ylabel("nats a symbol")
        axes.grid(True, alpha=0.3)
        axes.legend()
