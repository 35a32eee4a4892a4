"""One step of one layer: its input, the state before it and every quantity after it, with the equations.

step = trace_symbol_step(model, recorder, states, "h", layer=0)
step.after["c"], step.work_out("c").lines(unit=2)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.arithmetic import WorkedEquation
from relmo.analysis.core.stack import LayerState, Run, reverse_time
from relmo.analysis.core.trace import Recorder, embed_texts
from relmo.embedding.engine import CutWords
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.cells import Cell
from relmo.settings.options import EmbedOptions
from relmo.text.characters import BOS, EOS

TOLERANCE = 1e-3  # largest difference between an equation and the network


@dataclass(frozen=True)
class OneStep:
    """One step of a layer in plain arrays.

    x           input of the layer; (I,)
    before      states before the step, by name
    after       every quantity of the step, by name
    log_probs   of the next symbol (V,), for a language model
    """

    cell: Cell
    weights: list[Tensor]
    x: np.ndarray
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    log_probs: np.ndarray | None = None

    def names(self) -> dict[str, np.ndarray]:
        """Return the array for each letter of the equations; for a state, h is before the step and h' after it."""
        weights = {name: _to_numpy(weight) for name, weight in self.cell.named_weights(self.weights).items()}
        primed = {f"{name}'": array for name, array in self.after.items()}
        return weights | primed | self.after | self.before | {"x": self.x}

    def work_out(self, quantity: str, names: dict[str, np.ndarray] | None = None) -> WorkedEquation | None:
        """Return a quantity's equation with its numbers; None if it cannot be parsed or disagrees with the network."""
        text = self.cell.equations().get(quantity)
        if text is None:
            return None
        try:
            equation = WorkedEquation(text, names or self.names())
        except SettingError:
            return None
        value, expected = equation.value, self.after[quantity]
        agrees = value.shape == expected.shape and np.allclose(value, expected, atol=TOLERANCE)
        return equation if agrees else None


@torch.no_grad()
def trace_symbol_step(
    model: LanguageModel, recorder: Recorder, states: Sequence[LayerState], symbol: str, *, layer: int
) -> OneStep:
    """Return the step in which a language model reads a symbol, from the given states of its layers."""
    x = embed_texts(model, [[symbol]])
    with full_precision():
        run = recorder.stack.run(x, states, keep=recorder.keep)
        network = model.network
        assert isinstance(network, RecurrentLM)
        top = run.outputs[-1][0, 0]  # (1, H)
        log_probs = network.log_probs(top if network.bottleneck is None else network.bottleneck(top))
    before = dict(zip(recorder.stack.layers[layer].states, (t[0, 0] for t in states[layer]), strict=True))
    return _make_step(recorder, run, x, before, (layer, 0, 0), _to_numpy(log_probs[0]))


@torch.no_grad()
def trace_word_step(
    model: BiLM, recorder: Recorder, words: list[str], at: int, *, layer: int, backward: bool, cut: CutWords
) -> OneStep:
    """Return the step in which one direction of a bidirectional model reads the word at an index of a sentence."""
    vectors = next(iter(model.embedder.stream([[BOS, *words, EOS]], EmbedOptions(layers=0), cut)))
    sentence = torch.from_numpy(vectors).to(model.device).unsqueeze(1)  # (T + 2, 1, 2P)
    forward = sentence[..., : sentence.shape[2] // 2]
    x = torch.stack([forward[:-1], reverse_time(forward.unsqueeze(0), None)[0, :-1]])
    with full_precision():
        run = recorder.stack.run(x, keep=recorder.keep)
    d, t = (1, len(words) - at) if backward else (0, at + 1)
    before = {name: run.quantities[layer][name][d, t - 1, 0] for name in recorder.stack.layers[layer].states}
    return _make_step(recorder, run, x, before, (layer, d, t), None)


def _make_step(
    recorder: Recorder,
    run: Run,
    x: Tensor,
    before: dict[str, Tensor],
    position: tuple[int, int, int],
    log_probs: np.ndarray | None,
) -> OneStep:
    depth, d, t = position
    layer = recorder.stack.layers[depth]
    layer_input = x if depth == 0 else run.outputs[depth - 1]
    after = {name: _to_numpy(run.quantities[depth][name][d, t, 0]) for name in recorder.keep}
    states = {name: _to_numpy(tensor) for name, tensor in before.items()}
    return OneStep(layer.cell, layer.weights[d], _to_numpy(layer_input[d, t, 0]), states, after, log_probs)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
