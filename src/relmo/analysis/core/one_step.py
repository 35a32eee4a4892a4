"""One step of one layer: its input, the state before it and every quantity after it, with the equations in numbers.

The language of equations, in the order of precedence:

    a + b, a - b            sum and difference
    -a, a * b, a / b        by element
    W x, W (x + y)          matrix product: a name directly before a name, a function or a bracket
    f(a)                    f is sigmoid, tanh, relu, exp, log, abs, sqrt, softplus or silu
    max(a, b), min(a, b)    by element
    clip(a, ±3)             a, limited to this range
    dot(a, b)               scalar product over the last dimension, i.e. per head
    outer(v, k)             matrix v_i k_j, per head
    norm(a)                 Euclidean norm over all units, a scalar
    layernorm(a)            a with mean 0 and variance 1 over the last dimension, i.e. per head
    c, c', 0.5, 1e-6        names and numbers

Values have any shape: units (H,) or (heads, d), one value per head (heads,), matrices (d, d) or (heads, d, d). Scalars
broadcast, and so does a value whose shape is the beginning of the other's, such as (heads,) with (heads, d). A vector
(H,) is split into heads where the other value has them; a matrix (heads, d, d) applies to it per head. Other syntax,
unknown names and incompatible shapes are a `SettingError`; callers then show the numbers alone.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.stack import LayerState, Run
from relmo.analysis.core.trace import Recorder
from relmo.errors import SettingError
from relmo.models.evaluate import full_precision
from relmo.models.sequence_model import SequenceModel
from relmo.nn.recurrence import Cell

TOLERANCE = 1e-3  # largest difference between an equation and the network
TOKEN = re.compile(r"\s*(?:(±?\d+(?:\.\d+)?(?:e[-+]?\d+)?)|([^\W\d_]\w*'?)|([-+*/(),]))")
UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "log": np.log,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "softplus": lambda x: np.logaddexp(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "layernorm": lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
}
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}
OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
FUNCTIONS = {*UNARY, "max", "min", "clip", "dot", "outer", "norm"}
MINUS = "\N{MINUS SIGN}"
MAX_TERMS = 8  # of a sum of products that is written out
MAX_LENGTH = 400  # characters

Place = Literal["whole", "left", "right", "negated", "factor", "divisor"]
"""Place of a node: the whole equation or an argument, left or right in a sum, after a minus, in a product, after /."""

BRACKETED: dict[Place, set[str]] = {
    "whole": set(),
    "left": {"products"},
    "right": {"products", "+", "-"},
    "negated": {"products", "+", "-", "negative"},
    "factor": {"products", "+", "-", "negative", "/"},
    "divisor": {"products", "+", "-", "negative", "/", "*", "outer"},
}
"""Kinds of nodes that need brackets, by place."""


@dataclass(frozen=True)
class Node:
    """Node of a parsed equation, with its value.

    kind      name, number, negative, + - * /, outer, products (a sum of products: W x, dot), or a function
    factors   of products: both factors of all terms, each (*value.shape, terms)
    """

    kind: str
    parts: tuple["Node", ...]
    value: np.ndarray
    factors: tuple[np.ndarray, np.ndarray] | None = None

    def write(self, unit: int, level: int = 3, place: Place = "whole") -> str:
        """Write the node for one unit, an index into the flattened value: sums of products written out (level 0) or
        added up (1), the arguments of functions added up (2), or the value (3); with brackets if its place needs them.
        """
        if level == 3 or self.kind in ("name", "number") or (self.kind == "products" and level):
            value = float(self.value.flat[unit])
            text = f"{value:g}" if self.kind == "number" else _format(value)
            is_bracketed = text[0] == MINUS and place in ("negated", "factor", "divisor")
        else:
            text = self._write_operation(unit, level)
            is_bracketed = self.kind in BRACKETED[place] and not (self.kind == "products" and text[0] == "[")
        return f"({text})" if is_bracketed else text

    def _write_operation(self, unit: int, level: int) -> str:
        if self.kind == "products":
            return self._write_products(unit)
        units = [self._unit_of_part(i, unit) for i in range(len(self.parts))]
        pairs = list(zip(self.parts, units, strict=True))
        if self.kind in ("*", "outer"):
            return "·".join(part.write(i, level, "factor") for part, i in pairs)
        if self.kind == "negative":
            return MINUS + self.parts[0].write(unit, level, "negated")
        if self.kind not in ("+", "-", "/"):
            arguments = [part.write(i, level if level < 2 else 3) for part, i in pairs]
            separator = ", ±" if self.kind == "clip" else ", "
            return f"{self.kind}({separator.join(arguments)})"
        places: tuple[Place, Place] = ("factor", "divisor") if self.kind == "/" else ("left", "right")
        left, right = (part.write(i, level, place) for (part, i), place in zip(pairs, places, strict=True))
        if self.kind == "/":
            return f"{left} / {right}"
        sign = "+" if self.kind == "+" else MINUS
        if right.startswith(MINUS):  # a + −b is a − b
            sign, right = MINUS if self.kind == "+" else "+", right[1:]
        return f"{left} {sign} {right}"

    def _write_products(self, unit: int) -> str:
        assert self.factors is not None
        index = np.unravel_index(unit, self.value.shape)
        left, right = (array[index] for array in self.factors)
        if len(left) > MAX_TERMS:
            return f"[{len(left):,} products: {self.write(unit)}]"
        numbers = [[_format(float(x)) for x in array] for array in (left, right)]
        factors = [[f"({text})" if text[0] == MINUS else text for text in texts] for texts in numbers]
        return " + ".join(f"{a}·{b}" for a, b in zip(*factors, strict=True))

    def _unit_of_part(self, i: int, unit: int) -> int:
        """Return the index into the flattened value of a part, from that into the flattened value of the node."""
        if self.kind == "outer":
            rows, columns = self.value.shape[-2:]
            return unit // columns if i == 0 else unit // (rows * columns) * columns + unit % columns
        return unit // (self.value.size // self.parts[i].value.size)  # as `_broadcast` repeats the values


def _format(value: float) -> str:
    """Format with at most three decimals and a typographic minus."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", MINUS).replace("inf", "∞")


