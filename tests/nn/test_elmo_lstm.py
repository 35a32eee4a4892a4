"""ELMo's LSTM stacks: the fast path against the definition, forward, backward and in inference."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relmo.nn.kernels import lstm_step, lstm_step_triton
from relmo.nn.kernels.lstm_step import lengths_of
from relmo.nn.recurrence.elmo_lstm import ROWS, ElmoLSTM, ElmoLSTMOutput

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SIZES = [5, 5, 4, 4, 3, 1, 1]  # of five sequences, how many go on at each step


def make(fast: bool = True, scale: float = 3.0, **options: Any) -> ElmoLSTM:
    """Small stacks in float64, with weights large enough for the clips to bite."""
    torch.manual_seed(0)
    kind: dict[str, Any] = {"input_size": 8, "hidden_size": 12, "projection": 8, "layers": 2, "skip_connections": True}
    kind |= {"cell_clip": 0.3, "projection_clip": 0.1} | options
    stacks = ElmoLSTM(**kind, fast=fast).double()
    with torch.no_grad():
        for parameter in stacks.parameters():
            parameter.mul_(scale)
            if parameter.dim() == 2:
                parameter.normal_()
    return stacks


def inputs(stacks: ElmoLSTM, steps: int = 7, batch: int = 5) -> tuple[Tensor, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    size = stacks.stack[0].weight_ih.shape[2]
    like = stacks.stack[0].bias
    x = torch.randn(2, steps, batch, size, dtype=like.dtype, device=like.device)
    return x, tuple(0.1 * torch.randn_like(tensor) for tensor in stacks.initial_state(batch))


def gradients(stacks: ElmoLSTM, x: Tensor, state: tuple[Tensor, ...], sizes: Sequence[int] | None) -> list[Tensor]:
    """Of a random sum over all layers' outputs: by the input and by every weight."""
    x = x.clone().requires_grad_()
    run = stacks(x, state, sizes)
    torch.manual_seed(2)
    weights = [torch.randn(layer.shape, dtype=torch.float64).to(layer) for layer in run.layers]
    sum((layer * w).sum() for layer, w in zip(run.layers, weights, strict=True)).backward()  # type: ignore[union-attr]
    found = [x.grad, *(parameter.grad for parameter in stacks.parameters())]
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in found)
    return found  # type: ignore[return-value]


