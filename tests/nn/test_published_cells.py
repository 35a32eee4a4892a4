"""Multiplicative LSTM, rotational unit of memory and Mogrifier LSTM: equations, gradients, stacks, initialisation."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from relmo.nn.recurrence import Cell
from relmo.nn.recurrence.mogrifier import MogrifierLSTMCell
from relmo.nn.recurrence.multiplicative import MultiplicativeLSTMCell
from relmo.nn.recurrence.rum import RUMCell, normalise
from relmo.nn.recurrence.stack import Recurrent, has_scan
from support.cells import random_state, record_gates
from support.equations import assert_equations_hold, random_step

INPUT, HIDDEN = 4, 6
VARIANTS: dict[str, Callable[[int], Cell]] = {
    "multiplicative": partial(MultiplicativeLSTMCell, hidden_size=HIDDEN),
    "multiplicative, paper": partial(MultiplicativeLSTMCell, hidden_size=HIDDEN, variant="paper"),
    "rum": partial(RUMCell, hidden_size=HIDDEN),
    "rum, rotations": partial(RUMCell, hidden_size=HIDDEN, rotations=1),
    "rum, eta": partial(RUMCell, hidden_size=HIDDEN, eta=0.7),
    "rum, rotations, eta": partial(RUMCell, hidden_size=HIDDEN, rotations=1, eta=1.3),
    "mogrifier": partial(MogrifierLSTMCell, hidden_size=HIDDEN),
    "mogrifier, rank": partial(MogrifierLSTMCell, hidden_size=HIDDEN, rank=2, rounds=4),
    "mogrifier, one round": partial(MogrifierLSTMCell, hidden_size=HIDDEN, rounds=1),
    "mogrifier, no rounds": partial(MogrifierLSTMCell, hidden_size=HIDDEN, rounds=0),
    "mogrifier, all rounds": partial(MogrifierLSTMCell, hidden_size=HIDDEN, rounds=10),
}


def make(name: str, seed: int = 0) -> Cell:
    """Return a cell in float64, all of whose weights differ from their initial values."""
    torch.manual_seed(seed)
    return disturb(VARIANTS[name](INPUT).double())


def disturb(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return module


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def rotation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the rotation from a to b as published, from the axes of their plane and the angle between them."""
    u = a / np.linalg.norm(a)
    v = b - (u @ b) * u
    v /= np.linalg.norm(v)
    cosine = u @ b / np.linalg.norm(b)
    sine = np.sqrt(1 - cosine**2)
    axes = np.stack([u, v], axis=1)  # (H, 2)
    turn = axes @ np.array([[cosine, -sine], [sine, cosine]]) @ axes.T
    return np.eye(len(a)) - np.outer(u, u) - np.outer(v, v) + turn


def arrays(cell: Cell) -> dict[str, np.ndarray]:
    return {name: weight.detach().numpy() for name, weight in cell.named_weights().items()}


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("multiplicative")])
def test_multiplicative_gates_are_those_of_the_equation(name: str) -> None:
    cell = make(name)
    x, state = torch.randn(2, INPUT).double(), random_state(cell, 2, torch.float64)
    W, (h, c), inputs = arrays(cell), (tensor.numpy() for tensor in state), x.numpy()
    m = (inputs @ W["W_im"].T) * (h @ W["W_hm"].T)
    z = {k: inputs @ W[f"W_i{k}"].T + m @ W[f"W_m{k}"].T + W[f"b_{k}"] for k in "ifog"}
    i, f, o = (sigmoid(z[k]) for k in "ifo")
    g = z["g"] if "paper" in name else np.tanh(z["g"])
    c = f * c + i * g
    h = np.tanh(c * o) if "paper" in name else o * np.tanh(c)
    for letter, value in {"m": m, "i": i, "f": f, "o": o, "g": g, "c": c, "h": h}.items():
        assert_allclose(getattr(record_gates(cell, x, state), letter).detach(), value, rtol=1e-12, err_msg=letter)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("rum")])
