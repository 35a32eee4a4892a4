"""Which symbols of a text a prediction depends on: connectivity(t, t') = |d logit of the next symbol at t' / d x_t|.

    shown = connectivity(model, "She opened the (first", position=-1, symbol=")")
    shown.values                                # one for each symbol that was read; in a notebook, coloured text

x_t is what the recurrent layers read of symbol t, its embedding. The logit is that of the symbol that follows, or of
any other symbol.

    Madsen 2019, Visualizing memorization in RNNs (Distill)
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from relmo.analysis.core.reading import Reading, read_text
from relmo.analysis.core.show import ColouredText, Table
from relmo.analysis.core.trace import Texts, network_of
from relmo.analysis.core.unrolled import initial_states, unroll, unrollable
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel

LONGEST = 2000  # steps that are gone back over; what lies before is read, but not differentiated by


@dataclass(frozen=True)
class Connectivity:
    """The symbols in reading order, and for each the norm of the gradient.

    position        which of the symbols stands last before the prediction
    symbol          what is predicted there; log_p is its log-probability
    half            how many of the last symbols make up half of the sum of the values
    """

    symbols: list[str]
    values: list[float]
    position: int
    symbol: str
    log_p: float
    half: int
    unit: str

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return dataclasses.asdict(self)

    @property
    def share(self) -> list[float]:
        """The values as shares of their sum."""
        return (np.array(self.values) / max(sum(self.values), 1e-300)).tolist()

    def text(self) -> ColouredText:
        """The symbols, each on the colour of its value."""
        title = f"what {self.symbol!r} after position {self.position} hangs on (log p {self.log_p:.2f})"
        return ColouredText(self.symbols, np.array(self.values), title, "" if self.unit == "char" else " ")

    def table(self, count: int = 10) -> Table:
        """The symbols with the largest values."""
        order = np.argsort(-np.array(self.values), kind="stable")[:count]
        rows = [
            [self.symbols[i], str(self.position - i), f"{self.values[i]:.4g}", f"{100 * self.share[i]:.1f}"]
            for i in order.tolist()
        ]
        notes = [f"half of the sum comes from the last {self.half} symbols"]
        return Table(["symbol", "symbols back", "gradient", "% of the sum"], rows, self.text().title, notes)

    def _repr_html_(self) -> str:
        return self.text().html()


def connectivity(
    model: LanguageModel | BiLM,
    text: Texts,
    *,
    position: int = -1,
    symbol: str | None = None,
    direction: Literal["forward", "backward"] = "forward",
) -> Connectivity:
    """How the prediction after a position of a text depends on every symbol up to there.

    position     of the symbols of the text, from 0, or from the end on as -1, -2, …; symbols are counted in the order
                 they are read, without what stands before the first
    symbol       what is predicted; the symbol that follows, or the text's end, where it is not given
    direction    of a bidirectional model, whose text is one sentence
    """
    reading = read_text(model, text, direction=("forward", "backward").index(direction))
    count = reading.steps - 1  # the first step reads what stands before the text
    if not -count <= position < count:
        raise SettingError(f"position {position}: the text has the symbols 0 to {count - 1}")
    last = position % count + 1
    layers = unrollable(network_of(model), direction=reading.direction)
    first = max(0, last + 1 - LONGEST)
    with torch.no_grad():
        states = initial_states(layers, 1)
        if first:
            states = unroll(layers, reading.cut(np.arange(first)[None]).vectors, states).states
        vectors, targets = reading.cut(np.arange(first, last + 1)[None])
    target = targets[:, -1] if symbol is None else torch.full_like(targets[:, -1], reading.id_of(symbol))
    x = vectors.to(layers[0].weights[0]).requires_grad_()
    y = unroll(layers, x, states).output[-1]
    (gradient,) = torch.autograd.grad(reading.logits(y, target).sum(), x)
    values = gradient[0].norm(dim=1).cpu().numpy()
    log_p = -float(reading.losses(y.detach(), target).detach())
    return _make_connectivity(reading, np.arange(first, last + 1), values, int(target), log_p)


def _make_connectivity(
    reading: Reading, places: np.ndarray, values: np.ndarray, target: int, log_p: float
) -> Connectivity:
    """The result, without the step before the text."""
    read = reading.symbols(places)
    if places[0] == 0:
        read, values = read[1:], values[1:]
    far = np.cumsum(values[::-1])
    half = 1 + int(np.searchsorted(far, far[-1] / 2)) if len(far) else 0
    unit = "word" if isinstance(reading.model, BiLM) else reading.model.settings.text.unit
    return Connectivity(read, values.tolist(), len(read) - 1, reading.name_of(target), log_p, half, unit)
