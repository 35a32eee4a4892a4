"""One step of one layer: its input, the state before it and every quantity after it, with the equations in numbers.

Equations consist of names, numbers, + - *, a matrix before its argument, sigmoid, tanh, relu, and clip(…, ±3). Other
syntax, or an unknown name, is a `SettingError`; callers then show the numbers alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.stack import LayerState, Run
from relmo.analysis.core.trace import Recorder, embed_sentences, embed_texts
from relmo.embedding.engine import CutWords
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.cells import Cell

TOLERANCE = 1e-3  # largest difference between an equation and the network
TOKEN = re.compile(r"\s*(?:(±?\d+(?:\.\d+)?)|([A-Za-z]\w*'?)|([-+*(),]))")
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}
CLIP = "clip"
MINUS = "\N{MINUS SIGN}"
MAX_TERMS = 8  # of a product that is written out
MAX_DEPTH, MAX_LENGTH = 20, 400  # nested brackets, characters


@dataclass(frozen=True)
class Node:
    """Node of a parsed equation: a name, number, operation, function or matrix product, with its value (H,) or ()."""

    kind: str
    parts: tuple["Node", ...]
    value: np.ndarray
    matrix: np.ndarray | None = None

    def write(self, unit: int, level: int = 3, *, is_factor: bool = False) -> str:
        """Write the node for one unit: matrix products written out (level 0) or added up (1), the arguments of
        functions added up (2), or the value (3); a factor of a product gets brackets where they are needed."""
        if level == 3 or self.kind in ("name", "number") or (self.kind == "matrix" and level):
            text = _format(float(self.value if self.value.ndim == 0 else self.value[unit]))
            return f"({text})" if is_factor and (self.kind == "matrix" or text[0] == MINUS) else text
        if self.kind == "matrix":
            assert self.matrix is not None
            row, vector = self.matrix[unit], self.parts[0].value
            if len(row) > MAX_TERMS:
                return f"[{len(row):,} products: {self.write(unit)}]"
            numbers = [[_format(float(x)) for x in array] for array in (row, vector)]
            factors = [[f"({text})" if text[0] == MINUS else text for text in texts] for texts in numbers]
            return "(" + " + ".join(f"{w}·{v}" for w, v in zip(*factors, strict=True)) + ")"
        if self.kind == "*":
            return "·".join(part.write(unit, level, is_factor=True) for part in self.parts)
        if self.kind not in ("+", "-"):
            argument = self.parts[0].write(unit, level if level < 2 else 3)
            limit = f", ±{self.parts[1].write(unit)}" if self.kind == CLIP else ""
            return f"{self.kind}({argument}{limit})"
        left, right = (part.write(unit, level) for part in self.parts)
        sign = "+" if self.kind == "+" else MINUS
        if self.parts[1].kind in ("+", "-"):
            right = f"({right})"
        elif right.startswith(MINUS) and "·" not in right:  # a + −b is a − b
            sign, right = MINUS if self.kind == "+" else "+", right[1:]
        return f"({left} {sign} {right})" if is_factor else f"{left} {sign} {right}"


def _format(value: float) -> str:
    """Format with at most three decimals and a typographic minus."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", MINUS)