def test_rum_rotates_the_output_as_published(name: str) -> None:
    cell = make(name)
    x, state = torch.randn(2, INPUT).double(), random_state(cell, 2, torch.float64)
    steps, W = record_gates(cell, x, state), arrays(cell)
    for row in range(2):
        h, *memory = (tensor[row].numpy() for tensor in state)
        inputs = x[row].numpy()
        e = W["W_ie"] @ inputs + W["b_e"]
        t = W["W_it"] @ inputs + W["W_ht"] @ h + W["b_t"]
        u = sigmoid(W["W_iu"] @ inputs + W["W_hu"] @ h + W["b_u"])
        R = rotation(e, t)
        if "rotations" in name:
            R = memory[0] @ R
            assert_allclose(steps.R[row].detach(), R, atol=1e-12)
        g = np.maximum(e + R @ h, 0)
        h = u * h + (1 - u) * g
        if cell.eta is not None:
            h = cell.eta * h / np.linalg.norm(h)
        for letter, value in {"e": e, "t": t, "u": u, "g": g, "h": h}.items():
            assert_allclose(getattr(steps, letter)[row].detach(), value, atol=1e-12, err_msg=letter)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("mogrifier")])
def test_mogrifier_rounds_change_input_and_output_in_turn(name: str) -> None:
    cell = make(name)
    x, state = torch.randn(2, INPUT).double(), random_state(cell, 2, torch.float64)
    W, (h, c), inputs = arrays(cell), (tensor.numpy() for tensor in state), x.numpy()
    for k in range(cell.rounds):
        letter = "pqrstuvwyz"[k]
        if k % 2 == 0:
            inputs = 2 * sigmoid(h @ W[f"Q_{letter}"].T + W[f"b_{letter}"]) * inputs
        else:
            h = 2 * sigmoid(inputs @ W[f"R_{letter}"].T + W[f"b_{letter}"]) * h
    z = {k: inputs @ W[f"W_i{k}"].T + W[f"b_i{k}"] + h @ W[f"W_h{k}"].T + W[f"b_h{k}"] for k in "ifgo"}
    f, g, o = sigmoid(z["f"]), np.tanh(z["g"]), sigmoid(z["o"])
    i = np.minimum(1 - f, sigmoid(z["i"]))
    c = f * c + i * g
    for letter, value in {"i": i, "f": f, "g": g, "o": o, "c": c, "h": o * np.tanh(c)}.items():
        assert_allclose(getattr(record_gates(cell, x, state), letter).detach(), value, rtol=1e-12, err_msg=letter)


def test_a_factorised_mogrifier_has_matrices_of_that_rank_and_fewer_weights() -> None:
    full, low = (MogrifierLSTMCell(40, 50, rank=rank) for rank in (None, 3))
    assert np.linalg.matrix_rank(arrays(low)["Q_p"]) == np.linalg.matrix_rank(arrays(low)["R_q"]) == 3
    assert sum(p.numel() for p in low.parameters()) < sum(p.numel() for p in full.parameters())


@pytest.mark.parametrize("name", VARIANTS)
def test_equations_hold_and_quantities_are_in_range(name: str) -> None:
    step = random_step(VARIANTS[name](INPUT))
    assert {*step.cell.equations()} == {*step.after}
    assert_equations_hold(step)
    for letter, value in step.after.items():
        quantity = step.cell.specs[letter]
        assert value.min() >= quantity.low - 1e-12, letter
        assert value.max() <= quantity.high + 1e-12, letter


@pytest.mark.parametrize("name", VARIANTS)
def test_gradient_is_the_numerical_derivative(name: str) -> None:
    cell = make(name, seed=3)
    x = torch.randn(2, INPUT, dtype=torch.float64, requires_grad=True)
    state = tuple(tensor.requires_grad_() for tensor in random_state(cell, 2, torch.float64))

    def step(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        weights = dict(zip(cell.weights(), tensors[len(state) :], strict=True))
        return cell.with_weights(weights)(x, tensors[: len(state)])[1]

    assert torch.autograd.gradcheck(step, (x, *state, *cell.parameters()))


@pytest.mark.parametrize("rotations", [0, 1])
@pytest.mark.parametrize("case", ["parallel", "opposite", "zero input", "zero target", "both zero"])
def test_rotation_of_a_degenerate_pair_is_orthogonal_with_finite_gradients(rotations: int, case: str) -> None:
    torch.manual_seed(0)
    cell = RUMCell(3, 5, rotations=rotations)
    e, t = torch.randn(1, 5), torch.randn(1, 5)
    t = {"parallel": 2 * e, "opposite": -2 * e, "zero target": 0 * t, "both zero": 0 * t}.get(case, t)
    e = 0 * e if case in ("zero input", "both zero") else e
    torch.nn.init.zeros_(cell.weight_hh)
    x = torch.cat([e, t, torch.zeros(1, 5)], dim=1).requires_grad_()
    state = (torch.rand(1, 5, requires_grad=True), *cell.initial_state(1)[1:])
    quantities = {}
    y, _ = cell.step(x, state, record=lambda name, value: quantities.setdefault(name, value))
    torch.testing.assert_close(quantities["r"].norm(), state[0].norm())
    if case in ("parallel", "both zero"):
        torch.testing.assert_close(quantities["r"], state[0])
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.sum(), (x, state[0])))


