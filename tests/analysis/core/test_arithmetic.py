"""Equations of cells reproduce what the cells compute, and are written out so that they can be checked by hand."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from relmo.analysis.core.one_step import MAX_LENGTH, WorkedEquation
from relmo.errors import SettingError
from relmo.nn.recurrence import Cell
from relmo.nn.recurrence.base import Quantity, Record, State, gate, state, unchanged
from relmo.nn.recurrence.elman import ElmanCell
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.registry import cell_class, cell_names
from support.equations import assert_equations_hold, random_step

INPUT, HIDDEN = 4, 8  # hidden units that can be split into 2, 4 or 8 heads

VARIANTS: dict[str, Callable[[], Cell]] = {
    "elman with relu": lambda: ElmanCell(INPUT, HIDDEN, nonlinearity="relu"),
    "clipped lstm": lambda: LSTMCell(INPUT, HIDDEN, cell_clip=0.1),
    "projected lstm": lambda: LSTMCell(INPUT, HIDDEN, projection=2, projection_clip=0.05),
    "coupled lstm with peepholes": lambda: LSTMCell(INPUT, HIDDEN, coupled=True, peephole=True),
}


@pytest.mark.parametrize("name", cell_names())
def test_equations_reproduce_every_quantity_of_a_registered_cell(name: str) -> None:
    step = random_step(cell_class(name)(INPUT, HIDDEN))
    assert {*step.cell.equations()} <= {*step.after}
    assert_equations_hold(step)


@pytest.mark.parametrize("name", VARIANTS)
def test_equations_reproduce_every_quantity_of_a_variant(name: str) -> None:
    step = random_step(VARIANTS[name]())
    assert {*step.cell.equations()} == {*step.after}
    assert_equations_hold(step)


class MatrixCell(Cell):
    """A matrix memory with two heads, exponential gates, a stabiliser and an output that is not carried."""

    name = "matrix"

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.d = hidden_size // 2
        for letter in "qkvo":
            setattr(self, f"W_{letter}", torch.nn.Parameter(torch.randn(hidden_size, input_size)))
        for letter in "if":
            setattr(self, f"W_{letter}", torch.nn.Parameter(torch.randn(2, input_size)))

    def quantities(self) -> list[Quantity]:
        heads = (2, self.d)
        names = {name: Quantity(name, heads, "candidate", "candidate") for name in "qkv"}
        return [
            Quantity("h", (self.hidden_size,), "output", "output"),
            state("C", *heads, self.d),
            state("n", *heads, role="normaliser"),
            state("m", 2, role="stabiliser"),
            gate("i", 2, description="input gate"),
            gate("f", 2, description="forget gate"),
            gate("o", self.hidden_size, description="output gate"),
            *names.values(),
        ]

    def equations(self) -> dict[str, str]:
        return {
            "q": "W_q x",
            "k": f"W_k x / sqrt({self.d})",
            "v": "W_v x",
            "o": "sigmoid(W_o x)",
            "m": "max(m - softplus(-W_f x), W_i x)",
            "i": "exp(W_i x - m')",
            "f": "exp(-softplus(-W_f x) + m - m')",
            "C": "f * C + i * outer(v, k)",
            "n": "f * n + i * k",
            "h": "o * (C' q) / max(abs(dot(n', q)), exp(-m'))",
        }

    def step(self, x: torch.Tensor, state: State, *, record: Record = unchanged) -> tuple[torch.Tensor, State]:
        C, n, m = state
        weights = self.named_weights()
        products = {letter: x @ weights[f"W_{letter}"].T for letter in "qkvoif"}
        q, k, v = (products[letter].unflatten(-1, (2, self.d)) for letter in "qkv")
        q, k, v = record("q", q), record("k", k / self.d**0.5), record("v", v)
        o = record("o", products["o"].sigmoid())
        log_f = torch.nn.functional.logsigmoid(products["f"])
        m_new = record("m", torch.maximum(m + log_f, products["i"]))
        i, f = record("i", torch.exp(products["i"] - m_new)), record("f", torch.exp(log_f + m - m_new))
        C = record("C", f[..., None, None] * C + i[..., None, None] * torch.einsum("bhi,bhj->bhij", v, k))
        n = record("n", f[..., None] * n + i[..., None] * k)
        divisor = torch.maximum((n * q).sum(-1).abs(), torch.exp(-m_new))
        h = record("h", o * (torch.einsum("bhij,bhj->bhi", C, q) / divisor[..., None]).flatten(1))
        return h, (C, n, m_new)


def test_equations_reproduce_a_matrix_memory_with_heads() -> None:
    step = random_step(MatrixCell(INPUT, HIDDEN))
    assert {*step.cell.equations()} == {*step.after}
    assert_equations_hold(step)


def test_names_without_a_prime_are_before_the_step_for_carried_states_only() -> None:
    step = random_step(MatrixCell(INPUT, HIDDEN))
    names = step.names()
    for name in step.cell.states:
        assert names[name] is step.before[name]
        assert names[f"{name}'"] is step.after[name]
        assert not np.array_equal(names[name], names[f"{name}'"])
    for name in {*step.after} - {*step.cell.states}:
        assert names[name] is names[f"{name}'"] is step.after[name]
    assert "h" not in step.before
    assert names["x"] is step.x


RANDOM = np.random.default_rng(0)
A, B = RANDOM.normal(size=(2, 6))  # flat vectors of 2 heads with 3 units
P, Q = RANDOM.normal(size=(2, 2, 3))  # the same per head
S = RANDOM.normal(size=2)  # one value per head
C = RANDOM.normal(size=(2, 3, 3))  # one matrix per head
W, X, M = RANDOM.normal(size=(6, 4)), RANDOM.normal(size=4), RANDOM.normal(size=(3, 3))
NAMES = {"a": A, "b": B, "p": P, "q": Q, "s": S, "C'": C, "W_ix": W, "x": X, "M": M, "y": np.array(1.7)}
BLOCKS = np.zeros((6, 6))
BLOCKS[:3, :3], BLOCKS[3:, 3:] = C

EQUATIONS: dict[str, np.ndarray] = {
    "0.5": np.array(0.5),
    "1e-3 * a": 0.001 * A,
    "a + b - 2": A + B - 2,
    "a - b - a": -B,
    "a - (b - a)": 2 * A - B,
    "a * b / 2": A * B / 2,
    "a / b / 2": A / B / 2,
    "a / (b / 2)": A / B * 2,
    "1 - -a": 1 + A,
    "-a * b": -A * B,
    "a * -b": -A * B,
    "--a": A,
    "a + b * a": A + B * A,
    "sigmoid(a)": 1 / (1 + np.exp(-A)),
    "tanh(a)": np.tanh(A),
    "relu(a)": np.where(A > 0, A, 0),
    "exp(a)": np.exp(A),
    "log(abs(a))": np.log(np.abs(A)),
    "sqrt (exp(a))": np.exp(A / 2),
    "softplus(a)": np.log(1 + np.exp(A)),
    "silu(a)": A / (1 + np.exp(-A)),
    "max(a, b)": np.where(A > B, A, B),
    "min(a, 0)": np.where(A < 0, A, 0),
    "clip(2 * a, ±0.3)": np.clip(2 * A, -0.3, 0.3),
    "clip(2 * a, ±1e-1)": np.clip(2 * A, -0.1, 0.1),
    # scalars and broadcasting
    "y * a": 1.7 * A,
    "y * C' + 1": 1.7 * C + 1,
    "s * p": S[:, None] * P,
    "p / s": P / S[:, None],
    "s * C'": S[:, None, None] * C,
    "p * C'": P[:, :, None] * C,
    "a * C'": A.reshape(2, 3, 1) * C,
    "a * p": A.reshape(2, 3) * P,
    "p - a": P - A.reshape(2, 3),
    "max(s, p)": np.maximum(S[:, None], P),
    # products
    "W_ix x": W @ X,
    "W_ix x + b": W @ X + B,
    "W_ix tanh(x)": W @ np.tanh(X),
    "W_ix (x + 1)": W @ (X + 1),
    "a * W_ix x": A * (W @ X),
    "-W_ix x / 2": -(W @ X) / 2,
    "C' W_ix x": (BLOCKS @ W @ X).reshape(2, 3),
    "C' a": (BLOCKS @ A).reshape(2, 3),
    "C' p": np.stack([C[0] @ P[0], C[1] @ P[1]]),
    "M p": np.stack([M @ P[0], M @ P[1]]),
    "C' (M p)": np.stack([C[0] @ M @ P[0], C[1] @ M @ P[1]]),
    "dot(a, b)": np.array(A @ B),
    "dot(p, q)": np.array([P[0] @ Q[0], P[1] @ Q[1]]),
    "dot(a, q)": np.array([A[:3] @ Q[0], A[3:] @ Q[1]]),
    "p / dot(p, q)": P / np.array([[P[0] @ Q[0]], [P[1] @ Q[1]]]),
    "outer(a, x)": A[:, None] * X,
    "outer(p, q)": np.stack([np.outer(P[0], Q[0]), np.outer(P[1], Q[1])]),
    "outer(x, q)": np.stack([np.outer(X[:2], Q[0]), np.outer(X[2:], Q[1])]),
    "C' + s * outer(a, q)": C + S[:, None, None] * A.reshape(2, 3, 1) * Q[:, None, :],
    "norm(a)": np.array(np.sqrt((A**2).sum())),
    "p / norm(p)": P / np.sqrt((P**2).sum()),
}


def evaluate_line(line: str) -> float:
    """Evaluate a written-out line by Python."""
    python = line.replace("\N{MINUS SIGN}", "-").replace("·", "*").replace("±", "")
    python = re.sub(r"\[[\d,]+ products: (.*?)\]", r"(\1)", python)
    assert re.fullmatch(r"([-\d.+*/(), ]|sigmoid|tanh|relu|exp|log|abs|sqrt|softplus|silu|max|min|clip)*", python)
    functions = {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "relu": lambda x: max(x, 0),
        "softplus": lambda x: np.log(1 + np.exp(x)),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "clip": lambda x, limit: np.clip(x, -limit, limit),
    } | {name: getattr(np, name) for name in ("tanh", "exp", "log", "sqrt")}
    return float(eval(python, functions))  # noqa: S307 - numbers, operators and these functions alone


@pytest.mark.parametrize("text", EQUATIONS)
def test_an_equation_has_the_value_computed_by_numpy(text: str) -> None:
    value = WorkedEquation(text, NAMES).value
    np.testing.assert_allclose(value, EQUATIONS[text], rtol=1e-12)
    assert value.shape == EQUATIONS[text].shape


@pytest.mark.parametrize("text", EQUATIONS)
def test_every_line_of_every_unit_evaluates_to_the_value_of_the_unit(text: str) -> None:
    rounded = {name: np.round(array, 3) for name, array in NAMES.items()}  # so that the first line is exact
    equation = WorkedEquation(text, rounded)
    for unit, value in enumerate(equation.value.ravel()):
        first, *others = equation.lines(unit)
        assert evaluate_line(first) == pytest.approx(value, abs=1e-3)
        for line in others:
            assert evaluate_line(line) == pytest.approx(value, abs=0.02, rel=0.02)


SMALL = {
    "a": np.array([0.5, -2.0]),
    "b": np.array([3.0, 4.0]),
    "s": np.array([2.0, -1.0]),
    "p": np.array([[1.0, 2.0], [3.0, 4.0]]),
    "W": np.array([[1.0, 2.0], [3.0, -4.0]]),
    "z": np.arange(9.0),
}


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("W b + a", 1, ["(3·3 + (−4)·4) − 2", "−7 − 2", "−9"]),
        ("W b", 0, ["1·3 + 2·4", "11"]),
        ("tanh(W b)", 0, ["tanh(1·3 + 2·4)", "tanh(11)", "1"]),
        ("b - a", 1, ["4 + 2", "6"]),
        ("b - (a - b)", 0, ["3 − (0.5 − 3)", "5.5"]),
        ("a * b / 2", 1, ["(−2)·4 / 2", "−4"]),
        ("a * (b / 2)", 0, ["0.5·(3 / 2)", "0.75"]),
        ("b / (a * 2)", 0, ["3 / (0.5·2)", "3"]),
        ("b / (a + 1)", 1, ["4 / (−2 + 1)", "−4"]),
        ("b / a", 1, ["4 / (−2)", "−2"]),
        ("W b / 2", 0, ["(1·3 + 2·4) / 2", "11 / 2", "5.5"]),
        ("-a", 1, ["−(−2)", "2"]),
        ("-a * b", 0, ["−0.5·3", "−1.5"]),
        ("b * -a", 0, ["3·(−0.5)", "−1.5"]),
        ("b + -(a + 1)", 0, ["3 − (0.5 + 1)", "1.5"]),
        ("exp(-a - b)", 1, ["exp(−(−2) − 4)", "exp(−2)", "0.135"]),
        ("max(a + 1, b)", 0, ["max(0.5 + 1, 3)", "max(1.5, 3)", "3"]),
        ("clip(a * b, ±1.5)", 1, ["clip((−2)·4, ±1.5)", "clip(−8, ±1.5)", "−1.5"]),
        ("a * 1e-6", 0, ["0.5·1e-06", "0"]),
        ("s * p", 2, ["(−1)·3", "−3"]),
        ("dot(p, p)", 1, ["3·3 + 4·4", "25"]),
        ("s * dot(p, p)", 1, ["(−1)·(3·3 + 4·4)", "(−1)·25", "−25"]),
        ("outer(a, b)", 2, ["(−2)·3", "−6"]),
        ("1 - outer(p, p)", 6, ["1 − 4·3", "−11"]),
        ("norm(b)", 0, ["sqrt(3·3 + 4·4)", "sqrt(25)", "5"]),
        ("dot(z, z)", 0, ["[9 products: 204]", "204"]),
        ("log(b - b)", 0, ["log(3 − 3)", "log(0)", "−∞"]),
    ],
)
def test_a_unit_is_written_out_level_by_level(text: str, unit: int, expected: list[str]) -> None:
    assert WorkedEquation(text, SMALL).lines(unit) == expected


def test_an_equation_that_disagrees_with_the_cell_is_not_worked_out() -> None:
    class OddCell(ElmanCell):
        def equations(self) -> dict[str, str]:
            return {"h": "sigmoid(W_ih x + b_ih + W_hh h + b_hh)"}

    assert random_step(OddCell(INPUT, HIDDEN)).work_out("h") is None


@pytest.mark.parametrize("text", ["W_ih x + unknown", "W_ih", "softmax(h)", ""])
def test_an_equation_that_cannot_be_evaluated_is_not_worked_out(text: str) -> None:
    class OddCell(GRUCell):
        def equations(self) -> dict[str, str]:
            return {"h": text}

    step = random_step(OddCell(INPUT, HIDDEN))
    assert step.work_out("h") is None
    assert step.work_out("r") is None


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("a +", r"\+"),
        ("", "parsed"),
        ("(a", "parsed"),
        ("a)", r"\)"),
        ("__import__", "__import__"),
        ("a.real", "real"),
        ("a ** 2", r"\*"),
        ("a // 2", "/"),
        ("a < b", "<"),
        ("a[0]", r"\["),
        ("2 a", "parsed"),
        ("a 2", "parsed"),
        ("±3", "±3"),
        ("clip(a, 3)", "clip"),
        ("max(a)", "max"),
        ("tanh(a, b)", r"\)"),
        ("tanh a", "parsed"),
        ("unknown * a", "unknown"),
        ("gelu(a)", "gelu"),
        ("a b", "matrix"),
        ("W_ix a", "shape"),
        ("C' x", "shape"),
        ("a + x", "shapes"),
        ("s * x", "shapes"),
        ("dot(a, x)", "scalar product"),
        ("dot(1, 2)", "scalar product"),
        ("outer(1, a)", "outer product"),
        ("a" * (MAX_LENGTH + 1), "characters"),
    ],
)
def test_other_syntax_is_an_error(text: str, token: str) -> None:
    with pytest.raises(SettingError, match=token):
        WorkedEquation(text, NAMES)


def test_a_sum_of_the_maximal_length_can_be_written() -> None:
    equation = WorkedEquation("a" + "+a" * (MAX_LENGTH // 2 - 1), NAMES)
    np.testing.assert_allclose(equation.value, A * MAX_LENGTH / 2)
    assert equation.lines(0)[0].count("+") + 1 == MAX_LENGTH // 2
