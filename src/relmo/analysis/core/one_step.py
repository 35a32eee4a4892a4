"""One step of one layer: what it reads, what it held before, every quantity after, each with its equation.

step = of_symbol(model, recorder, states, "h", layer=0)
step.after["c"], step.written("c").lines(unit=2)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.arithmetic import Written
from relmo.analysis.core.stack import LayerState, Run, mirror
from relmo.analysis.core.trace import Recorder, embedded
from relmo.embedding.engine import CutWords
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.cells import Cell
from relmo.settings.embedding import EmbedOptions
from relmo.text.characters import BOS, EOS

CLOSE = 1e-3  # that an equation must come to what the network has computed


@dataclass(frozen=True)
class OneStep:
    """A layer's step, in plain arrays.

    x           what the layer reads; (I,)
    before      what is carried into the step, by name
    after       every quantity of the step, by name
    likely      log-probabilities of the next symbol after it (V,), of a language model
    """

    cell: Cell
    weights: list[Tensor]
    x: np.ndarray
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    likely: np.ndarray | None = None

    def names(self) -> dict[str, np.ndarray]:
        """What the letters of the equations stand for; of a state, h is before the step and h' after it."""
        weights = self.cell.named_weights(self.weights)
        found = {name: weight.detach().double().cpu().numpy() for name, weight in weights.items()}
        new = {f"{name}'": value for name, value in self.after.items()}
        return found | new | self.after | self.before | {"x": self.x}

    def written(self, quantity: str, names: dict[str, np.ndarray] | None = None) -> Written | None:
        """A quantity's equation with its numbers; None where the cell's docstring has none that can be read, or where
        it comes to something else than the network did."""
        equation = self.cell.equations().get(quantity)
        if equation is None:
            return None
        try:
            found = Written(equation, names or self.names())
        except SettingError:
            return None
        same = found.value.shape == self.after[quantity].shape
        return found if same and np.allclose(found.value, self.after[quantity], atol=CLOSE) else None


@torch.no_grad()
def of_symbol(
    model: LanguageModel, recorder: Recorder, states: Sequence[LayerState], symbol: str, *, layer: int
) -> OneStep:
    """The step in which a language model reads a symbol, from the states of its layers."""
    x = embedded(model, [[symbol]])
    with full_precision():
        run = recorder.stack.run(x, states, keep=recorder.keep)
        network = model.network
        assert isinstance(network, RecurrentLM)
        top = run.outputs[-1][0, 0]  # (1, H)
        likely = network.log_probs(top if network.bottleneck is None else network.bottleneck(top))
    before = dict(zip(recorder.stack.layers[layer].states, (t[0, 0] for t in states[layer]), strict=True))
    return _step(recorder, run, x, before, (layer, 0, 0), _plain(likely[0]))


@torch.no_grad()
def of_word(
    model: BiLM, recorder: Recorder, words: list[str], at: int, *, layer: int, backward: bool, cut: CutWords
) -> OneStep:
    """The step in which a bidirectional model reads a word of a sentence, forwards or backwards."""
    vectors = next(iter(model.embedder.stream([[BOS, *words, EOS]], EmbedOptions(layers=0), cut)))
    whole = torch.from_numpy(vectors).to(model.device).unsqueeze(1)  # (T + 2, 1, 2P)
    x = whole[..., : whole.shape[2] // 2]
    both = torch.stack([x[:-1], mirror(x.unsqueeze(0), None)[0, :-1]])
    with full_precision():
        run = recorder.stack.run(both, keep=recorder.keep)
    d, t = (1, len(words) - at) if backward else (0, at + 1)
    states = recorder.stack.layers[layer].states
    before = {name: run.quantities[layer][name][d, t - 1, 0] for name in states}
    return _step(recorder, run, both, before, (layer, d, t), None)


def _step(
    recorder: Recorder,
    run: Run,
    x: Tensor,
    before: dict[str, Tensor],
    place: tuple[int, int, int],
    likely: np.ndarray | None,
) -> OneStep:
    """A step of a run by its layer, direction and time."""
    depth, d, t = place
    layer = recorder.stack.layers[depth]
    read = x if depth == 0 else run.outputs[depth - 1]
    after = {name: _plain(run.quantities[depth][name][d, t, 0]) for name in recorder.keep}
    held = {name: _plain(value) for name, value in before.items()}
    return OneStep(layer.cell, layer.weights[d], _plain(read[d, t, 0]), held, after, likely)


def _plain(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
