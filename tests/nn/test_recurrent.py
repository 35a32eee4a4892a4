"""Recurrent stacks: the fused path is the written-out one; padding and batch mates change nothing; state carries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relmo.nn.dropout import SequenceDropout, drop_words
from relmo.nn.recurrence import Cell, Quantity, Record, State, make_cell, state, unchanged
from relmo.nn.recurrence.elman import ElmanCell
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.nn.recurrence.mogrifier import MogrifierLSTMCell
from relmo.nn.recurrence.stack import Recurrent, RecurrentOutput, unroll, unroll_fused
from relmo.registry import cell_names

SIZE = 4  # of input and output alike, so that residual connections take part
FUSED: dict[str, Callable[[int], Cell]] = {
    "elman_tanh": partial(ElmanCell, hidden_size=SIZE),
    "elman_relu": partial(ElmanCell, hidden_size=SIZE, nonlinearity="relu"),
    "gru": partial(GRUCell, hidden_size=SIZE),
    "lstm": partial(LSTMCell, hidden_size=SIZE),
    "lstm_projected": partial(LSTMCell, hidden_size=6, projection=SIZE),
}
CLIPPED = partial(LSTMCell, hidden_size=6, projection=SIZE, cell_clip=0.2, projection_clip=0.05)
CELLS = FUSED | {"lstm_clipped": CLIPPED}


def random_inputs(
    network: Recurrent, batch: int, steps: int, lengths: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    x = torch.randn(batch, steps, network.layers[0][0].input_size, requires_grad=True)  # type: ignore[index]
    return x, [torch.randn_like(tensor).requires_grad_() for tensor in network.initial_state(batch)]


def gradients(run: RecurrentOutput, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a fixed random combination of the output, every layer and the final state."""
    generator = torch.Generator().manual_seed(5)
    outputs = [run.output, *run.layers, *run.state]
    total = sum((o * torch.randn(o.shape, generator=generator).to(o)).sum() for o in outputs)
    return torch.autograd.grad(total, inputs)


