"""The linear scan and the cells that use it equal the loop over time, in value and gradient."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad, vmap

from relmo.nn.recurrence import Cell, State, make_cell
from relmo.nn.recurrence import scan as scan_module
from relmo.nn.recurrence.rglru import RGLRUCell
from relmo.nn.recurrence.scan import BLOCK, linear_scan
from relmo.nn.recurrence.sru import SRUCell
from relmo.nn.recurrence.stack import Recurrent
from support.cells import random_state

CELLS: dict[str, Callable[[int], Cell]] = {
    "sru": make_cell("sru", 4),
    "sru with a projected input": make_cell("sru", 5),
    "mingru": make_cell("mingru", 4),
    "minlstm": make_cell("minlstm", 4),
    "rglru": make_cell("rglru", 4),
    "rglru with heads": make_cell("rglru", 4, heads=2),
}
SIZE = 4
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def loop(a: Tensor, b: Tensor, h: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the recurrence as it is defined."""
    states = []
    for t in range(a.shape[1]):
        new = a[:, t] * h + b[:, t]
        h = new if mask is None else torch.where(mask[:, t].view(-1, *[1] * (h.dim() - 1)), new, h)
        states.append(h)
    return torch.stack(states, dim=1)


def random_leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Return those of a fixed random combination of all outputs."""
    generator = torch.Generator().manual_seed(5)
    total = sum((o * torch.randn(o.shape, generator=generator).to(o)).sum() for o in outputs)
    return torch.autograd.grad(total, inputs, retain_graph=True, materialize_grads=True)


@pytest.fixture(params=["in blocks", "step by step"], autouse=True)
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_PARALLEL", 1 << 30 if request.param == "in blocks" else -1)


@given(
    batch=st.integers(1, 3),
    steps=st.one_of(st.integers(1, 2 * BLOCK + 2), st.sampled_from([BLOCK**2, BLOCK**2 + 1, 200])),
    shape=st.sampled_from([(), (3,), (2, 3)]),
    is_masked=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_the_scan_equals_the_loop_in_value_and_gradient(
    batch: int, steps: int, shape: tuple[int, ...], is_masked: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    a, b, h = random_leaves((batch, steps, *shape), (batch, steps, *shape), (batch, *shape))
    decay = 1.2 * torch.tanh(a) * (torch.rand(a.shape) > 0.1)  # of both signs, some of them 0
    mask = torch.rand(batch, steps) > 0.3 if is_masked else None
    hs, expected = linear_scan(decay, b, h, mask), loop(decay, b, h, mask)
    torch.testing.assert_close(hs, expected, **EXACT)
    torch.testing.assert_close(gradients([hs], [a, b, h]), gradients([expected], [a, b, h]), **EXACT)


def test_the_gradient_of_the_scan_is_its_numerical_derivative() -> None:
    torch.manual_seed(0)
    mask = torch.rand(2, BLOCK + 3) > 0.3
    for arguments in ((), (mask,)):
        leaves = random_leaves((2, BLOCK + 3, 2), (2, BLOCK + 3, 2), (2, 2))
        assert torch.autograd.gradcheck(lambda a, b, h: linear_scan(a, b, h, *arguments), leaves)  # noqa: B023


def test_a_and_b_broadcast() -> None:
    torch.manual_seed(0)
    a, b, h = random_leaves((2, 40, 3, 1), (2, 40, 3, 5), (2, 3, 5))
    hs, expected = linear_scan(a, b, h), loop(a, b, h)
    torch.testing.assert_close(hs, expected, **EXACT)
    torch.testing.assert_close(gradients([hs], [a, b, h]), gradients([expected], [a, b, h]), **EXACT)


def test_later_steps_change_nothing() -> None:
    torch.manual_seed(0)
    a, b, h = torch.rand(2, 700, 8), torch.randn(2, 700, 8), torch.randn(2, 8)
    whole = linear_scan(a, b, h)
    for steps in (1, BLOCK, BLOCK + 1, 100, 300):
        assert torch.equal(linear_scan(a[:, :steps], b[:, :steps], h), whole[:, :steps])


def test_the_scan_computes_in_float32_at_least() -> None:
    torch.manual_seed(0)
    a, b, h = torch.full((2, 500, 4), 0.996).bfloat16(), torch.randn(2, 500, 4).bfloat16(), torch.randn(2, 4)
    hs = linear_scan(a, b, h)
    assert hs.dtype == torch.float32
    torch.testing.assert_close(hs, loop(a.double(), b.double(), h.double()).float(), rtol=1e-4, atol=1e-4)


def test_extreme_decays_stay_finite() -> None:
    for decay in (0.0, -0.0, 1e-38, -1.0, 1.0, 50.0):
        a, b = torch.full((1, 2 * BLOCK, 1), decay), torch.full((1, 2 * BLOCK, 1), 1e-20)
        assert linear_scan(a, b * 0, torch.zeros(1, 1)).isfinite().all()
        if abs(decay) <= 1:
            torch.testing.assert_close(linear_scan(a, b, torch.ones(1, 1)), loop(a, b, torch.ones(1, 1)))


def test_vmap_over_seeds_equals_one_scan_each() -> None:
    torch.manual_seed(0)
    a, b, h = torch.rand(3, 2, 40, 4), torch.randn(3, 2, 40, 4), torch.randn(3, 2, 4)

    def loss(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        return linear_scan(a, b, h).square().sum()

    compute = grad(loss, argnums=(0, 1, 2))
    together = vmap(compute)(a, b, h)
    for seed, expected in enumerate(zip(*(compute(*row) for row in zip(a, b, h, strict=True)), strict=True)):
        torch.testing.assert_close(together[seed], torch.stack(expected))
    torch.testing.assert_close(
        vmap(compute, in_dims=(None, 0, None))(a[0], b, h[0])[1][2], compute(a[0], b[2], h[0])[1]
    )


def run_steps(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Step a cell through its input as it is defined; outputs are 0 where the mask is false."""
    outputs = []
    for t in range(x.shape[1]):
        y, after = cell(x[:, t], state)
        if mask is not None:
            keep = mask[:, t].unsqueeze(1)
            y = torch.where(keep, y, 0.0)
            after = tuple(torch.where(keep, *pair) for pair in zip(after, state, strict=True))
        outputs.append(y)
        state = after
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_scan_of_a_cell_equals_its_steps(name: str, is_masked: bool, is_first: bool) -> None:
    torch.manual_seed(3)
    cell = CELLS[name](SIZE).double()
    x = torch.randn(3, 50, SIZE, dtype=torch.float64).requires_grad_()
    start = cell.initial_state(3) if is_first else random_state(cell, 3, torch.float64)
    start = tuple(tensor.requires_grad_() for tensor in start)
    mask = None
    if is_masked:
        mask = torch.rand(3, 50) > 0.3
        mask[0, :20], mask[1] = False, False  # one row begins later, and one reads nothing
    y, final = cell.scan(cell.project_input(x), start, mask)
    y = y if mask is None else torch.where(mask.unsqueeze(2), y, 0.0)
    expected_y, expected = run_steps(cell, x, start, mask)
    leaves = [x, *start, *cell.parameters()]
    torch.testing.assert_close([y, *final], [expected_y, *expected], **EXACT)
    own, definition = gradients([y, *final], leaves), gradients([expected_y, *expected], leaves)
    torch.testing.assert_close(own, definition, **EXACT)


