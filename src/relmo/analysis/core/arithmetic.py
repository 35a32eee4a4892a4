"""An equation from a cell's docstring, computed and written out with its numbers.

    equation = WorkedEquation("sigmoid(W_ii x + b_ii + W_hi h + b_hi)", names)
    equation.value                   # (H,)
    equation.lines(unit=2)           # "sigmoid((1.7·1 + 0.9·0) + 2.1 + …)", "sigmoid(3.8 + …)", "sigmoid(4.1)", "0.984"

Equations consist of names, numbers, + - *, a matrix before its argument, sigmoid, tanh, relu, and clip(…, ±3). Other
syntax, or an unknown name, is a `SettingError`; callers then show the numbers alone.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from relmo.errors import SettingError

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

    def at(self, unit: int) -> float:
        """Return the value of one unit."""
        return float(self.value if self.value.ndim == 0 else self.value[unit])


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
        if self.tokens:
            raise SettingError(f"Unexpected {self.tokens[0]!r} after the end of the equation {text[:80]!r}.")

    @property
    def value(self) -> np.ndarray:
        """Value for all units."""
        return self.root.value

    def lines(self, unit: int) -> list[str]:
        """Return one unit's numbers in stages, without repetitions.

        Products are written out, then added up; then the arguments of functions are added up; last comes the value.
        """
        stages = [_write(self.root, unit, level) for level in range(3)] + [_format(self.root.at(unit))]
        return list(dict.fromkeys(stages))

    def _accept(self, *tokens: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in tokens else None

    def _expect(self, token: str) -> None:
        if self._accept(token) is None:
            raise SettingError(f"Missing {token!r} in the equation.")

    def _parse_sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SettingError(f"The equation has more than {MAX_DEPTH} nested brackets.")
        node = self._parse_product()
        while sign := self._accept("+", "-"):
            right = self._parse_product()
            node = Node(sign, (node, right), node.value + right.value if sign == "+" else node.value - right.value)
        self.depth -= 1
        return node

    def _parse_product(self) -> Node:
        node = self._parse_factor()
        while self._accept("*"):
            right = self._parse_factor()
            node = Node("*", (node, right), node.value * right.value)
        return node

    def _parse_factor(self) -> Node:
        if self._accept("("):
            node = self._parse_sum()
            self._expect(")")
            return node
        if not self.tokens:
            raise SettingError("Unexpected end of the equation.")
        token = self.tokens.pop(0)
        if token in FUNCTIONS or token == CLIP:
            return self._parse_function(token)
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

    def _parse_function(self, name: str) -> Node:
        self._expect("(")
        argument = self._parse_sum()
        if name != CLIP:
            self._expect(")")
            return Node(name, (argument,), FUNCTIONS[name](argument.value))
        self._expect(",")
        if not self.tokens or not self.tokens[0].startswith("±"):
            raise SettingError("The second argument of clip must be a number such as ±3.")
        limit = float(self.tokens.pop(0)[1:])
        self._expect(")")
        return Node(CLIP, (argument, Node("number", (), np.array(limit))), argument.value.clip(-limit, limit))


def _format(value: float, *, bracket_negative: bool = False) -> str:
    """Format with at most three decimals and a typographic minus."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    text = "0" if text == "-0" else text.replace("-", MINUS)
    return f"({text})" if bracket_negative and value < 0 and text != "0" else text


def _write(node: Node, unit: int, level: int) -> str:
    """Write a node for one unit; level 0 writes matrix products out, 1 adds them up, 2 adds up function arguments."""
    if node.kind in ("name", "number") or (node.kind == "matrix" and level):
        return _format(node.at(unit))
    if node.kind == "matrix":
        return _write_matrix_product(node, unit)
    if node.kind in ("+", "-"):
        left, right = (_write(part, unit, level) for part in node.parts)
        sign = "+" if node.kind == "+" else MINUS
        if node.parts[1].kind in "+-":
            return f"{left} {sign} ({right})"
        if right.startswith(MINUS) and "·" not in right:  # a + −b is a − b
            return f"{left} {MINUS if node.kind == '+' else '+'} {right[1:]}"
        return f"{left} {sign} {right}"
    if node.kind == "*":
        return "·".join(_write_factor(part, unit, level) for part in node.parts)
    argument = _write(node.parts[0], unit, level) if level < 2 else _format(node.parts[0].at(unit))
    limit = f", ±{_format(float(node.parts[1].value))}" if node.kind == CLIP else ""
    return f"{node.kind}({argument}{limit})"


def _write_factor(node: Node, unit: int, level: int) -> str:
    if node.kind in ("name", "number"):
        return _format(node.at(unit), bracket_negative=True)
    text = _write(node, unit, level)
    return f"({text})" if node.kind in "+-" or (node.kind == "matrix" and level) else text


def _write_matrix_product(node: Node, unit: int) -> str:
    assert node.matrix is not None
    row, (argument,) = node.matrix[unit], node.parts
    if len(row) > MAX_TERMS:
        return f"[{len(row):,} products: {_format(node.at(unit))}]"
    factors = [[_format(float(x), bracket_negative=True) for x in vector] for vector in (row, argument.value)]
    return "(" + " + ".join(f"{w}·{v}" for w, v in zip(*factors, strict=True)) + ")"