def assert_same_run(
    one: Recurrent, other: Recurrent, x: Tensor, state: list[Tensor], lengths: Tensor | None, tolerance: float
) -> None:
    """Outputs, every layer, final states, and the gradients with respect to everything; layer by layer and whole."""
    for every_layer in (True, False):
        runs = [network(x, tuple(state), lengths, every_layer=every_layer) for network in (one, other)]
        torch.testing.assert_close(runs[0], runs[1], rtol=tolerance, atol=tolerance)
        own, expected = (
            gradients(run, [x, *state, *network.parameters()]) for network, run in zip((one, other), runs, strict=True)
        )
        torch.testing.assert_close(own, expected, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_fused_path_equals_the_written_out_one(name: str, layers: int) -> None:
    torch.manual_seed(layers)
    for bidirectional, residual, ragged in product([False, True], repeat=3):
        make = partial(
            Recurrent, FUSED[name], input_size=SIZE, layers=layers, bidirectional=bidirectional, residual=residual
        )
        fused, plain = make(), make(fast=False)
        plain.load_state_dict(fused.state_dict())
        x, state = random_inputs(fused, batch=5, steps=6)
        assert_same_run(fused, plain, x, state, torch.tensor([3, 6, 1, 6, 2]) if ragged else None, tolerance=1e-6)


@contextmanager
def exact_float32_on_cuda() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_cudnn_equals_the_written_out_cells(name: str, bidirectional: bool, ragged: bool) -> None:
    torch.manual_seed(0)
    make = partial(Recurrent, FUSED[name], input_size=SIZE, layers=2, bidirectional=bidirectional)
    fused, plain = make().cuda(), make(fast=False).cuda()
    plain.load_state_dict(fused.state_dict())
    x, state = random_inputs(fused, batch=5, steps=6)
    x, state = x.detach().cuda().requires_grad_(), [tensor.detach().cuda().requires_grad_() for tensor in state]
    with exact_float32_on_cuda():
        assert_same_run(
            fused, plain, x, state, torch.tensor([3, 6, 1, 6, 2]).cuda() if ragged else None, tolerance=1e-5
        )


@pytest.mark.gpu
@pytest.mark.parametrize("name", CELLS)
def test_bfloat16_autocast_on_cuda_is_near_float32(name: str) -> None:
    torch.manual_seed(0)
    network = Recurrent(CELLS[name], input_size=SIZE, layers=2).cuda()
    x = torch.randn(3, 5, SIZE).cuda()
    for lengths in (None, torch.tensor([5, 1, 3])):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            run = network(x, lengths=lengths)
        torch.testing.assert_close(run.output.float(), network(x, lengths=lengths).output, rtol=0.05, atol=0.03)
        run.output.float().sum().backward()


def copy_into_torch(ours: Recurrent, theirs: nn.LSTM) -> None:
    for layer, cells in enumerate(ours.layers):
        for cell, suffix in zip(cells, ("", "_reverse"), strict=False):  # type: ignore[arg-type]
            names = [f"{n}_l{layer}{suffix}" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")]
            for name, weight in zip(names, cell.parameters(), strict=False):
                getattr(theirs, name).data.copy_(weight.data)


@pytest.mark.parametrize("fast", [True, False])
@given(
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    projection=st.sampled_from([None, 3]),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_stack_equals_torchs_layers_on_packed_sequences(
    fast: bool, layers: int, bidirectional: bool, projection: int | None, lengths: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    make = partial(LSTMCell, hidden_size=5, projection=projection)
    ours = Recurrent(make, input_size=2, layers=layers, bidirectional=bidirectional, fast=fast)
    theirs = nn.LSTM(2, 5, layers, batch_first=True, bidirectional=bidirectional, proj_size=projection or 0)
    copy_into_torch(ours, theirs)
    x, state = random_inputs(ours, len(lengths), max(lengths))

    run = ours(x, tuple(state), torch.tensor(lengths))
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    output, (h, c) = theirs(packed, (torch.stack(state[::2]), torch.stack(state[1::2])))
    output, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(run.output, output, **tolerance)
    torch.testing.assert_close(torch.stack(run.state[::2]), h, **tolerance)
    torch.testing.assert_close(torch.stack(run.state[1::2]), c, **tolerance)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("fast", [True, False])
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    longer=st.integers(0, 2),
    bidirectional=st.booleans(),
    residual=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=10, deadline=None)
def test_a_sequence_depends_neither_on_batch_mates_nor_on_padding(
    name: str, fast: bool, lengths: list[int], longer: int, bidirectional: bool, residual: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    network = Recurrent(
        CELLS[name], input_size=SIZE, layers=2, bidirectional=bidirectional, residual=residual, fast=fast
    )
    steps = max(lengths) + longer
    x, state = random_inputs(network, len(lengths), steps)
    garbage = x.detach().clone()
    for row, length in enumerate(lengths):
        garbage[row, length:] = 1e3 * torch.randn(steps - length, SIZE)

    together = network(garbage, tuple(state), torch.tensor(lengths), every_layer=True)
    for row, length in enumerate(lengths):
        own_state = tuple(tensor[row : row + 1] for tensor in state)
        alone = network(x[row : row + 1, :length], own_state, every_layer=True)
        for padded, layer in zip(together.layers, alone.layers, strict=True):
            torch.testing.assert_close(padded[row, :length], layer[0], rtol=1e-5, atol=1e-6)
            assert not padded[row, length:].any(), "outputs past the end are zero"
        for final, expected in zip(together.state, alone.state, strict=True):
            torch.testing.assert_close(final[row], expected[0], rtol=1e-5, atol=1e-6)
    assert together.output is together.layers[-1]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_no_gradient_flows_into_the_padding(fast: bool, residual: bool) -> None:
    torch.manual_seed(0)
    network = Recurrent(FUSED["lstm"], input_size=SIZE, layers=2, bidirectional=True, residual=residual, fast=fast)
    x = torch.randn(3, 5, SIZE, requires_grad=True)
    network(x, lengths=torch.tensor([2, 5, 1])).output.square().sum().backward()
    assert x.grad is not None
    assert not x.grad[0, 2:].any()
    assert not x.grad[2, 1:].any()
    assert x.grad[0, :2].all()


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("fast", [True, False])
@given(first=st.integers(1, 5), second=st.integers(1, 5), layers=st.integers(1, 3), residual=st.booleans())
@settings(max_examples=8, deadline=None)
def test_state_passed_between_two_halves_gives_the_whole(
    name: str, fast: bool, first: int, second: int, layers: int, residual: bool
) -> None:
    torch.manual_seed(first)
    network = Recurrent(CELLS[name], input_size=SIZE, layers=layers, residual=residual, fast=fast)
    x = torch.randn(3, first + second, SIZE)
    whole = network(x)
    half = network(x[:, :first])
    other = network(x[:, first:], half.state)
    torch.testing.assert_close(torch.cat([half.output, other.output], dim=1), whole.output, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other.state, whole.state, rtol=1e-5, atol=1e-6)
    without = network(x[:, first:])
    if name != "elman_relu":  # all of whose few units may be off
        assert (without.output[:, 0] - whole.output[:, first]).abs().max() > 1e-5, "the state matters"


@pytest.mark.parametrize("name", CELLS)
def test_no_state_is_the_initial_state(name: str) -> None:
    network = Recurrent(CELLS[name], input_size=SIZE, layers=2, bidirectional=True)
    x = torch.randn(2, 3, SIZE)
    torch.testing.assert_close(network(x), network(x, network.initial_state(2)), rtol=0, atol=0)


def test_residual_layer_adds_its_input_where_the_sizes_agree_only() -> None:
    torch.manual_seed(0)
    residual = Recurrent(FUSED["gru"], input_size=3, layers=2, residual=True)
    plain = Recurrent(FUSED["gru"], input_size=3, layers=2)
    plain.load_state_dict(residual.state_dict())
    x = torch.randn(2, 5, 3)
    own, expected = residual(x, every_layer=True), plain(x, every_layer=True)
    assert torch.equal(own.layers[0], expected.layers[0])  # 3 -> 4
    torch.testing.assert_close(own.layers[1], expected.layers[1] + expected.layers[0])
    torch.testing.assert_close(own.state, expected.state)  # what is added is no part of the state


@pytest.mark.parametrize("projection", [2, 5, 6, 9])
def test_projection_of_any_size_runs(projection: int) -> None:
    network = Recurrent(partial(LSTMCell, hidden_size=6, projection=projection), input_size=3, layers=2)
    plain = Recurrent(partial(LSTMCell, hidden_size=6, projection=projection), input_size=3, layers=2, fast=False)
    plain.load_state_dict(network.state_dict())
    x = torch.randn(2, 4, 3)
    torch.testing.assert_close(network(x), plain(x), rtol=1e-5, atol=1e-6)
    assert network.output_size == projection


def test_clipped_cells_never_take_the_fused_path(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        "relmo.nn.recurrence.stack.unroll_fused", lambda *a, **b: calls.append(a) or unroll_fused(*a, **b)
    )
    x = torch.randn(2, 3, SIZE)
    for clips in ({"cell_clip": 3.0}, {"projection_clip": 3.0}):
        Recurrent(partial(LSTMCell, hidden_size=6, projection=3, **clips), input_size=SIZE)(x)
    Recurrent(FUSED["lstm"], input_size=SIZE, fast=False)(x)
    assert not calls
    for make in FUSED.values():
        Recurrent(make, input_size=SIZE)(x)
    assert len(calls) == len(FUSED)


@pytest.mark.parametrize("variational", [True, False])
def test_only_variational_dropout_holds_one_mask_over_time(variational: bool) -> None:
    torch.manual_seed(0)
    kept = SequenceDropout(0.5, variational=variational)(torch.ones(6, 9, 20)) != 0  # (B, T, H)
    same_over_time = (kept == kept[:, :1]).all(dim=1)  # (B, H)
    assert same_over_time.all() if variational else same_over_time.float().mean() < 0.1
    assert not torch.equal(kept[0], kept[1]), "each sequence has its own mask"


@pytest.mark.parametrize("variational", [True, False])
def test_dropout_keeps_the_expectation_and_is_off_in_evaluation(variational: bool) -> None:
    torch.manual_seed(0)
    dropout = SequenceDropout(0.3, variational=variational)
    x = torch.ones(4000, 2, 5)
    out = dropout(x)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert abs(out.mean().item() - 1) < 0.02
    assert dropout.eval()(x) is x


@pytest.mark.parametrize("variational", [True, False])
@pytest.mark.parametrize("fast", [True, False])
def test_dropout_stands_between_layers_and_nowhere_else(variational: bool, fast: bool) -> None:
    torch.manual_seed(0)
    make = partial(Recurrent, FUSED["lstm"], input_size=SIZE, fast=fast)
    one, two = (
        make(layers=1, dropout=0.5, variational=variational),
        make(layers=2, dropout=0.5, variational=variational),
    )
    x = torch.randn(3, 7, SIZE)
    assert torch.equal(one(x).output, one.eval()(x).output)
    dropped, whole = two(x, every_layer=True), two.eval()(x, every_layer=True)
    assert torch.equal(dropped.layers[0], whole.layers[0])  # what a layer gave, before it is dropped
    assert not torch.equal(dropped.layers[1], whole.layers[1])


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("fast", [True, False])
def test_weight_drop_changes_the_recurrent_weights_only_and_is_off_in_evaluation(name: str, fast: bool) -> None:
    torch.manual_seed(0)
    network = Recurrent(CELLS[name], input_size=SIZE, weight_drop=0.5, fast=fast)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    x = torch.randn(3, 6, SIZE)
    first, second = network(x).output, network(x).output
    assert torch.equal(first[:, 0], second[:, 0]), "from no state, W_hh plays no part in the first step"
    assert not torch.equal(first[:, 1:], second[:, 1:]), "every call drops other weights"
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]), "the weights themselves stay"
    network.eval()
    plain = Recurrent(CELLS[name], input_size=SIZE, fast=fast)
    plain.load_state_dict(before)
    assert torch.equal(network(x).output, plain(x).output)


@pytest.mark.parametrize("fast", [True, False])
def test_weight_drop_is_the_same_network_with_one_dropped_matrix_over_all_steps(fast: bool) -> None:
    torch.manual_seed(0)
    network = Recurrent(FUSED["gru"], input_size=SIZE, weight_drop=0.5, fast=fast)
    (cell,) = network.layers[0]  # type: ignore[misc]
    x = torch.randn(2, 6, SIZE)
    torch.manual_seed(9)
    dropped = torch.nn.functional.dropout(cell.weight_hh, 0.5)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * cell.weight_hh[kept])
    assert 0 < kept.sum() < kept.numel()
    plain = Recurrent(FUSED["gru"], input_size=SIZE, fast=False)
    plain.load_state_dict(network.state_dict())
    plain.layers[0][0].weight_hh.data = dropped.data  # type: ignore[index]
    torch.manual_seed(9)
    torch.testing.assert_close(network(x), plain(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fast", [True, False])
def test_weight_drop_zeroes_the_gradient_of_dropped_weights_and_no_other(fast: bool) -> None:
    torch.manual_seed(3)
    network = Recurrent(FUSED["lstm"], input_size=SIZE, weight_drop=0.5, fast=fast)
    network(torch.randn(4, 6, SIZE)).output.square().sum().backward()
    zero = {name: (p.grad == 0).float().mean().item() for name, p in network.named_parameters() if p.grad is not None}
    share = zero.pop("layers.0.0.weight_hh")
    assert 0.25 < share < 0.75
    assert not any(zero.values())


def test_dropped_words_are_gone_wherever_they_stand() -> None:
    torch.manual_seed(0)
    embedding = torch.randn(2000, 3)
    dropped = drop_words(embedding, 0.4, training=True)
    kept = (dropped != 0).all(dim=1)
    assert torch.equal(kept, (dropped != 0).any(dim=1)), "whole rows"
    assert abs(kept.float().mean().item() - 0.6) < 0.05
    torch.testing.assert_close(dropped[kept], embedding[kept] / 0.6)
    assert drop_words(embedding, 0.4, training=False) is embedding


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("lengths", [None, [5, 1, 3]])
def test_bfloat16_autocast_is_near_float32(name: str, fast: bool, lengths: list[int] | None) -> None:
    torch.manual_seed(0)
    network = Recurrent(CELLS[name], input_size=SIZE, layers=2, bidirectional=True, fast=fast)
    x = torch.randn(3, 5, SIZE)
    ends = None if lengths is None else torch.tensor(lengths)
    exact = network(x, lengths=ends)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = network(x, lengths=ends)
    assert run.output.dtype == torch.bfloat16 or not fast
    torch.testing.assert_close(run.output.float(), exact.output, rtol=0.05, atol=0.03)
    assert (run.output.float() - exact.output).abs().max() > 0
    run.output.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.dtype == p.dtype for p in network.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the state can be carried on
        network(x, run.state, ends)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_sequences_of_length_one_are_one_step_of_the_cell(name: str, bidirectional: bool) -> None:
    torch.manual_seed(0)
    network = Recurrent(FUSED[name], input_size=SIZE, bidirectional=bidirectional)
    x, state = random_inputs(network, batch=3, steps=4)
    for run in (network(x, tuple(state), torch.ones(3, dtype=torch.int64)), network(x[:, :1], tuple(state))):
        parts = len(state) // network.directions
        for direction, cell in enumerate(network.layers[0]):  # type: ignore[arg-type]
            own = slice(direction * parts, (direction + 1) * parts)
            y, new = cell(x[:, 0], tuple(state[own]))
            torch.testing.assert_close(
                run.output[:, 0].chunk(network.directions, dim=-1)[direction], y, rtol=1e-5, atol=1e-6
            )
            torch.testing.assert_close(run.state[own], new, rtol=1e-5, atol=1e-6)
        assert not run.output[:, 1:].any()


class LeakyCell(Cell):
    """h' = a * h + W x: a recurrence without gates, which needs no steps. Its initial state is learned."""

    recurrent = ("weight_h",)

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size))
        self.weight_h = nn.Parameter(torch.rand(hidden_size))
        self.start = nn.Parameter(torch.randn(hidden_size))

    def quantities(self) -> list[Quantity]:
        return [state("h", self.hidden_size, role="output", initial="start")]

    def project_input(self, x: Tensor) -> Tensor:
        return x @ self.weight_ih.T

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h = record("h", self.weight_h * state[0] + x)
        return h, (h,)

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        inside = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        steps = inside.cumsum(1)  # (B, T): number of steps so far
        lags = (steps.unsqueeze(2) - steps.unsqueeze(1)).unsqueeze(3)  # (B, T, T, 1)
        order = torch.arange(x.shape[1])
        past = (order.unsqueeze(1) >= order) & inside.unsqueeze(1)
        shares = torch.where(past.unsqueeze(3), self.weight_h ** lags.clamp(min=0), 0.0)  # (B, T, T, H)
        y = torch.einsum("btsh,bsh->bth", shares, x) + self.weight_h ** steps.unsqueeze(2) * state[0].unsqueeze(1)
        return y, (y[:, -1],)


@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 2, 0])])
def test_a_cell_that_computes_all_steps_side_by_side_equals_its_steps(lengths: Tensor | None) -> None:
    torch.manual_seed(0)
    stack = Recurrent(partial(LeakyCell, hidden_size=4), input_size=3, layers=2, bidirectional=True)
    x = torch.randn(3, 5, 3)
    start = tuple(torch.randn(tensor.shape) for tensor in stack.initial_state(3))
    side_by_side = stack(x, start, lengths, every_layer=True)
    stack.fast = False
    stepped = stack(x, start, lengths, every_layer=True)
    torch.testing.assert_close(side_by_side, stepped, rtol=1e-5, atol=1e-6)
    weights = [weight for name, weight in stack.named_parameters() if not name.endswith("start")]
    own, definition = (torch.autograd.grad(run.output.square().sum(), weights) for run in (side_by_side, stepped))
    torch.testing.assert_close(own, definition, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(cell_names()))
