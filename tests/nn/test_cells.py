"""The written-out cells equal torch's, their docstrings and their numerical derivatives; the LSTM's clips hold."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relmo.nn.recurrence import Cell, State, make_cell
from relmo.nn.recurrence.base import StackedCell
from relmo.nn.recurrence.elman import ElmanCell
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell, clip
from relmo.registry import BASIC_CELLS, cell_class
from relmo.registry import CELLS as TABLE
from support.cells import random_state, record_gates


def state_sizes(cell: Cell) -> list[int]:
    return [cell.sizes[name] for name in cell.states]


def lstm_projected(input_size: int, hidden_size: int) -> LSTMCell:
    return LSTMCell(input_size, hidden_size, projection=max(1, hidden_size - 1))


CELLS: dict[str, Callable[[int, int], Cell]] = {
    "elman_tanh": ElmanCell,
    "elman_relu": lambda i, h: ElmanCell(i, h, nonlinearity="relu"),
    "gru": GRUCell,
    "lstm": LSTMCell,
    "lstm_projected": lstm_projected,
}


TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.float64: {"rtol": 1e-10, "atol": 1e-12}}
GRADIENT_TOLERANCE = TOLERANCE | {torch.float32: {"rtol": 1e-4, "atol": 1e-5}}  # sums over steps and rows


def torch_layers(name: str, input_size: int, hidden: int, layers: int) -> nn.RNNBase:
    if name.startswith("elman"):
        return nn.RNN(input_size, hidden, layers, nonlinearity=name.removeprefix("elman_"), batch_first=True)
    if name == "gru":
        return nn.GRU(input_size, hidden, layers, batch_first=True)
    projection = hidden - 1 if name == "lstm_projected" else 0
    return nn.LSTM(input_size, hidden, layers, proj_size=projection, batch_first=True)


def copied_cells(name: str, theirs: nn.RNNBase, dtype: torch.dtype) -> list[Cell]:
    """One cell a layer with the weights of torch's module."""
    cells = []
    for layer in range(theirs.num_layers):
        names = [n for n in (*WEIGHTS, "weight_hr") if hasattr(theirs, f"{n}_l{layer}")]
        cell = CELLS[name](getattr(theirs, f"weight_ih_l{layer}").shape[1], theirs.hidden_size).to(dtype)
        for own, other in zip(cell.parameters(), (getattr(theirs, f"{n}_l{layer}") for n in names), strict=True):
            own.data.copy_(other.data)
        cells.append(cell)
    return cells


WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass
class Sizes:
    batch: int
    steps: int
    input_size: int
    hidden: int
    layers: int
    seed: int
    dtype: torch.dtype


sizes = st.builds(
    Sizes,
    batch=st.integers(1, 5),
    steps=st.integers(1, 7),
    input_size=st.integers(1, 6),
    hidden=st.integers(2, 7),
    layers=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)