class WorkedEquation:
    """Right side of an equation, evaluated with the arrays of its names: matrices (H, I) and vectors."""

    def __init__(self, text: str, names: Mapping[str, np.ndarray]):
        if len(text) > MAX_LENGTH:
            raise SettingError(f"The equation has {len(text)} characters; at most {MAX_LENGTH} are supported.")
        self.tokens: list[str] = []
        self.names, self.depth, end = names, 0, 0
        while text[end:].strip():
            match = TOKEN.match(text, end)
            if match is None:
                raise SettingError(f"Unexpected {text[end : end + 20]!r} in the equation.")
            self.tokens.append(match.group().strip())
            end = match.end()
        self.root = self._parse_sum()
        self.value = self.root.value  # of all units
        if self.tokens:
            raise SettingError(f"Unexpected {self.tokens[0]!r} after the end of the equation {text[:80]!r}.")

    def lines(self, unit: int) -> list[str]:
        """Return the levels of `Node.write`: "sigmoid((1.7·1 + 0.9·0) + …)", "sigmoid(3.8 + …)", …, "0.984"."""
        return list(dict.fromkeys(self.root.write(unit, level) for level in range(4)))

    def _take(self, *tokens: str, required: bool = False) -> str | None:
        if self.tokens and self.tokens[0] in tokens:
            return self.tokens.pop(0)
        if required:
            raise SettingError(f"Missing {tokens[0]!r} in the equation.")
        return None

    def _parse_sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SettingError(f"The equation has more than {MAX_DEPTH} nested brackets.")
        node: Node | None = None
        sign: str | None = "+"
        while sign is not None:
            term = self._parse_factor()
            while self._take("*"):
                right = self._parse_factor()
                term = Node("*", (term, right), term.value * right.value)
            if node is None:
                node = term
            else:
                node = Node(sign, (node, term), node.value + term.value if sign == "+" else node.value - term.value)
            sign = self._take("+", "-")
        self.depth -= 1
        assert node is not None
        return node

    def _parse_factor(self) -> Node:
        if self._take("("):
            node = self._parse_sum()
            self._take(")", required=True)
            return node
        if not self.tokens:
            raise SettingError("Unexpected end of the equation.")
        token = self.tokens.pop(0)
        if token in FUNCTIONS or token == CLIP:
            self._take("(", required=True)
            argument = self._parse_sum()
            if token in FUNCTIONS:
                self._take(")", required=True)
                return Node(token, (argument,), FUNCTIONS[token](argument.value))
            self._take(",", required=True)
            if not self.tokens or not self.tokens[0].startswith("±"):
                raise SettingError("The second argument of clip must be a number such as ±3.")
            limit = float(self.tokens.pop(0)[1:])
            self._take(")", required=True)
            return Node(CLIP, (argument, Node("number", (), np.array(limit))), argument.value.clip(-limit, limit))
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return Node("number", (), np.array(float(token)))
        if token not in self.names:
            raise SettingError(f"Unknown name {token!r} in the equation.")
        array = self.names[token]
        if array.ndim == 1:
            return Node("name", (), array)
        argument = self._parse_factor()
        if argument.value.shape != (array.shape[1],):
            raise SettingError(f"{token} has {array.shape[1]} columns; its argument has shape {argument.value.shape}.")
        return Node("matrix", (argument,), array @ argument.value, array)


@dataclass(frozen=True)
class OneStep:
    """One step of a layer in plain arrays."""

    cell: Cell
    weights: list[Tensor]
    x: np.ndarray  # input of the layer (I,)
    before: dict[str, np.ndarray]  # states before the step, by name
    after: dict[str, np.ndarray]  # every quantity of the step, by name
    log_probs: np.ndarray | None = None  # of the next symbol (V,), for a language model

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
    step = _make_step(recorder, run, x, [tensor[0, 0] for tensor in states[layer]], (layer, 0, 0))
    return replace(step, log_probs=_to_numpy(log_probs[0]))


@torch.no_grad()
def trace_word_step(
    model: BiLM, recorder: Recorder, words: list[str], at: int, *, layer: int, backward: bool, cut: CutWords
) -> OneStep:
    """Return the step in which one direction of a bidirectional model reads the word at an index of a sentence."""
    x = embed_sentences(model, [words], cut)
    with full_precision():
        run = recorder.stack.run(x, keep=recorder.keep)
    d, t = (1, len(words) - at) if backward else (0, at + 1)
    before = [run.quantities[layer][name][d, t - 1, 0] for name in recorder.stack.layers[layer].cell.states]
    return _make_step(recorder, run, x, before, (layer, d, t))


def _make_step(
    recorder: Recorder, run: Run, x: Tensor, before: Sequence[Tensor], position: tuple[int, int, int]
) -> OneStep:
    depth, d, t = position
    layer = recorder.stack.layers[depth]
    layer_input = x if depth == 0 else run.outputs[depth - 1]
    after = {name: _to_numpy(run.quantities[depth][name][d, t, 0]) for name in recorder.keep}
    states = dict(zip(layer.cell.states, map(_to_numpy, before), strict=True))
    return OneStep(layer.cell, layer.weights[d], _to_numpy(layer_input[d, t, 0]), states, after)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
