"""An equation of a cell, as its docstring has it, computed and written out with its numbers.

    written = Written("sigmoid(W_ii x + b_ii + W_hi h + b_hi)", names)
    written.value                   (H,)
    written.lines(unit=2)           "sigmoid((1.7·1 + 0.9·0) + 2.1 + …)", "sigmoid(3.8 + …)", "sigmoid(4.1)", "0.984"

The language is that of the docstrings: names, numbers, + - *, a matrix before what it multiplies, sigmoid, tanh, relu,
and clip(…, ±3). An equation in any other words, or with names that are not given, is a `SettingError`; who shows
equations then shows their numbers alone.
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
MOST_TERMS = 8  # of a product that is written out
DEEPEST, LONGEST = 20, 400  # brackets in brackets, and characters

Names = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Node:
    """A part of an equation: a name, a number, an operation, a function or a product with a matrix; its parts; what it
    comes to, (H,) or one number."""

    kind: str
    parts: tuple["Node", ...]
    value: np.ndarray
    matrix: np.ndarray | None = None


class Written:
    """The right side of an equation with what its names stand for: matrices (H, I) and vectors."""

    def __init__(self, text: str, names: Names):
        if len(text) > LONGEST:
            raise SettingError(f"the equation has {len(text)} characters; at most {LONGEST} are read")
        self.tokens, self.names, self.depth = _tokens(text), names, 0
        self.root = self._sum()
        if self.tokens:
            raise SettingError(f"the equation {text[:80]!r} goes on after its end: {self.tokens[0]!r}")

    @property
    def value(self) -> np.ndarray:
        """What it comes to, for all units."""
        return self.root.value

    def lines(self, unit: int) -> list[str]:
        """One unit's numbers: with every product written out, with products added up, with the arguments of functions
        added up, and the value; without lines that say the same."""
        written = [_write(self.root, unit, level) for level in range(3)] + [number(_at(self.root.value, unit))]
        return list(dict.fromkeys(written))

    def _take(self, *wanted: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else None

    def _expect(self, wanted: str) -> None:
        if self._take(wanted) is None:
            raise SettingError(f"the equation lacks {wanted!r}")

    def _sum(self) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise SettingError("the equation has too many brackets in brackets")
        found = self._product()
        while sign := self._take("+", "-"):
            right = self._product()
            value = found.value + right.value if sign == "+" else found.value - right.value
            found = Node(sign, (found, right), value)
        self.depth -= 1
        return found

    def _product(self) -> Node:
        found = self._factor()
        while self._take("*"):
            right = self._factor()
            found = Node("*", (found, right), found.value * right.value)
        return found

    def _factor(self) -> Node:
        if self._take("("):
            found = self._sum()
            self._expect(")")
            return found
        if not self.tokens:
            raise SettingError("the equation ends too soon")
        token = self.tokens.pop(0)
        if token in FUNCTIONS or token == CLIP:
            return self._function(token)
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return Node("number", (), np.array(float(token)))
        if token not in self.names:
            raise SettingError(f"the equation has {token!r}, which is not given")
        given = self.names[token]
        if given.ndim == 1:
            return Node("name", (), given)
        what = self._factor()
        if what.value.shape != (given.shape[1],):
            raise SettingError(f"{token} has {given.shape[1]} columns, and multiplies {what.value.shape}")
        return Node("matrix", (what,), given @ what.value, given)

    def _function(self, name: str) -> Node:
        self._expect("(")
        inside = self._sum()
        if name != CLIP:
            self._expect(")")
            return Node(name, (inside,), FUNCTIONS[name](inside.value))
        self._expect(",")
        if not self.tokens or not self.tokens[0].startswith("±"):
            raise SettingError("the equation clips, but not at a number")
        limit = float(self.tokens.pop(0)[1:])
        self._expect(")")
        return Node(CLIP, (inside, Node("number", (), np.array(limit))), inside.value.clip(-limit, limit))


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None:
            raise SettingError(f"the equation has {text[at : at + 20]!r}, which is not read")
        found.append(match.group().strip())
        at = match.end()
    return found


def _at(value: np.ndarray, unit: int) -> float:
    return float(value if value.ndim == 0 else value[unit])


def number(value: float) -> str:
    """A number with three decimals at most, and a minus that is one."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "\N{MINUS SIGN}")


def _bracketed(value: float) -> str:
    return f"({number(value)})" if value < 0 and number(value) != "0" else number(value)


def _write(node: Node, unit: int, level: int) -> str:
    """A part of one unit's equation. Level 0 writes products with matrices out, 1 adds them up, 2 adds up the arguments
    of functions."""
    match node.kind:
        case "name" | "number":
            return number(_at(node.value, unit))
        case "matrix":
            return _terms(node, unit) if level == 0 else number(_at(node.value, unit))
        case "+" | "-":
            left, right = (_write(part, unit, level) for part in node.parts)
            return _joined(left, node.kind, right, sum_on_right=node.parts[1].kind in "+-")
        case "*":
            return "·".join(_factor_text(part, unit, level) for part in node.parts)
        case "clip":
            inside = _write(node.parts[0], unit, level) if level < 2 else number(_at(node.parts[0].value, unit))
            return f"clip({inside}, ±{number(float(node.parts[1].value))})"
    (argument,) = node.parts
    return f"{node.kind}({_write(argument, unit, level) if level < 2 else number(_at(argument.value, unit))})"


def _joined(left: str, sign: str, right: str, *, sum_on_right: bool) -> str:
    minus = "\N{MINUS SIGN}"
    if sum_on_right:
        return f"{left} {sign} ({right})".replace(" - (", f" {minus} (")
    if right.startswith(minus) and "·" not in right:
        return f"{left} {minus if sign == '+' else '+'} {right[1:]}"
    return f"{left} {'+' if sign == '+' else minus} {right}"


def _factor_text(part: Node, unit: int, level: int) -> str:
    if part.kind in ("name", "number"):
        return _bracketed(_at(part.value, unit))
    text = _write(part, unit, level)
    return f"({text})" if part.kind in "+-" or (part.kind == "matrix" and level) else text


def _terms(node: Node, unit: int) -> str:
    """A row of a matrix times a vector, term by term where there are few."""
    assert node.matrix is not None
    row, (what,) = node.matrix[unit], node.parts
    if len(row) > MOST_TERMS:
        return f"[{len(row):,} products: {number(_at(node.value, unit))}]"
    return (
        "("
        + " + ".join(f"{_bracketed(float(w))}·{_bracketed(float(v))}" for w, v in zip(row, what.value, strict=True))
        + ")"
    )
