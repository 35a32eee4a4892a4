"""Dependence of a prediction on each symbol: connectivity(t, t') = |d logit of the next symbol at t' / d x_t|.

    result = connectivity(model, "She opened the (first", position=-1, symbol=")")
    result.values                               # one per symbol; in a notebook, coloured text

x_t is the embedding of symbol t, the input of the recurrent layers. The logit is that of the symbol that follows, or of
any other symbol.

    Madsen 2019, Visualizing memorization in RNNs (Distill)
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from relmo.analysis.core.reading import make_reading
from relmo.analysis.core.show import ColouredText, Table
from relmo.analysis.core.trace import Texts, get_network
from relmo.analysis.core.unrolled import unroll, unroll_layers, zero_states
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel

MAX_STEPS = 2000  # of the gradient; earlier symbols are read, but the logit is not differentiated by them


@dataclass(frozen=True)
class Connectivity:
    """Norm of the gradient at each symbol, in reading order.

    position        index of the last symbol before the prediction
    symbol          predicted symbol; `log_p` is its log-probability
    half            number of last symbols that make up half of the sum of the values
    """

    symbols: list[str]
    values: list[float]
    position: int
    symbol: str
    log_p: float
    half: int
    unit: str

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return dataclasses.asdict(self)

    @property
    def share(self) -> list[float]:
        """Values as shares of their sum."""
        return (np.array(self.values) / max(sum(self.values), 1e-300)).tolist()

    def text(self) -> ColouredText:
        """Return the symbols coloured by their values."""
        title = f"Gradient of {self.symbol!r} after position {self.position} (log p {self.log_p:.2f})"
        return ColouredText(self.symbols, np.array(self.values), title, "" if self.unit == "char" else " ")

    def table(self, count: int = 10) -> Table:
        """Return the symbols with the largest values."""
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
    """Measure how the prediction after a position of a text depends on every symbol up to there.

    position     index of a symbol in reading order; negative ones count from the end
    symbol       predicted symbol; default the one that follows, or the end of the text
    direction    of a bidirectional model, whose text is one sentence
    """
    reading = make_reading(model, text, direction=("forward", "backward").index(direction))
    count = reading.num_steps - 1  # the first step reads the boundary before the text
    if not -count <= position < count:
        raise SettingError(f"Unknown position {position}; the text has symbols 0 to {count - 1}.")
    last = position % count + 1
    start = max(0, last + 1 - MAX_STEPS)
    steps = np.arange(start, last + 1)
    layers = unroll_layers(get_network(model), direction=reading.direction)
    with torch.no_grad():
        states = zero_states(layers, 1)
        if start:
            states = unroll(layers, reading.get_inputs(np.arange(start)[None]).vectors, states).states
        vectors, targets = reading.get_inputs(steps[None])
    target = targets[:, -1] if symbol is None else torch.full_like(targets[:, -1], reading.get_id(symbol))
    x = vectors.to(layers[0].weights[0]).requires_grad_()
    y = unroll(layers, x, states).output[-1]
    (gradient,) = torch.autograd.grad(reading.logits(y, target).sum(), x)
    values = gradient[0].norm(dim=1).cpu().numpy()
    log_p = -float(reading.losses(y.detach(), target).detach())
    symbols = reading.get_symbols(steps)
    if start == 0:
        symbols, values = symbols[1:], values[1:]
    sums = np.cumsum(values[::-1])
    half = 1 + int(np.searchsorted(sums, sums[-1] / 2)) if len(sums) else 0
    unit = "word" if isinstance(model, BiLM) else model.settings.text.unit
    assert model.vocabulary is not None
    predicted = model.vocabulary.symbols[int(target)]
    return Connectivity(symbols, values.tolist(), len(symbols) - 1, predicted, log_p, half, unit)