def test_on_a_gpu_stacks_of_every_cell_equal_their_steps_on_a_cpu(name: str) -> None:
    torch.manual_seed(0)
    make = partial(Recurrent, make_cell(name, 8), input_size=SIZE, layers=2, bidirectional=True)
    steps, fast = make(fast=False).double(), make().double().cuda()
    fast.load_state_dict(steps.state_dict())
    x, lengths = torch.randn(3, 40, SIZE, dtype=torch.float64), torch.tensor([40, 1, 27])
    runs = []
    for network, inputs in ((steps, x), (fast, x.cuda())):
        carried = network(inputs[:, :20]).state
        run = network(inputs, carried, lengths, every_layer=True)
        outputs = [*run.layers, *run.state]
        own = torch.autograd.grad(sum(tensor.square().sum() for tensor in outputs), list(network.parameters()))
        runs.append([tensor.cpu() for tensor in (*outputs, *own)])
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rank", [None, 3])
def test_a_mogrifier_used_for_many_steps_has_the_outputs_and_gradients_of_its_steps(rank: int | None) -> None:
    torch.manual_seed(0)
    cell = MogrifierLSTMCell(5, 7, rank=rank)
    x, state, outputs = torch.randn(2, 6, 5, requires_grad=True), cell.initial_state(2), []
    for t in range(6):
        y, state = cell.step(x[:, t], state)
        outputs.append(y)
    expected, (found, _) = torch.stack(outputs, dim=1), unroll(cell, x, cell.initial_state(2), None)
    assert torch.equal(found, expected)
    inputs = [x, *cell.parameters()]
    gradients = [torch.autograd.grad(output.square().sum(), inputs) for output in (found, expected)]
    torch.testing.assert_close(gradients[0], gradients[1])