def test_products_of_rotations_start_at_the_identity_and_stay_rotations() -> None:
    torch.manual_seed(0)
    cell = RUMCell(INPUT, HIDDEN, rotations=1)
    state = cell.initial_state(2)
    assert torch.equal(state[1], torch.eye(HIDDEN).expand(2, HIDDEN, HIDDEN))
    assert cell.double().initial_state(1)[1].dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(200):
            _, state = cell.float()(torch.randn(2, INPUT), state)
    torch.testing.assert_close(state[1] @ state[1].mT, torch.eye(HIDDEN).expand(2, -1, -1), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.linalg.det(state[1]), torch.ones(2), atol=1e-4, rtol=0)


def test_normalising_a_zero_vector_gives_zero_and_a_finite_gradient() -> None:
    x = torch.zeros(1, 3, requires_grad=True)
    y = normalise(x)
    assert not y.any()
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def make_stack(name: str, **options: bool) -> Recurrent:
    torch.manual_seed(1)
    return disturb(Recurrent(VARIANTS[name], input_size=INPUT, layers=2, bidirectional=True, **options).double())


@pytest.mark.parametrize("name", [name for name in VARIANTS if has_scan(VARIANTS[name](INPUT))])
@pytest.mark.parametrize("lengths", [None, [5, 7, 0]])
def test_scan_equals_steps_in_values_and_gradients_from_a_carried_state(name: str, lengths: list[int] | None) -> None:
    stack, ends = make_stack(name), None if lengths is None else torch.tensor(lengths)
    x = torch.randn(3, 7, INPUT, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn_like(tensor).requires_grad_() for tensor in stack.initial_state(3))
    runs = []
    for stack.fast in (True, False):
        run = stack(x, state, ends, every_layer=True)
        outputs = [*run.layers, *run.state]
        generator = torch.Generator().manual_seed(5)
        weights = (torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in outputs)
        total = sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))
        runs.append([*outputs, *torch.autograd.grad(total, [x, *state, *stack.parameters()])])
    torch.testing.assert_close(*runs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fast", [True, False])
def test_padding_changes_nothing_in_either_direction(name: str, fast: bool) -> None:
    stack, lengths = make_stack(name, fast=fast), [5, 7, 1]
    x = torch.randn(3, 7, INPUT).double()
    state = tuple(torch.randn_like(tensor) for tensor in stack.initial_state(3))
    together = stack(x, state, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone = stack(x[row : row + 1, :length], tuple(tensor[row : row + 1] for tensor in state))
        torch.testing.assert_close(together.output[row, :length], alone.output[0])
        assert not together.output[row, length:].any()
        for final, expected in zip(together.state, alone.state, strict=True):
            torch.testing.assert_close(final[row], expected[0])


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fast", [True, False])
def test_pieces_give_the_whole(name: str, fast: bool) -> None:
    torch.manual_seed(1)
    stack = disturb(Recurrent(VARIANTS[name], input_size=INPUT, layers=2, fast=fast).double())
    x = torch.randn(2, 7, INPUT).double()
    whole, first = stack(x), stack(x[:, :3])
    second = stack(x[:, 3:], first.state)
    torch.testing.assert_close(torch.cat([first.output, second.output], dim=1), whole.output)
    torch.testing.assert_close(second.state, whole.state)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fast", [True, False])
def test_bfloat16_autocast_is_near_float32(name: str, fast: bool) -> None:
    stack = make_stack(name, fast=fast).float()
    x, lengths = torch.randn(3, 5, INPUT), torch.tensor([5, 1, 3])
    exact = stack(x, lengths=lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = stack(x, lengths=lengths)
        stack(x, run.state, lengths)  # the state can be carried on
    torch.testing.assert_close(run.output.float(), exact.output, rtol=0.1, atol=0.05)
    run.output.float().square().sum().backward()
    for weight in stack.parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fast", [True, False])
def test_stacked_models_run_under_vmap(name: str, fast: bool) -> None:
    stacks = [disturb(Recurrent(VARIANTS[name], input_size=INPUT, layers=2, fast=fast).double()) for _ in range(3)]
    weights, buffers = stack_module_state(stacks)
    x, lengths = torch.randn(2, 5, INPUT).double(), torch.tensor([5, 2])

    def run(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(stacks[0], (weights, buffers), (x, None, lengths)).output

    outputs = vmap(run)(weights, buffers)
    for output, stack in zip(outputs, stacks, strict=True):
        torch.testing.assert_close(output, stack(x, None, lengths).output)


def is_orthogonal(matrix: Tensor) -> bool:
    rows, columns = matrix.shape
    product = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
    return torch.allclose(product, torch.eye(len(product)), atol=1e-5)


@pytest.mark.parametrize("for_a_task", [False, True])
def test_initialisation_is_the_published_one(for_a_task: bool) -> None:
    torch.manual_seed(0)
    multiplicative = MultiplicativeLSTMCell(20, 30, forget_bias=2.0)
    rum = RUMCell(20, 30, forget_bias=2.0)
    mogrifier = MogrifierLSTMCell(300, 200, forget_bias=2.0, rank=20)
    for cell in (multiplicative, rum, mogrifier):
        if for_a_task:
            cell.initialise()
    weights = {cell.name: cell.named_weights() for cell in (multiplicative, rum, mogrifier)}
    orthogonal = {"multiplicative": ["W_hm", "W_mi", "W_mg"], "rum": ["W_ie", "W_it", "W_iu", "W_ht", "W_hu"]}
    for name, matrices in orthogonal.items():
        assert all(is_orthogonal(weights[name][matrix]) for matrix in matrices)
    biases = {"multiplicative": {"b_f": 2.0}, "rum": {"b_u": 2.0, "b_t": 1.0}, "mogrifier": {"b_if": 2.0}}
    for name, expected in biases.items():
        for bias in (key for key in weights[name] if key.startswith("b_")):
            assert (weights[name][bias] == expected.get(bias, 0.0)).all(), bias
    for weight in (mogrifier.weight_ih, mogrifier.weight_hh, mogrifier.weight_q, mogrifier.expand_q):
        assert weight.std().item() == pytest.approx(weight.shape[-1] ** -0.5, rel=0.05)


@pytest.mark.parametrize("name", VARIANTS)
def test_forget_bias_can_be_raised(name: str) -> None:
    cell = make(name)
    before = {key: bias.clone() for key, bias in cell.named_weights().items() if key.startswith("b_")}
    cell.raise_forget_bias(1.5)
    raised = {key for key, bias in before.items() if not torch.equal(cell.named_weights()[key], bias)}
    assert raised == {"multiplicative": {"b_f"}, "rum": {"b_u"}, "mogrifier": {"b_if"}}[cell.name]


@pytest.mark.parametrize(
    ("make_cell", "token"),
    [
        (lambda: MultiplicativeLSTMCell(2, 3, variant="other"), "variant"),  # type: ignore[arg-type]
        (lambda: RUMCell(2, 3, rotations=2), "rotations"),
        (lambda: RUMCell(2, 3, eta=0.0), "eta"),
        (lambda: MogrifierLSTMCell(2, 3, rounds=11), "rounds"),
        (lambda: MogrifierLSTMCell(2, 3, rank=0), "rank"),
    ],
)
def test_unknown_options_are_errors(make_cell: Callable[[], Cell], token: str) -> None:
    with pytest.raises(ValueError, match=token):
        make_cell()