def step_through(cells: list[Cell], x: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
    """The cells as layers, x (B, T, I) -> y (B, T, O): each layer one plain loop over time."""
    finals = []
    for cell, state in zip(cells, states, strict=True):
        outputs = []
        for t in range(x.shape[1]):
            y, state = cell(x[:, t], state)
            outputs.append(y)
        x = torch.stack(outputs, dim=1)
        finals.append(state)
    return x, finals


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a fixed random combination of all outputs."""
    generator = torch.Generator().manual_seed(5)
    total = sum((o * torch.randn(o.shape, generator=generator, dtype=o.dtype)).sum() for o in outputs)
    return torch.autograd.grad(total, inputs)


@pytest.mark.parametrize("name", CELLS)
@given(size=sizes)
@settings(max_examples=25, deadline=None)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_cell_equals_torch_forward_and_backward(name: str, size: Sizes) -> None:
    torch.manual_seed(size.seed)
    theirs = torch_layers(name, size.input_size, size.hidden, size.layers).to(size.dtype)
    ours = copied_cells(name, theirs, size.dtype)
    x = torch.randn(size.batch, size.steps, size.input_size, dtype=size.dtype, requires_grad=True)
    starts = [  # one tensor a part of the state, (layers, B, size), as torch takes it
        torch.randn(size.layers, size.batch, part, dtype=size.dtype, requires_grad=True)
        for part in state_sizes(ours[0])
    ]

    y, states = step_through(ours, x, [tuple(start[layer] for start in starts) for layer in range(size.layers)])
    finals = [torch.stack([state[part] for state in states]) for part in range(len(starts))]
    expected_y, expected_finals = theirs(x, tuple(starts) if len(starts) == 2 else starts[0])
    expected_finals = list(expected_finals) if len(starts) == 2 else [expected_finals]

    torch.testing.assert_close([y, *finals], [expected_y, *expected_finals], **TOLERANCE[size.dtype])
    own = gradients([y, *finals], [x, *starts, *(w for cell in ours for w in cell.parameters())])
    expected = gradients([expected_y, *expected_finals], [x, *starts, *(w for ws in theirs.all_weights for w in ws)])
    assert len(own) == len(expected)
    torch.testing.assert_close(own, expected, **GRADIENT_TOLERANCE[size.dtype])


CLIPPED = {
    "lstm_clipped": lambda i, h: LSTMCell(i, h, cell_clip=0.3),
    "lstm_projected_clipped": lambda i, h: LSTMCell(i, h, projection=2, cell_clip=0.3, projection_clip=0.05),
}


def away_from_kinks(cell: Cell, x: Tensor, state: State) -> bool:
    """Whether no quantity with a kink lies so near it that a numerical difference would cross it."""
    gates = record_gates(cell, x, state)
    if isinstance(cell, LSTMCell):
        free = LSTMCell(
            cell.input_size, cell.hidden_size, projection=cell.output_size if cell.weight_hr is not None else None
        )
        unclipped = record_gates(free.with_weights(cell.weights()), x, state)
        distances = [(unclipped.c.abs() - cell.cell_clip).abs()] if cell.cell_clip else []
        if cell.projection_clip:
            h = gates.o * torch.tanh(gates.c) @ cell.weight_hr.T
            distances.append((h.abs() - cell.projection_clip).abs())
    else:
        W_ih, W_hh, b_ih, b_hh = cell.parameters()
        distances = [(x @ W_ih.T + b_ih + state[0] @ W_hh.T + b_hh).abs()]
    return all(distance.min().item() > 1e-5 for distance in distances)


@pytest.mark.parametrize("name", [*CELLS, *CLIPPED])
def test_gradient_of_a_cell_is_its_numerical_derivative(name: str) -> None:
    torch.manual_seed(3)
    cell = (CELLS | CLIPPED)[name](3, 4).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    state = tuple(tensor.requires_grad_() for tensor in random_state(cell, 5, torch.float64))
    assert away_from_kinks(cell, x, state)
    if name in CLIPPED:  # both sides of the clip are in the test
        gates = record_gates(cell, x, state)
        for value, limit in ((gates.c, cell.cell_clip), (gates.h, cell.projection_clip)):
            held = value.abs() == limit
            assert limit is None or 0 < held.sum() < held.numel()
    parts = len(state)

    def step(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        weights = dict(zip(cell.weights(), tensors[parts:], strict=True))
        y, new = cell.with_weights(weights)(x, tensors[:parts])
        return y, *new

    assert torch.autograd.gradcheck(step, (x, *state, *cell.parameters()))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def arrays(tensors: State | list[Tensor]) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in tensors]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def some_state(cell: Cell) -> State:
    generator = torch.Generator().manual_seed(8)
    return tuple(torch.randn(2, size, dtype=torch.float64, generator=generator) for size in state_sizes(cell))


def assert_gates(gates: SimpleNamespace, expected: dict[str, np.ndarray]) -> None:
    assert vars(gates).keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(gates, name).detach().numpy(), value, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_elman_gates_are_those_of_the_equation(nonlinearity: str, x: Tensor) -> None:
    cell = ElmanCell(3, 4, nonlinearity=nonlinearity).double()  # type: ignore[arg-type]
    state = some_state(cell)
    (h,), (W_ih, W_hh, b_ih, b_hh) = arrays(state), arrays(list(cell.parameters()))
    total = x.numpy() @ W_ih.T + b_ih + h @ W_hh.T + b_hh
    assert_gates(
        record_gates(cell, x, state), {"h": np.tanh(total) if nonlinearity == "tanh" else np.maximum(total, 0)}
    )


def test_gru_gates_are_those_of_the_equation(x: Tensor) -> None:
    cell = GRUCell(3, 4).double()
    state = some_state(cell)
    (h,), (W_ih, W_hh, b_ih, b_hh) = arrays(state), arrays(list(cell.parameters()))
    from_x = {gate: x.numpy() @ W_ih[rows].T + b_ih[rows] for gate, rows in block_rows("rzn", 4)}
    from_h = {gate: h @ W_hh[rows].T + b_hh[rows] for gate, rows in block_rows("rzn", 4)}
    r = sigmoid(from_x["r"] + from_h["r"])
    z = sigmoid(from_x["z"] + from_h["z"])
    n = np.tanh(from_x["n"] + r * from_h["n"])
    assert_gates(record_gates(cell, x, state), {"r": r, "z": z, "n": n, "h": (1 - z) * n + z * h})


@pytest.mark.parametrize(
    ("projection", "cell_clip", "projection_clip"),
    [(None, None, None), (2, None, None), (None, 0.25, None), (2, 0.25, 0.1)],
)
def test_lstm_gates_are_those_of_the_equation(
    projection: int | None, cell_clip: float | None, projection_clip: float | None, x: Tensor
) -> None:
    cell = LSTMCell(3, 4, projection=projection, cell_clip=cell_clip, projection_clip=projection_clip).double()
    state = some_state(cell)
    (h, c), (W_ih, W_hh, b_ih, b_hh, *W_hr) = arrays(state), arrays(list(cell.parameters()))
    total = {
        gate: x.numpy() @ W_ih[rows].T + b_ih[rows] + h @ W_hh[rows].T + b_hh[rows]
        for gate, rows in block_rows("ifgo", 4)
    }
    i, f, g, o = sigmoid(total["i"]), sigmoid(total["f"]), np.tanh(total["g"]), sigmoid(total["o"])
    c = f * c + i * g
    if cell_clip:
        c = np.clip(c, -cell_clip, cell_clip)
    h = o * np.tanh(c)
    if projection:
        h = h @ W_hr[0].T
    if projection_clip:
        h = np.clip(h, -projection_clip, projection_clip)
    assert_gates(record_gates(cell, x, state), {"i": i, "f": f, "g": g, "o": o, "c": c, "h": h})
    y, (new_h, new_c) = cell(x, state)
    for tensor, expected in ((y, h), (new_h, h), (new_c, c)):
        np.testing.assert_allclose(tensor.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def block_rows(gates: str, hidden: int) -> list[tuple[str, slice]]:
    return [(gate, slice(k * hidden, (k + 1) * hidden)) for k, gate in enumerate(gates)]


def wild_lstm(**clips: float | None) -> LSTMCell:
    """Weights so large that memory and output would leave any small bound at once."""
    torch.manual_seed(11)
    cell = LSTMCell(3, 6, projection=4, **clips)  # type: ignore[arg-type]
    for weight in cell.parameters():
        nn.init.normal_(weight, std=3)
    nn.init.constant_(cell.bias_ih[6:12], 20)  # the forget gate stands open: memory adds up
    return cell


def run(cell: Cell, steps: int = 20) -> list[State]:
    generator = torch.Generator().manual_seed(12)
    state, states = cell.initial_state(8), []
    for _ in range(steps):
        y, state = cell(torch.randn(8, 3, generator=generator), state)
        assert y is state[0]
        states.append(state)
    return states


def test_clips_hold_memory_and_output_within_their_bounds_at_every_step() -> None:
    assert all(c.abs().max() > 0.7 and h.abs().max() > 0.5 for h, c in run(wild_lstm()))  # they would go beyond
    for h, c in run(wild_lstm(cell_clip=0.7, projection_clip=0.5)):
        assert c.abs().max() <= 0.7
        assert h.abs().max() <= 0.5
    assert (c.abs() == np.float32(0.7)).any()
    assert (h.abs() == np.float32(0.5)).any()


@pytest.mark.parametrize(("clips", "free"), [({"cell_clip": 0.7}, "h"), ({"projection_clip": 0.5}, "c")])
def test_each_clip_bounds_its_own_quantity_only(clips: dict[str, float], free: str) -> None:
    largest = {"h": max(h.abs().max().item() for h, _ in run(wild_lstm(**clips)))}
    largest["c"] = max(c.abs().max().item() for _, c in run(wild_lstm(**clips)))
    assert largest[free] > 0.7


def test_clips_that_are_never_reached_change_nothing() -> None:
    for (h, c), (free_h, free_c) in zip(
        run(wild_lstm(cell_clip=1e4, projection_clip=1e4)), run(wild_lstm()), strict=True
    ):
        assert torch.equal(h, free_h)
        assert torch.equal(c, free_c)


def test_clip_of_none_is_the_tensor_itself_and_of_a_limit_is_symmetric() -> None:
    x = torch.tensor([-3.0, -1.0, 0.5, 2.0])
    assert clip(x, None) is x
    assert clip(x, 1.0).tolist() == [-1.0, -1.0, 0.5, 1.0]


def test_projection_clip_without_a_projection_clips_nothing() -> None:
    assert LSTMCell(3, 4, projection_clip=0.1).projection_clip is None


@given(hidden=st.integers(1, 9), bias=st.floats(-3, 3), projected=st.booleans())
@settings(max_examples=20, deadline=None)
def test_forget_bias_is_the_forget_gates_and_no_other_gates(hidden: int, bias: float, projected: bool) -> None:
    cell = LSTMCell(2, hidden, forget_bias=bias, projection=2 if projected else None)
    with torch.no_grad():
        for weight in (cell.weight_ih, cell.weight_hh):
            weight.zero_()
        gates = record_gates(cell, torch.zeros(1, 2), cell.initial_state(1))
    bound = 1 / np.sqrt(hidden)
    torch.testing.assert_close(gates.f, torch.full_like(gates.f, bias).sigmoid())
    for gate in (gates.i.logit(), gates.g.atanh(), gates.o.logit()):
        assert gate.abs().max() <= 2 * bound + 1e-5  # two biases, each within ±1/sqrt(H)


@pytest.mark.parametrize("name", [*CELLS, *CLIPPED])
def test_fresh_weights_are_uniform_within_one_over_root_hidden(name: str) -> None:
    torch.manual_seed(0)
    cell = (CELLS | CLIPPED)[name](40, 64)
    for weight in cell.parameters():
        if weight.dim() == 1 and isinstance(cell, LSTMCell):
            weight = torch.cat([weight[:64], weight[128:]])  # the forget gate has its own
        assert weight.abs().max() <= 1 / 8
        assert weight.abs().max() > 0.9 / 8
        assert abs(weight.mean().item()) < 0.15 / 8 if weight.dim() == 2 else True


@pytest.mark.parametrize("name", CELLS)
def test_initial_state_is_zeros_in_the_cells_precision(name: str) -> None:
    cell = CELLS[name](3, 5).double()
    for tensor, size in zip(cell.initial_state(2), state_sizes(cell), strict=True):
        assert tensor.shape == (2, size)
        assert tensor.dtype == torch.float64
        assert not tensor.any()


@pytest.mark.parametrize("name", CELLS)
def test_weights_given_in_place_of_the_cells_own_are_the_ones_used(name: str) -> None:
    torch.manual_seed(1)
    cell, other = CELLS[name](3, 5), CELLS[name](3, 5)
    x, state = torch.randn(2, 3), random_state(cell, 2)
    torch.testing.assert_close(cell.with_weights(other.weights())(x, state), other(x, state), rtol=0, atol=0)
    assert not torch.equal(cell(x, state)[0], other(x, state)[0])


@pytest.mark.parametrize("name", TABLE)
def test_a_cell_declares_what_its_step_records(name: str) -> None:
    torch.manual_seed(1)
    cell = make_cell(name, 8)(3)
    state = cell.step(cell.project_input(torch.randn(2, 3)), cell.initial_state(2))[1]  # a state that can occur
    x, recorded = torch.randn(2, 3), []

    def record(letter: str, value: Tensor) -> Tensor:
        recorded.append(letter)
        quantity = cell.specs[letter]
        assert value.shape == (2, *quantity.shape), letter
        assert quantity.low <= value.min(), letter
        assert value.max() <= quantity.high, letter
        return value

    y, new_state = cell(x, state, record)
    assert sorted(recorded) == sorted(cell.words)
    assert y.shape == (2, cell.output_size)
    assert [tensor.shape for tensor in new_state] == [tensor.shape for tensor in cell.initial_state(2)]
    assert cell.name == name
    assert all(len(letter) == 1 for letter in cell.words)  # units are named by them: c0.27
    assert next(iter(cell.words)) == "h"
    assert cell.memory in cell.states
    assert cell.keeps is None or cell.keeps in cell.gate_names
    assert {*cell.recurrent} <= dict(cell.named_parameters()).keys()
    assert {*cell.equations()} == {*cell.words}


@pytest.mark.parametrize("name", TABLE)
def test_the_registry_has_the_options_of_the_class(name: str) -> None:
    parameters = inspect.signature(cell_class(name)).parameters.values()
    assert {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} == TABLE[name].options


@pytest.mark.parametrize("name", TABLE)
def test_every_state_can_be_changed_before_anything_reads_it(name: str) -> None:
    torch.manual_seed(1)
    cell = make_cell(name, 8)(3)
    x, state = cell.project_input(torch.randn(2, 3)), cell.initial_state(2)

    def halve(letter: str, value: Tensor) -> Tensor:
        return value / 2 if letter in ("h", cell.memory) else value

    _, plain = cell.step(x, state)
    y, changed = cell.step(x, state, record=halve)
    place = cell.states.index(cell.memory)
    torch.testing.assert_close(changed[place], plain[place] / 2)
    if "h" in cell.states:
        assert torch.equal(y, changed[cell.states.index("h")])
    if name == "lstm":
        gates = record_gates(cell, torch.zeros(2, 3), state)
        assert gates.o.shape == (2, 8)


@pytest.mark.parametrize("name", BASIC_CELLS)
def test_matrices_by_block_are_the_rows_with_which_a_block_reads(name: str) -> None:
    cell = make_cell(name, 5)(3)
    assert isinstance(cell, StackedCell)
    assert torch.equal(torch.cat([*cell.input_matrices().values()]), cell.weight_ih)
    assert torch.equal(torch.cat([*cell.recurrent_matrices().values()]), cell.weight_hh)
    assert list(cell.recurrent_matrices()) == list(cell.blocks)


def test_a_bare_cell_computes_with_the_weights_that_it_is_given_and_draws_nothing() -> None:
    cell, before = LSTMCell(3, 5, projection=2, cell_clip=0.1), torch.get_rng_state()
    bare = LSTMCell.bare(3, 5, projection=2, cell_clip=0.1)
    assert torch.equal(torch.get_rng_state(), before)
    x, state = torch.randn(2, 3), cell.initial_state(2)
    torch.testing.assert_close(bare.with_weights(cell.weights())(x, state), cell(x, state), rtol=0, atol=0)