def assert_same(a: ElmoLSTMOutput, b: ElmoLSTMOutput) -> None:
    for one, other in zip([*a.layers, *a.state], [*b.layers, *b.state], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


KINDS = [
    {},
    {"skip_connections": False},
    {"layers": 3},
    {"layers": 1},
    {"cell_clip": None, "projection_clip": None},
    {"projection": None, "input_size": 12},
    {"projection": None, "input_size": 12, "layers": 3, "cell_clip": None},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [None, SIZES])
def test_the_fast_path_equals_the_definition_forward_and_backward(
    kind: dict[str, Any], sizes: list[int] | None
) -> None:
    slow, fast = make(fast=False, **kind), make(**kind)
    x, state = inputs(slow)
    assert_same(slow(x, state, sizes), fast(x, state, sizes))
    for one, other in zip(gradients(slow, x, state, sizes), gradients(fast, x, state, sizes), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [None, SIZES])
def test_inference_equals_the_definition(kind: dict[str, Any], sizes: list[int] | None) -> None:
    slow, fast = make(fast=False, **kind), make(**kind)
    x, state = inputs(slow)
    with torch.no_grad():
        assert_same(slow(x, state, sizes), fast(x, state, sizes))


def test_the_clips_are_active_in_these_tests() -> None:
    stacks = make()
    x, state = inputs(stacks)
    run = stacks(x, state)
    assert (run.layers[0].abs() == 0.1).double().mean() > 0.2
    assert (run.state[1].abs() == 0.3).any()
    assert ((run.state[1].abs() < 0.3) & (run.state[1].abs() > 0)).any()


def test_outputs_past_the_end_are_zero_and_the_state_is_the_one_at_each_sequences_end() -> None:
    stacks = make()
    x, state = inputs(stacks)
    run = stacks(x, state, SIZES)
    for row, length in enumerate(lengths_of(SIZES, 5).tolist()):
        alone = stacks(x[:, :length, row : row + 1], tuple(tensor[row : row + 1] for tensor in state))
        for layer, own in zip(run.layers, alone.layers, strict=True):
            assert (layer[:, length:, row] == 0).all()
            torch.testing.assert_close(layer[:, :length, row], own[:, :, 0], rtol=0, atol=1e-12)
        for tensor, own in zip(run.state, alone.state, strict=True):
            torch.testing.assert_close(tensor[row], own[0], rtol=0, atol=1e-12)


def test_a_run_in_two_pieces_with_the_state_carried_equals_one_run() -> None:
    stacks = make()
    x, state = inputs(stacks)
    whole, first = stacks(x, state), stacks(x[:, :3], state)
    second = stacks(x[:, 3:], first.state)
    for layer, a, b in zip(whole.layers, first.layers, second.layers, strict=True):
        torch.testing.assert_close(layer, torch.cat([a, b], dim=1), rtol=0, atol=1e-12)
    assert_same(ElmoLSTMOutput((), whole.state), ElmoLSTMOutput((), second.state))


def test_the_directions_do_not_meet() -> None:
    stacks = make()
    x, state = inputs(stacks)
    other = x.clone()
    other[1] += 1
    for a, b in zip(stacks(x, state).layers, stacks(other, state).layers, strict=True):
        assert torch.equal(a[0], b[0])
        assert not torch.equal(a[1], b[1])


def test_a_residual_adds_the_input_as_it_was_dropped_out() -> None:
    stacks = make(dropout=0.5, cell_clip=None, projection_clip=None).train()
    with torch.no_grad():
        for parameter in stacks.stack[1].parameters():
            parameter.zero_()  # the second layer's own output is zero: what comes out is its input
    x, _ = inputs(stacks)
    first, second = stacks(x).layers
    dropped = second == 0
    assert 0.3 < dropped.double().mean() < 0.7
    torch.testing.assert_close(second[~dropped], 2 * first[~dropped])


def test_a_graph_is_walked_back_only_once() -> None:
    stacks = make()
    x, state = inputs(stacks)
    loss = stacks(x, state).layers[-1].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(TypeError):
        loss.backward()


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 3 * ROWS), seed=st.integers(0, 99))
def test_in_inference_a_row_does_not_depend_on_how_many_there_are(rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    stacks = ElmoLSTM(
        input_size=16,
        hidden_size=64,
        projection=16,
        layers=2,
        skip_connections=True,
        cell_clip=3.0,
        projection_clip=3.0,
    )
    full = 4 * ROWS
    x = torch.randn(2, 6, full, 16)
    some = torch.zeros(2, 6, -(-rows // ROWS) * ROWS, 16)
    some[:, :, :rows] = x[:, :, :rows]
    with torch.no_grad():
        for a, b in zip(stacks(x).layers, stacks(some, None, [rows] * 6).layers, strict=True):
            assert torch.equal(a[:, :, :rows], b[:, :, :rows])


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_stays_near_float32(device: str) -> None:
    stacks = make(scale=1.0, cell_clip=3.0, projection_clip=3.0).float().to(device)
    x, state = inputs(stacks)
    exact = stacks(x, state, SIZES)
    with torch.autocast(device, dtype=torch.bfloat16):
        low = stacks(x, state, SIZES)
    assert low.layers[-1].dtype == torch.bfloat16
    assert low.state[1].dtype == torch.float32  # cells
    for a, b in zip(exact.layers, low.layers, strict=True):
        assert (a - b).norm() / a.norm() < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [None, SIZES])
def test_on_a_gpu_the_kernels_equal_the_definition(kind: dict[str, Any], sizes: list[int] | None) -> None:
    if not lstm_step_triton.available(torch.zeros(1, device="cuda")):
        pytest.skip("no Triton here")
    slow, fast = make(fast=False, **kind).cuda(), make(**kind).float().cuda()
    x, state = inputs(slow)
    low = x.float(), tuple(tensor.float() for tensor in state)
    for a, b in zip(slow(x, state, sizes).layers, fast(*low, sizes).layers, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=0, atol=1e-5)
    for a, b in zip(gradients(slow, x, state, sizes), gradients(fast, *low, sizes), strict=True):
        assert (a.float() - b).norm() / a.norm() < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [None, [128] * 5 + [80] * 3 + [3] * 4])
def test_on_a_gpu_in_bfloat16_gradients_are_the_definitions_within_a_hundredth(sizes: list[int] | None) -> None:
    kind: dict[str, Any] = {"input_size": 128, "hidden_size": 512, "projection": 128, "scale": 1.0}
    kind |= {"cell_clip": 3.2, "projection_clip": 1.1}
    slow, fast = make(fast=False, **kind).cuda(), make(**kind).float().cuda()
    x, state = inputs(slow, steps=12, batch=128)
    x, state = x.bfloat16().double(), tuple(tensor.bfloat16().double() for tensor in state)
    with torch.no_grad():  # both begin from numbers that bfloat16 has
        for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
            one.mul_(0.5 if one.dim() == 2 else 1.0)
            other.copy_(one.bfloat16())
            one.copy_(other)
    exact = slow(x, state, sizes)
    # clips are active, but not for many: of those near a limit some fall on its other side, whose gradient is another
    assert (exact.layers[0].abs() >= 1.1).any()
    assert (exact.state[1].abs() >= 3.2).any()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = gradients(fast, x.float(), tuple(tensor.float() for tensor in state), sizes)
    for a, b in zip(gradients(slow, x, state, sizes), found, strict=True):
        assert (a.float() - b).norm() / a.norm() < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("limit", [0.1, 0.7])  # rounded up, and down
def test_in_bfloat16_a_clipped_output_is_told_from_one_that_is_near_the_limit(limit: float) -> None:
    m = torch.full((2, 3, 16), limit / 16, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(2, 2, 16, device="cuda", dtype=torch.bfloat16)
    weight[:, 1] *= 2
    h, dh = torch.empty(2, 3, 2, device="cuda", dtype=torch.bfloat16), torch.empty(2, 3, 2, device="cuda")
    sums = float(m[0, 0].float().sum())
    lstm_step_triton.project(m, weight, h, sums * 1.0001)  # the first just below its limit, the second far above
    lstm_step_triton.output_gradient(torch.ones_like(h), torch.zeros(1, 2, 3, 2, device="cuda"), h, dh, sums * 1.0001)
    assert dh[..., 0].eq(1).all()
    assert dh[..., 1].eq(0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_each_triton_kernel_equals_its_twin_in_torch(clip: float | None, precision: torch.dtype) -> None:
    torch.manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = precision) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    z, bias = random(2, 3, 70, 4 * 1100)[:, 1], random(2, 4 * 1100)
    c, c_next, dc = (random(2, 70, 1100, dtype=torch.float32) for _ in range(3))
    m, dm, h, dh, dy = random(2, 70, 1100), random(2, 70, 1100), *(random(2, 70, 96) for _ in range(3))
    hr, hh = random(2, 96, 1100) / 30, random(2, 4 * 1100, 96) / 60
    parts = random(3, 2, 70, 96, dtype=torch.float32)
    tolerance = 2e-6 if precision == torch.float32 else 2e-2
    for name, arguments in {
        "forward": (z, bias, c, c_next, m),
        "backward": (z.sigmoid(), dm, dc, c, c_next),
        "project": (m, hr, h),
        "output_gradient": (dy, parts[:1].to(precision), h, dh),
    }.items():
        mine, theirs = ([a.clone() for a in arguments] for _ in range(2))
        getattr(lstm_step, name)(*mine, clip)
        getattr(lstm_step_triton, name)(*theirs, clip)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * (5 if name == "project" else 1))
    sums = []
    for module in (lstm_step, lstm_step_triton):
        room = module.parts_of(z, 96)
        module.to_output(z, hh, room)
        sums.append(room.float().sum(dim=0))
    torch.testing.assert_close(*sums, rtol=tolerance, atol=5 * tolerance)


@pytest.mark.gpu
def test_a_row_can_have_its_bias_from_a_table() -> None:
    torch.manual_seed(0)
    z, table = torch.randn(2, 5, 4 * 33, device="cuda"), torch.randn(2, 9, 4 * 33, device="cuda")
    index = torch.randint(9, (2, 3, 5), device="cuda")[:, 1]
    rows = torch.stack([table[d][index[d]] for d in range(2)])
    c, m = torch.randn(2, 5, 33, device="cuda"), torch.empty(2, 5, 33, device="cuda")
    after, m_after = c.clone(), m.clone()
    lstm_step.forward(z + rows, None, c, c, m, None)
    lstm_step_triton.forward(z, table, after, after, m_after, None, index=index, keep=False)
    torch.testing.assert_close(c, after, rtol=0, atol=2e-6)
    torch.testing.assert_close(m, m_after, rtol=0, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recorded", [True, False])
def test_on_a_gpu_inference_equals_the_definition_recorded_or_not(
    kind: dict[str, Any], recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recorded:
        monkeypatch.setattr("relmo.nn.kernels.infer_gpu.MAX_ROWS", 0)
    slow, fast = make(fast=False, **kind).cuda(), make(**kind).float().cuda()
    size = slow.stack[0].weight_ih.shape[2]
    table = torch.randn(11, size, dtype=torch.float64, device="cuda")
    gates = slow.stack[0].input_gates(table.expand(2, *table.shape)).float().detach()
    for sizes in (SIZES, [5] * 7, [2, 1]):
        words = torch.randint(11, (2, len(sizes), sizes[0]), device="cuda")
        _, state = inputs(slow, batch=sizes[0])
        exact = slow(table[words], state, sizes)
        for precision, tolerance in (("float32", 1e-5), ("bfloat16", 0.3)):
            found = fast.infer(gates, words, tuple(tensor.float() for tensor in state), sizes, precision=precision)  # type: ignore[arg-type]
            for a, b in zip([*exact.layers, *exact.state], [*found.layers, *found.state], strict=True):
                torch.testing.assert_close(a.float(), b, rtol=0, atol=tolerance)
