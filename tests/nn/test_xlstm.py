"""The cells of xLSTM: all steps at once equal single steps, from any state and with padding; extreme gates stay finite;
weights start as published; the equations equal the paper's form without a stabiliser."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from relmo.nn.recurrence import Cell, State, make_cell, mlstm
from relmo.nn.recurrence.stack import Recurrent, unroll, unroll_scan
from support.cells import record_gates

NAMES = ("slstm", "mlstm")
INPUT, HIDDEN, HEADS = 3, 6, 2


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlstm, "CHUNK_STEPS", 8)


def create(name: str, scale: float = 0.5, dtype: torch.dtype = torch.float64) -> Cell:
    """Create a cell all of whose weights differ from their initial values."""
    torch.manual_seed(1)
    cell = make_cell(name, HIDDEN, heads=HEADS)(INPUT).to(dtype)
    with torch.no_grad():
        for weight in cell.parameters():
            weight += scale * torch.randn_like(weight)
    return cell


def carried_state(cell: Cell, batch: int) -> State:
    """Return the state after some steps, as leaves of the graph."""
    x = torch.randn(batch, 4, INPUT, dtype=next(cell.parameters()).dtype)
    with torch.no_grad():
        _, state = unroll(cell, x, cell.initial_state(batch), None)
    return tuple(tensor.requires_grad_() for tensor in state)


def gradients(y: Tensor, state: State, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    outputs = [y, *state]
    total = sum((o * torch.randn(o.shape, generator=generator, dtype=o.dtype)).sum() for o in outputs)
    return torch.autograd.grad(total, inputs, materialize_grads=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_carried", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("steps", "lengths"), [(1, None), (20, None), (20, [20, 3, 0, 9, 8, 1])])
def test_all_steps_at_once_equal_single_steps(
    name: str, is_carried: bool, reverse: bool, steps: int, lengths: list[int] | None
) -> None:
    cell, batch = create(name), HIDDEN  # as many rows as units, so that a mask of the wrong dimension would fit
    x = torch.randn(batch, steps, INPUT, dtype=torch.float64, requires_grad=True)
    state = carried_state(cell, batch) if is_carried else cell.initial_state(batch)
    ends = None if lengths is None else torch.tensor(lengths)
    inputs = [x, *cell.parameters(), *(state if is_carried else ())]
    runs = [run(cell, x, state, ends, reverse=reverse) for run in (unroll_scan, unroll)]
    torch.testing.assert_close(*runs, rtol=1e-9, atol=1e-9)
    own, expected = (gradients(y, final, inputs) for y, final in runs)
    torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)
    assert all(gradient.isfinite().all() for gradient in own)
    if ends is not None:
        for final, start in zip(runs[0][1], state, strict=True):
            assert torch.equal(final[2], start[2])  # a text without steps keeps its state


@pytest.mark.parametrize("name", NAMES)
def test_pieces_equal_the_whole_and_other_rows_change_nothing(name: str) -> None:
    cell = create(name)
    x, start = torch.randn(3, 50, INPUT, dtype=torch.float64), cell.initial_state(3)
    whole, final = unroll_scan(cell, x, start, None)
    first, between = unroll_scan(cell, x[:, :20], start, None)
    second, end = unroll_scan(cell, x[:, 20:], between, None)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(end, final, rtol=1e-9, atol=1e-9)
    x[1:] = torch.randn(2, 50, INPUT)
    padded, _ = unroll_scan(cell, x, start, torch.tensor([50, 3, 0]))
    torch.testing.assert_close(padded[0], whole[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_stacks_of_both_directions_equal_their_steps(name: str) -> None:
    torch.manual_seed(0)
    make = partial(make_cell(name, HIDDEN, heads=HEADS))
    fast = Recurrent(make, input_size=INPUT, layers=2, bidirectional=True).double()
    plain = Recurrent(make, input_size=INPUT, layers=2, bidirectional=True, fast=False).double()
    plain.load_state_dict(fast.state_dict())
    x = torch.randn(HIDDEN, 11, INPUT, dtype=torch.float64)
    lengths = torch.tensor([11, 4, 0, 1, 7, 11])
    runs = [network(x, lengths=lengths) for network in (fast, plain)]
    torch.testing.assert_close(*runs, rtol=1e-9, atol=1e-9)
    assert not runs[0].output[1, 4:].any()


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_the_numerical_derivative(name: str) -> None:
    cell = create(name)
    state = carried_state(cell, 2)
    x = torch.randn(2, 10, INPUT, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 10, [True, False] * 5])

    def scan(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        weights = dict(zip(cell.weights(), tensors[len(state) :], strict=True))
        copy = cell.with_weights(weights)
        y, final = copy.scan(copy.project_input(x), tensors[: len(state)], mask)
        return y.masked_fill(~mask.unsqueeze(2), 0), *final

    assert torch.autograd.gradcheck(scan, (x, *state, *cell.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_stacked_weights_under_vmap_equal_each_network(name: str) -> None:
    networks = [Recurrent(make_cell(name, HIDDEN, heads=HEADS), input_size=INPUT).double() for _ in range(3)]
    weights = {
        key: torch.stack([dict(n.named_parameters())[key].detach() for n in networks])
        for key in dict(networks[0].named_parameters())
    }
    x, lengths = torch.randn(3, 4, 10, INPUT, dtype=torch.float64), torch.tensor([10, 3, 0, 8])

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(networks[0], weights, (x, None, lengths)).output.square().sum()

    together = vmap(grad(loss))(weights, x)
    for i in range(3):
        alone = grad(loss)({key: weight[i] for key, weight in weights.items()}, x[i])
        torch.testing.assert_close({key: g[i] for key, g in together.items()}, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("lengths", [None, [12, 1, 5]])
def test_bfloat16_autocast_is_near_float32(name: str, fast: bool, lengths: list[int] | None) -> None:
    torch.manual_seed(0)
    network = Recurrent(make_cell(name, 16), input_size=INPUT, layers=2, fast=fast)
    x, ends = torch.randn(3, 12, INPUT), None if lengths is None else torch.tensor(lengths)
    exact = network(x, lengths=ends)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = network(x, lengths=ends)
        network(x, run.state, ends)
    assert all(tensor.dtype == torch.float32 for tensor in run.state)
    assert 0 < (run.output.float() - exact.output).abs().mean() < 0.01  # the norm per head magnifies single errors
    run.output.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fast", [True, False])
def test_extreme_gates_stay_finite_in_float32(name: str, fast: bool) -> None:
    cell = create(name, scale=0.1, dtype=torch.float32)
    run = cell.scan if fast else lambda x, state: unroll(cell.with_weights(cell.weights()), x, state, None)
    generator = torch.Generator().manual_seed(2)
    size = cell.project_input(torch.zeros(1, INPUT)).shape[-1]
    signs = torch.randint(0, 2, (2, 40, size), generator=generator).float() * 2 - 1
    runs = (50 * signs, torch.full_like(signs, 50.0), torch.full_like(signs, -50.0), torch.full_like(signs, -100.0))
    for projected in runs:
        if not fast:
            cell.project_input = lambda x: x  # type: ignore[method-assign]
        projected.requires_grad_()
        y, state = run(projected, cell.initial_state(2))
        (gradient,) = torch.autograd.grad(y.sum(), projected)
        assert all(tensor.isfinite().all() for tensor in (y, gradient, *state))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [0, 4, 2.5])
def test_a_hidden_size_that_heads_do_not_divide_is_an_error(name: str, heads: float) -> None:
    with pytest.raises(ValueError, match=r"heads do not divide 10 .* 1, 2, 5, 10"):
        make_cell(name, 10, heads=heads)(3)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_number_of_heads_fits_the_hidden_size(name: str) -> None:
    heads = {size: make_cell(name, size)(3).heads for size in (16, 12, 10, 7, 4)}
    assert heads == {16: 4, 12: 4, 10: 2, 7: 1, 4: 2 if name == "mlstm" else 4}


def test_a_head_of_one_unit_has_no_norm() -> None:
    with pytest.raises(ValueError, match="one unit"):
        make_cell("mlstm", 4, heads=4)(3)


def test_slstm_starts_as_published() -> None:
    cell = make_cell("slstm", 12, heads=2)(INPUT)
    assert not cell.weight_hh.any()
    i, f, z, o = cell.bias.detach().chunk(4)
    assert not torch.cat([i, z, o]).any()
    expected = torch.tensor([5 - 12 * (k / 5) ** 0.3 for k in range(6)])
    torch.testing.assert_close(f, expected.repeat(2))


def test_mlstm_starts_as_published() -> None:
    torch.manual_seed(0)
    cell = make_cell("mlstm", 4000, heads=1000)(2)
    matrices, named = cell.input_matrices(), cell.named_weights()
    assert not torch.cat([matrices["i"], matrices["f"]]).any()
    torch.testing.assert_close(named["b_f"], torch.linspace(3, 6, 1000))
    assert named["b_i"].std().item() == pytest.approx(0.1, rel=0.1)
    assert matrices["q"].std().item() == pytest.approx(math.sqrt(2 / 10), rel=0.1)
    assert not any(named[f"b_{block}"].any() for block in "qkvo")
    assert (cell.gain == 1).all()


def test_slstm_is_the_paper_without_its_stabiliser() -> None:
    cell = create("slstm")
    weights = cell.named_weights()
    c = n = h = torch.zeros(HIDDEN, dtype=torch.float64)
    state = cell.initial_state(1)
    for x in torch.randn(5, INPUT, dtype=torch.float64):
        raw = {
            block: weights[f"W_i{block}"] @ x + torch.block_diag(*weights[f"R_{block}"]) @ h + weights[f"b_{block}"]
            for block in "ifzo"
        }
        i, f = raw["i"].exp(), raw["f"].sigmoid()
        c, n = f * c + i * raw["z"].tanh(), f * n + i
        h = raw["o"].sigmoid() * c / n
        gates = record_gates(cell, x.unsqueeze(0), state)
        torch.testing.assert_close(gates.h[0], h)
        if not state[2].any():
            torch.testing.assert_close(gates.m[0], raw["i"], rtol=0, atol=1e-12)  # as n = 0
        y, state = cell(x.unsqueeze(0), state)
        assert y is state[0]
        torch.testing.assert_close(state[1][0] * state[3][0].exp(), c)


def test_mlstm_is_the_paper_without_its_stabiliser() -> None:
    cell = create("mlstm")
    weights, d = cell.named_weights(), HIDDEN // HEADS
    C, n = torch.zeros(HEADS, d, d, dtype=torch.float64), torch.zeros(HEADS, d, dtype=torch.float64)
    state = cell.initial_state(1)
    for x in torch.randn(5, INPUT, dtype=torch.float64):
        raw = {block: weights[f"W_i{block}"] @ x + weights[f"b_{block}"] for block in "qkvoif"}
        q, k, v = (raw[block].view(HEADS, d) for block in "qkv")
        i, f, k = raw["i"].exp(), raw["f"].sigmoid(), k / math.sqrt(d)
        C = f[:, None, None] * C + i[:, None, None] * torch.einsum("hv,hk->hvk", v, k)
        n = f[:, None] * n + i[:, None] * k
        r = torch.einsum("hvk,hk->hv", C, q) / (n * q).sum(1).abs().clamp(min=1).unsqueeze(1)
        gates = record_gates(cell, x.unsqueeze(0), state)
        torch.testing.assert_close(gates.r[0], r, rtol=1e-4, atol=1e-5)  # 1e-6 is added to the denominator
        normalised = (r - r.mean(1, keepdim=True)) / (r.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        expected = raw["o"].sigmoid() * weights["gain"] * normalised.flatten()
        y, state = cell(x.unsqueeze(0), state)
        torch.testing.assert_close(y[0], expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(state[0][0] * state[2][0].exp()[:, None, None], C)


def test_units_correspond_to_the_gates_of_their_head() -> None:
    cell = make_cell("mlstm", 8, heads=2)(INPUT)
    assert [cell.corresponding_unit("h", unit, "f") for unit in range(8)] == [0] * 4 + [1] * 4
    assert cell.corresponding_unit("f", 1, "h") == 4
    projected = make_cell("lstm", 8, projection=2)(INPUT)
    assert projected.corresponding_unit("c", 5, "h") is None
    assert projected.corresponding_unit("h", 1, "f") == 1