@pytest.mark.parametrize("name", CELLS)
def test_a_text_in_pieces_is_the_whole_text(name: str) -> None:
    torch.manual_seed(3)
    cell = CELLS[name](SIZE).double()
    x, start = cell.project_input(torch.randn(2, 50, SIZE, dtype=torch.float64)), cell.initial_state(2)
    whole, final = cell.scan(x, start)
    first, state = cell.scan(x[:, :20], start)
    second, state = cell.scan(x[:, 20:], state)
    torch.testing.assert_close([torch.cat([first, second], dim=1), *state], [whole, *final], **EXACT)


@pytest.mark.parametrize("name", CELLS)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4), seed=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_stacks_of_both_directions_equal_the_written_out_ones(name: str, lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    stack = Recurrent(CELLS[name], input_size=SIZE, layers=2, bidirectional=True).double()
    x = torch.randn(len(lengths), 20, SIZE, dtype=torch.float64)
    for ends in (None, torch.tensor(lengths)):
        stack.fast = True
        run = stack(x, lengths=ends, every_layer=True)
        stack.fast = False
        expected = stack(x, lengths=ends, every_layer=True)
        torch.testing.assert_close(run, expected, **EXACT)
        weights = list(stack.parameters())
        own, definition = (gradients([output.output, *output.state], weights) for output in (run, expected))
        torch.testing.assert_close(own, definition, **EXACT)


@pytest.mark.parametrize("name", CELLS)
def test_bfloat16_autocast_is_near_float32(name: str) -> None:
    torch.manual_seed(0)
    stack = Recurrent(CELLS[name], input_size=SIZE, layers=2)
    x = torch.randn(3, 40, SIZE)
    exact = stack(x)
    for fast in (True, False):
        stack.fast = fast
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run = stack(x)
            stack(x, run.state)
        assert all(tensor.dtype == torch.float32 for tensor in run.state)
        torch.testing.assert_close(run.output.float(), exact.output, rtol=0.05, atol=0.05)
        run.output.float().square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())