def _broadcast(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both arrays in the larger one's shape, each value of the smaller one repeated along trailing dimensions.

    The smaller shape is the beginning of the larger one, a scalar, or a vector of as many values as such a beginning.
    """
    small, large = sorted((left, right), key=lambda array: (array.size, array.ndim))
    sizes = [math.prod(large.shape[:k]) for k in range(large.ndim + 1)]
    is_flat = small.size == 1 or (small.ndim == 1 and small.size in sizes)
    if not is_flat and small.shape != large.shape[: small.ndim]:
        raise SettingError(f"The shapes {left.shape} and {right.shape} in the equation do not fit.")
    repeated = np.repeat(small.ravel(), large.size // small.size).reshape(large.shape)
    return (repeated, right) if small is left else (left, repeated)


def _apply(name: str, matrix: np.ndarray, argument: Node) -> Node:
    """Apply a matrix (H, I), or one per head (heads, d, d), to units that may be flat; heads may share either of them.

    Raises `SettingError` for other shapes.
    """
    x = argument.value
    if matrix.ndim < 2:
        raise SettingError(f"{name} is not a matrix; write * between the factors of a product.")
    *heads, _, columns = matrix.shape
    if x.size == math.prod(heads) * columns:
        x = x.reshape(*heads, columns)
    elif x.shape[-1:] != (columns,) or (heads and x.ndim > 1):
        raise SettingError(f"{name} has shape {matrix.shape}; its argument has shape {x.shape}.")
    factors = np.broadcast_arrays(matrix, x[..., None, :])
    return Node("products", (argument,), np.matmul(matrix, x[..., None])[..., 0], (factors[0], factors[1]))


def _sum_products(left: np.ndarray, right: np.ndarray) -> Node:
    """Return the scalar product over the last dimension."""
    if left.size != right.size or not left.ndim:
        raise SettingError(f"The shapes {left.shape} and {right.shape} in the equation have no scalar product.")
    left, right = _broadcast(left, right)
    return Node("products", (), np.asarray((left * right).sum(-1)), (left, right))


def _outer(left: Node, right: Node) -> Node:
    """Return the outer product over the last dimension; a flat vector is split if the other one has heads."""
    v, k = left.value, right.value
    heads = max(v, k, key=np.ndim).shape[:-1]
    fits = all(
        array.shape[:-1] == heads or (array.ndim == 1 and array.size % math.prod(heads) == 0) for array in (v, k)
    )
    if not fits or not v.ndim or not k.ndim:
        raise SettingError(f"The shapes {v.shape} and {k.shape} in the equation have no outer product.")
    v, k = (array.reshape(*heads, -1) for array in (v, k))
    return Node("outer", (left, right), v[..., :, None] * k[..., None, :])


class WorkedEquation:
    """Right side of an equation, evaluated with the arrays of its names."""

    def __init__(self, text: str, names: Mapping[str, np.ndarray]):
        if len(text) > MAX_LENGTH:
            raise SettingError(f"The equation has {len(text)} characters; at most {MAX_LENGTH} are supported.")
        if remainder := TOKEN.sub("", text).strip():
            raise SettingError(f"Unexpected {remainder[:20]!r} in the equation {text[:80]!r}.")
        self.names, self.tokens = names, [match.group().strip() for match in TOKEN.finditer(text)]
        # As Python: names by their position, W x as W ** x, which has the same precedence, and ±3 as a tuple.
        words: list[str] = []
        for i, token in enumerate(self.tokens):
            if words and words[-1][0] == "_" and (token == "(" or token[0].isalpha()):
                words.append("**")
            is_name = token[0].isalpha() and token not in FUNCTIONS
            words.append(f"_{i}" if is_name else f"({token[1:]},)" if token[0] == "±" else token)
        try:
            expression = ast.parse(" ".join(words), mode="eval").body
        except SyntaxError:
            raise SettingError(f"The equation {text[:80]!r} cannot be parsed.") from None
        with np.errstate(all="ignore"):
            self.root = self._evaluate(expression)
        self.value = self.root.value  # of all units

    def lines(self, unit: int) -> list[str]:
        """Return the levels of `Node.write`: "sigmoid((1.7·1 + 0.9·0) + …)", "sigmoid(3.8 + …)", …, "0.984".

        The unit is an index into the flattened value.
        """
        return list(dict.fromkeys(self.root.write(unit, level) for level in range(4)))

    def _evaluate(self, expression: ast.expr) -> Node:
        match expression:
            case ast.Constant(int() | float() as number):
                return Node("number", (), np.array(float(number)))
            case ast.Name(word):
                return Node("name", (), self._get_array(word))
            case ast.UnaryOp(ast.USub(), operand):
                return _negate(self._evaluate(operand))
            case ast.BinOp(ast.Name(word), ast.Pow(), operand):
                return _apply(self.tokens[int(word[1:])], self._get_array(word), self._evaluate(operand))
            case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
                sign, first, second = OPERATORS[type(operator)], self._evaluate(left), self._evaluate(right)
                if first.kind == "negative" and sign in "*/":  # of the whole term, so that −a·b needs no brackets
                    return _negate(_combine(sign, first.parts[0], second))
                return _combine(sign, first, second)
            case ast.Call(ast.Name("clip"), [argument, ast.Tuple([ast.Constant(limit)])]):
                first, limit = self._evaluate(argument), float(limit)  # type: ignore[arg-type]
                return Node("clip", (first, Node("number", (), np.array(limit))), first.value.clip(-limit, limit))
            case ast.Call(ast.Name("norm"), [argument]):
                first = self._evaluate(argument)
                squares = _sum_products(first.value.ravel(), first.value.ravel())
                return Node("sqrt", (squares,), np.sqrt(squares.value))
            case ast.Call(ast.Name(function), [argument]) if function in UNARY:
                first = self._evaluate(argument)
                return Node(function, (first,), UNARY[function](first.value))
            case ast.Call(ast.Name("max" | "min" | "dot" | "outer" as function), [left, right]):
                first, second = self._evaluate(left), self._evaluate(right)
                if function == "dot":
                    return _sum_products(first.value, second.value)
                return _outer(first, second) if function == "outer" else _combine(function, first, second)
        raise SettingError(f"Unexpected {' '.join(self.tokens)[:80]!r} in an equation.")

    def _get_array(self, word: str) -> np.ndarray:
        """Return the array of a name, which stands as its position in the expression."""
        name = self.tokens[int(word[1:])] if word[0] == "_" else word
        if name not in self.names or name in FUNCTIONS:
            raise SettingError(f"Unknown name {name!r} in the equation.")
        return self.names[name]


def _combine(operation: str, left: Node, right: Node) -> Node:
    return Node(operation, (left, right), BINARY[operation](*_broadcast(left.value, right.value)))


def _negate(node: Node) -> Node:
    return Node("negative", (node,), -node.value)


@dataclass(frozen=True)
class OneStep:
    """One step of a layer in plain arrays."""

    cell: Cell
    x: np.ndarray  # input of the layer (I,)
    before: dict[str, np.ndarray]  # carried states before the step, by name
    after: dict[str, np.ndarray]  # every quantity of the step, by name
    log_probs: np.ndarray | None = None  # of the next symbol (V,), for a language model

    def names(self) -> dict[str, np.ndarray]:
        """Return the array for each name of the equations.

        For a carried state, c is before the step and c' after it; other quantities have no value before the step, so
        that both forms are after it.
        """
        weights = {name: _to_numpy(weight) for name, weight in self.cell.named_weights().items()}
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
        # heads may be a dimension of one of them only
        agrees = value.size == expected.size and np.allclose(value.ravel(), expected.ravel(), atol=TOLERANCE)
        return equation if agrees else None


@torch.no_grad()
def trace_symbol_step(
    model: SequenceModel, recorder: Recorder, states: Sequence[LayerState], symbols: Sequence[str], *, layer: int
) -> OneStep:
    """Return the step in which a model reads the last of these symbols, from these states of its layers."""
    stack = recorder.stack
    x = model.recurrent_inputs([symbols], boundary=False)
    with full_precision():
        if len(symbols) > 1:
            states = stack.run(x[:, :-1], states).states
        x = x[:, -1:]
        run = stack.run(x, states, keep=stack.layers[layer].cell.words)
        log_probs = model.softmax.log_probs(model.output_features(run.outputs[-1][0, 0]))
    step = _make_step(recorder, run, x, [tensor[0, 0] for tensor in states[layer]], (layer, 0, 0))
    return replace(step, log_probs=_to_numpy(log_probs[0]))


@torch.no_grad()
def trace_word_step(
    model: SequenceModel, recorder: Recorder, words: list[str], at: int, *, layer: int, backward: bool
) -> OneStep:
    """Return the step in which one direction of a model of sentences reads the word at an index of a sentence."""
    x = model.recurrent_inputs([words])
    with full_precision():
        run = recorder.stack.run(x, keep=recorder.stack.layers[layer].cell.words)
    d, t = (1, len(words) - at) if backward else (0, at + 1)
    before = [run.quantities[layer][name][d, t - 1, 0] for name in recorder.stack.layers[layer].cell.states]
    return _make_step(recorder, run, x, before, (layer, d, t))


def _make_step(
    recorder: Recorder, run: Run, x: Tensor, before: Sequence[Tensor], position: tuple[int, int, int]
) -> OneStep:
    depth, d, t = position
    layer = recorder.stack.layers[depth]
    layer_input = x if depth == 0 else run.outputs[depth - 1]
    after = {name: _to_numpy(run.quantities[depth][name][d, t, 0]) for name in layer.cell.words}
    states = dict(zip(layer.cell.states, map(_to_numpy, before), strict=True))
    return OneStep(layer.cells[d], _to_numpy(layer_input[d, t, 0]), states, after)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
