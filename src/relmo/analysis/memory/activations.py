"""Activation functions and their derivatives, as numbers and as a picture.

    for each in activations(): each.name, each.largest_slope

A gradient that goes back through an activation is multiplied by its slope at every step, so a slope whose largest value
is below 1 makes it vanish: 0.25 for the sigmoid, which leaves less than a millionth after ten steps; 1, at one point,
for tanh. Gates are sigmoids since they have to lie between 0 and 1; the LSTM's cell has no activation on its way back.

    Hochreiter 1991;  Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks
    Nair & Hinton 2010, Rectified linear units;  Hendrycks & Gimpel 2016, Gaussian error linear units
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf, pi, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.show import Table, figure, picture
from relmo.errors import SettingError

Function = Callable[[np.ndarray], np.ndarray]
FLAT = 0.1  # a slope below this hardly lets a gradient through
STEPS = 10


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def normal(x: np.ndarray) -> np.ndarray:
    """The share of a standard normal distribution below x."""
    return 0.5 * (1 + np.vectorize(erf, otypes=[float])(x / sqrt(2)))


class Formula(NamedTuple):
    """A function, its derivative, and both as they are written."""

    function: Function
    derivative: Function
    written: str
    slope_written: str


FORMULAS: dict[str, Formula] = {
    "sigmoid": Formula(sigmoid, lambda x: sigmoid(x) * sigmoid(-x), "1 / (1 + e^-x)", "y (1 - y)"),
    "tanh": Formula(np.tanh, lambda x: 1 - np.tanh(x) ** 2, "(e^x - e^-x) / (e^x + e^-x)", "1 - y²"),
    "relu": Formula(lambda x: np.maximum(x, 0.0), lambda x: (x > 0).astype(float), "max(0, x)", "1 where x > 0"),
    "hard_sigmoid": Formula(
        lambda x: np.clip(x / 6 + 0.5, 0.0, 1.0),
        lambda x: np.where(np.abs(x) < 3, 1 / 6, 0.0),
        "min(1, max(0, x / 6 + 1/2))",
        "1/6 where |x| < 3",
    ),
    "softplus": Formula(lambda x: np.logaddexp(x, 0.0), sigmoid, "log(1 + e^x)", "sigmoid(x)"),
    "gelu": Formula(
        lambda x: x * normal(x),
        lambda x: normal(x) + x * np.exp(-(x**2) / 2) / sqrt(2 * pi),
        "x Φ(x)",
        "Φ(x) + x φ(x)",
    ),
    "identity": Formula(lambda x: x, np.ones_like, "x", "1"),
}
SHOWN = ("sigmoid", "tanh", "relu")


@dataclass(frozen=True)
class Activation:
    """One function over a range of x.

    largest_slope       in the range
    after_ten_steps     the largest slope to the tenth power: the most that is left of a gradient of 1
    flat                the share of the range where the slope is below 0.1
    """

    name: str
    written: str
    slope_written: str
    x: list[float]
    y: list[float]
    slope: list[float]
    largest_slope: float
    after_ten_steps: float
    flat: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        return activation_table([self]).html()


def activations(
    names: Sequence[str] = SHOWN, *, low: float = -6.0, high: float = 6.0, points: int = 241
) -> list[Activation]:
    """These functions and their derivatives at evenly spaced points."""
    if low >= high or points < 2:
        raise SettingError(
            f"the range goes from {low:g} to {high:g} in {points} points; it needs low < high and 2 points"
        )
    x = np.linspace(low, high, points)
    return [_evaluate(name, x) for name in names]


def _evaluate(name: str, x: np.ndarray) -> Activation:
    """One function at these points (N,)."""
    if name not in FORMULAS:
        raise SettingError(f"there is no activation {name!r}; there are {', '.join(FORMULAS)}")
    formula = FORMULAS[name]
    slope = formula.derivative(x)
    largest = float(slope.max())
    return Activation(
        name=name,
        written=formula.written,
        slope_written=formula.slope_written,
        x=x.tolist(),
        y=formula.function(x).tolist(),
        slope=slope.tolist(),
        largest_slope=largest,
        after_ten_steps=largest**STEPS,
        flat=float((slope < FLAT).mean()),
    )


def activation_table(found: Sequence[Activation]) -> Table:
    """Functions side by side."""
    rows = [
        [
            each.name,
            each.written,
            each.slope_written,
            figure(each.largest_slope),
            f"{each.after_ten_steps:.2g}",
            figure(100 * each.flat, 0),
        ]
        for each in found
    ]
    columns = ["activation", "y", "dy/dx", "largest slope", f"to the power of {STEPS}", f"% with slope < {FLAT:g}"]
    return Table(columns, rows, notes=[f"over x from {found[0].x[0]:g} to {found[0].x[-1]:g}"])


def draw_activations(found: Sequence[Activation], path: str | Path) -> None:
    """The functions on the left, their derivatives on the right."""
    with picture(path, 10, 4) as drawn:
        left, right = drawn.subplots(1, 2)
        for each in found:
            left.plot(each.x, each.y, label=each.name)
            right.plot(each.x, each.slope, label=f"{each.name}, at most {each.largest_slope:.2g}")
        left.set_ylim(max(-2, min(min(each.y) for each in found) - 0.1), min(3, max(max(e.y) for e in found) + 0.1))
        for axes, title in ((left, "y"), (right, "dy/dx")):
            axes.set_title(title)
            axes.set_xlabel("x")
            axes.grid(True, alpha=0.3)
            axes.legend(fontsize=8)