@pytest.mark.parametrize("name", CELLS)
def test_vmap_over_stacked_weights_trains_each_seed_as_by_itself(name: str) -> None:
    torch.manual_seed(0)
    stacks = [Recurrent(CELLS[name], input_size=SIZE, layers=2) for _ in range(3)]
    weights = {
        key: torch.stack([dict(s.named_parameters())[key].detach() for s in stacks]) for key in stacks[0].state_dict()
    }
    x = torch.randn(2, 20, SIZE)

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(stacks[0], weights, (x,)).output.square().sum()

    together = vmap(grad(loss))(weights)
    for seed, stack in enumerate(stacks):
        stack(x).output.square().sum().backward()
        for key, parameter in stack.named_parameters():
            torch.testing.assert_close(together[key][seed], parameter.grad, rtol=1e-4, atol=1e-5)


def test_the_first_step_of_rglru_has_the_factor_one() -> None:
    cell = RGLRUCell(3, 4).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    projected = cell.project_input(x)
    u, _, i = projected.chunk(3, dim=1)
    y, state = cell.step(projected, cell.initial_state(2))
    torch.testing.assert_close(y, torch.sigmoid(i) * u)
    assert (state[1] == 1).all()
    later, _ = cell.step(projected, (torch.zeros_like(y), state[1]))
    assert (later.abs() < y.abs()).all()


def test_rglru_has_finite_gradients_where_it_forgets_nothing() -> None:
    cell = RGLRUCell(3, 4)
    with torch.no_grad():
        cell.bias[0] = -1e4  # r = 0, so a = 1 and the slope of the root is infinite
    x = torch.randn(2, 5, 3)
    for run in (cell.scan, partial(run_projected, cell)):
        y, _ = run(cell.project_input(x), cell.initial_state(2))
        assert torch.autograd.grad(y.sum(), cell.decay)[0].isfinite().all()


def run_projected(cell: Cell, x: Tensor, state: State) -> tuple[Tensor, State]:
    for x_t in x.unbind(1):
        y, state = cell.step(x_t, state)
    return y, state


def test_initial_weights_are_as_published() -> None:
    torch.manual_seed(0)
    cell = make_cell("rglru", 1000, heads=10)(100)
    decay = torch.exp(-torch.nn.functional.softplus(cell.decay))
    assert 0.9 <= decay.min() < 0.905
    assert 0.994 < decay.max() <= 0.9991
    assert abs(decay.square().mean() - (0.81 + 0.998) / 2) < 0.005
    assert not cell.bias.any()
    assert cell.weight_ih.std().item() == pytest.approx(0.1, rel=0.02)
    assert cell.weight_gates.shape == (2, 10, 100, 100)
    assert cell.weight_gates.std().item() == pytest.approx(0.1, rel=0.02)
    for name in ("mingru", "minlstm"):
        weight = make_cell(name, 64)(100).weight_ih
        assert 0.099 < weight.abs().max() <= 0.1
    assert (make_cell("minlstm", 8, forget_bias=2.5)(3).bias == 2.5).all()
    sru = make_cell("sru", 200, highway_bias=-3.0)(100)
    n, f, r, p = sru.weight_ih.chunk(4)
    for matrix, variance in ((n, 0.01), (f, 0.005), (r, 0.005), (p, 0.01), (sru.weight_c, 0.5)):
        assert matrix.var().item() == pytest.approx(variance, rel=0.15)
        assert matrix.abs().max() <= math.sqrt(3 * variance) + 1e-6
    assert not sru.bias[:200].any()
    assert (sru.bias[200:] == -3).all()


def test_sru_projects_its_input_only_if_sizes_differ() -> None:
    assert len(SRUCell(4, 4).weight_ih) == 12
    assert len(SRUCell(3, 4).weight_ih) == 16


def test_heads_must_divide_the_hidden_size() -> None:
    with pytest.raises(ValueError, match="heads"):
        RGLRUCell(3, 4, heads=3)
