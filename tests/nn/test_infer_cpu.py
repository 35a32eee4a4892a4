"""Inference from a table of gates: against the definitions, in every build; the same whatever the rows and threads."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relmo.nn.kernels import CACHE, cpu, lstm_cpu
from relmo.nn.kernels.lstm_step import lengths_of
from relmo.nn.quantize import PRECISIONS, Precision
from relmo.nn.recurrence.elmo_lstm import ROWS, ElmoLSTM, ElmoLSTMOutput

BUILDS = cpu.libraries()
needs_library = pytest.mark.skipif(not BUILDS, reason="the kernels were not built: there is no C compiler here")
KINDS: list[dict[str, Any]] = [
    {"hidden_size": 12, "projection": 8, "input_size": 8},
    {"hidden_size": 17, "projection": 5, "input_size": 9, "layers": 1},
    {"hidden_size": 64, "projection": 16, "input_size": 16, "layers": 3},
    {"hidden_size": 250, "projection": 70, "input_size": 70},
    {"hidden_size": 17, "projection": None, "input_size": 17},
    {"hidden_size": 600, "projection": 130, "input_size": 130, "skip_connections": False},
    {"hidden_size": 40, "projection": 12, "input_size": 12, "cell_clip": None, "projection_clip": None},
]


@pytest.fixture(params=[*BUILDS, None])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Each build that can run here, in turn, and none."""
    monkeypatch.setattr(cpu, "library", lambda: BUILDS.get(request.param))
    return request.param


@pytest.fixture
def threads() -> Iterator[None]:
    """Gives torch back the threads it had."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make(fast: bool = True, **options: Any) -> ElmoLSTM:
    """Stacks with weights large enough for the clips to bite."""
    torch.manual_seed(0)
    kind: dict[str, Any] = {"layers": 2, "skip_connections": True, "cell_clip": 0.3, "projection_clip": 0.1}
    stacks = ElmoLSTM(**kind | options, fast=fast)
    with torch.no_grad():
        for parameter in stacks.parameters():
            parameter.mul_(2) if parameter.dim() == 3 else parameter.normal_()
    return stacks


class Case:
    """Words with their gates, a state, and which of the words are read."""

    def __init__(self, stacks: ElmoLSTM, steps: int, batch: int, shrink: bool = True):
        torch.manual_seed(1)
        self.x = torch.randn(2, 11, stacks.stack[0].weight_ih.shape[2])
        with torch.no_grad():
            self.gates = stacks.stack[0].input_gates(self.x)
        self.words = torch.randint(11, (2, steps, batch))
        self.state = tuple(0.1 * torch.randn_like(tensor) for tensor in stacks.initial_state(batch))
        self.sizes = [max(1, batch * (steps - t) // steps) if shrink else batch for t in range(steps)]

    def infer(self, stacks: ElmoLSTM, precision: Precision = "float32") -> ElmoLSTMOutput:
        return stacks.infer(self.gates, self.words, self.state, self.sizes, precision=precision)

    def some(self, rows: list[int]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        return self.gates, self.words[:, :, rows], tuple(tensor[rows] for tensor in self.state)


def flat(run: ElmoLSTMOutput) -> Tensor:
    return torch.cat([tensor.double().flatten() for tensor in (*run.layers, *run.state)])


@pytest.mark.parametrize("batch", [1, 7, 37])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shrink", [False, True])
def test_float32_equals_the_definition(build: str | None, kind: dict[str, Any], batch: int, shrink: bool) -> None:
    slow, fast = make(fast=False, **kind).double(), make(**kind)
    case = Case(fast, 6, batch, shrink)
    x = torch.stack([case.x[d][case.words[d]] for d in range(2)])
    with torch.no_grad():
        exact = slow(x.double(), tuple(tensor.double() for tensor in case.state), case.sizes)
    mine = case.infer(fast)
    for one, other in zip([*mine.layers, *mine.state], [*exact.layers, *exact.state], strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-6 * max(1.0, other.abs().max().item()))
    lengths = lengths_of(case.sizes, batch)
    for layer in mine.layers:
        assert all((layer[:, length:, row] == 0).all() for row, length in enumerate(lengths.tolist()))


def test_the_clips_are_active_in_these_tests() -> None:
    run = Case(stacks := make(**KINDS[3]), 6, 7).infer(stacks)
    assert (run.layers[0].abs() == 0.1).double().mean() > 0.1
    assert (run.state[1].abs() == 0.3).any()
    assert (run.state[1].abs() < 0.3).any()


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 37])
def test_fewer_bits_are_what_their_definition_says(
    build: str | None, precision: Precision, kind: dict[str, Any], batch: int
) -> None:
    slow, fast = make(fast=False, **kind), make(**kind)
    one_step = Case(fast, 1, batch)
    cells, exact_cells = (one_step.infer(stacks, precision).state[1] for stacks in (fast, slow))
    torch.testing.assert_close(cells, exact_cells, rtol=0, atol=2e-6)
    case = Case(fast, 6, batch)
    mine, exact, full = flat(case.infer(fast, precision)), flat(case.infer(slow, precision)), flat(case.infer(slow))
    off, lost = (mine - exact).abs(), (exact - full).abs()
    assert off.max() < 0.02  # numbers that differ by rounding may be rounded to another neighbour, here and there
    assert off.mean() < 3e-5
    assert off.mean() < 0.1 * lost.mean()
    assert 0 < lost.mean() < 0.01


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[5]])
def test_in_int8_a_loud_cell_that_the_projection_hardly_hears_leaves_the_others_their_bits(
    build: str | None, kind: dict[str, Any]
) -> None:
    stacks = make(**kind, cell_clip=None, projection_clip=None)
    hidden = kind["hidden_size"]
    with torch.no_grad():
        for layer in stacks.stack:
            gates = layer.bias.unflatten(1, (4, hidden))  # i, f, g, o
            gates[:, 3] -= 5  # all speak softly,
            gates[:, :, 3] = 5  # but one
            layer.weight_hr[:, :, 3] *= 0.001  # type: ignore[index]
    case = Case(stacks, 6, 9, shrink=False)
    case.state = stacks.initial_state(9)
    for low, exact in zip(case.infer(stacks, "int8").layers, case.infer(stacks).layers, strict=True):
        assert (low - exact).norm() < 0.04 * exact.norm()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", [KINDS[1], KINDS[2], KINDS[3], KINDS[4], KINDS[5]])
def test_a_row_is_the_same_to_the_bit_whatever_stands_beside_it(
    build: str | None, precision: Precision, kind: dict[str, Any]
) -> None:
    if build is None and kind is not KINDS[2]:
        pytest.skip("torch's products do this for even sizes only")
    case = Case(stacks := make(**kind), 5, 40, shrink=False)
    together = case.infer(stacks, precision)
    for rows in ([0], [39], [3, 17], [*range(39, 20, -1)]):
        run = stacks.infer(*case.some(rows), precision=precision)
        for one, other in zip(run.layers, together.layers, strict=True):
            assert torch.equal(one, other[:, :, rows])
        for one, other in zip(run.state, together.state, strict=True):
            assert torch.equal(one, other[rows])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_input_gates_computed_first_change_no_bit(
    build: str | None, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(stacks := make(**KINDS[5]), 5, 9)
    found = []
    for few in (0, 100):
        monkeypatch.setattr(lstm_cpu, "MAX_EAGER_ROWS", few)
        monkeypatch.setattr(lstm_cpu, "MIN_LARGE_SIZE", 0)
        found.append(flat(case.infer(stacks, precision)))
    assert torch.equal(*found)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_how_many_threads_there_are_changes_no_bit(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    if not BUILDS:
        pytest.skip("the kernels were not built")
    monkeypatch.setitem(cpu.MIN_PARALLEL_WORK, 2, 0)
    case = Case(stacks := make(**KINDS[3]), 5, 60)
    found = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        found.append(flat(case.infer(stacks, precision)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_library
def test_in_float32_and_int8_all_builds_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(stacks := make(**KINDS[5]), 6, 9)
    for precision in ("float32", "int8"):
        found = []
        for build in BUILDS.values():
            monkeypatch.setattr(cpu, "library", lambda build=build: build)
            found.append(flat(case.infer(stacks, precision)))
        assert all(torch.equal(found[0], other) for other in found[1:])


def test_the_table_may_be_a_part_of_a_larger_one(build: str | None) -> None:
    stacks = make(**KINDS[3])
    case = Case(stacks, 4, 5)
    expected = case.infer(stacks)
    table = torch.full((2, 30, 4 * 250 + 3), float("nan"))
    table[:, 5:27:2, 2:-1] = case.gates
    case.gates = table[:, 5:27:2, 2:-1]
    assert torch.equal(flat(case.infer(stacks)), flat(expected))
    case.gates = case.gates.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(flat(case.infer(stacks)), flat(expected))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_run_in_two_pieces_with_the_state_carried_equals_one_run(build: str | None, precision: Precision) -> None:
    case = Case(stacks := make(**KINDS[3]), 7, 18, shrink=False)
    whole = case.infer(stacks, precision)
    first = stacks.infer(case.gates, case.words[:, :3], case.state, precision=precision)
    second = stacks.infer(case.gates, case.words[:, 3:], first.state, precision=precision)
    for layer, a, b in zip(whole.layers, first.layers, second.layers, strict=True):
        assert torch.equal(layer, torch.cat([a, b], dim=1))
    assert all(torch.equal(a, b) for a, b in zip(whole.state, second.state, strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_stay_in_their_row(build: str | None, precision: Precision, bad: float) -> None:
    stacks = make(**KINDS[2])
    case = Case(stacks, 4, 9, shrink=False)
    case.words.clamp_(max=9)
    clean = case.infer(stacks, precision).layers[-1]
    case.words[:, 1, 4] = 10
    case.gates[:, 10] = bad
    run = case.infer(stacks, precision).layers[-1]
    rest = [row for row in range(9) if row != 4]
    assert torch.equal(run[:, :, rest], clean[:, :, rest])
    assert torch.equal(run[:, 0], clean[:, 0])
    if bad != bad:
        assert run[:, 1:, 4].isnan().all()
    else:
        assert run.isfinite().all()


def test_the_state_that_is_given_is_left_as_it_is(build: str | None) -> None:
    case = Case(stacks := make(**KINDS[3]), 4, 5)
    before = [tensor.clone() for tensor in (case.gates, case.words, *case.state)]
    case.infer(stacks)
    assert all(torch.equal(a, b) for a, b in zip(before, (case.gates, case.words, *case.state), strict=True))


def test_packed_weights_follow_the_weights(build: str | None) -> None:
    case = Case(stacks := make(**KINDS[3]), 4, 5)
    CACHE.clear()
    for precision in PRECISIONS:
        case.infer(stacks, precision)
    held = {key: id(value.derived) for key, value in CACHE.items()}
    for precision in PRECISIONS:
        case.infer(stacks, precision)
    assert {key: id(value.derived) for key, value in CACHE.items()} == held
    assert bool(held) == (build is not None)
    with torch.no_grad():
        stacks.stack[1].weight_hr.mul_(0.5)  # type: ignore[union-attr]
    after = case.infer(stacks)
    fresh = make(**KINDS[3])
    fresh.load_state_dict(stacks.state_dict())
    assert torch.equal(flat(after), flat(case.infer(fresh)))
    del stacks, fresh
    assert not CACHE


@settings(max_examples=40, deadline=None)
@given(
    hidden=st.integers(1, 70),
    projection=st.none() | st.integers(1, 70),
    batch=st.integers(1, 20),
    steps=st.integers(1, 4),
)
@needs_library
def test_no_size_is_special(hidden: int, projection: int | None, batch: int, steps: int) -> None:
    kind: dict[str, Any] = {"hidden_size": hidden, "projection": projection, "input_size": projection or hidden}
    fast = make(**kind)
    case = Case(fast, steps, batch)
    exact = flat(case.infer(make(fast=False, **kind)))
    torch.testing.assert_close(flat(case.infer(fast)), exact, rtol=0, atol=3e-6)
    for precision in ("bfloat16", "int8"):
        torch.testing.assert_close(flat(case.infer(fast, precision)), exact, rtol=0, atol=0.2)


def test_a_lone_row_is_not_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    if not BUILDS:
        pytest.skip("the kernels were not built")
    rows = []
    spread = lstm_cpu.spread
    monkeypatch.setattr(lstm_cpu, "spread", lambda what, n, work: (rows.append(n), spread(what, n, work)))
    case = Case(stacks := make(**KINDS[0]), 1, 1)
    case.infer(stacks)
    assert rows == [1, 1, 1]  # the first layer, the second's input gates, the second layer
    assert ROWS > 1


def test_mistakes_are_named(build: str | None) -> None:
    case = Case(stacks := make(**KINDS[0]), 3, 2)
    with pytest.raises(ValueError, match="int4"):
        case.infer(stacks, "int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sizes"):
        stacks.infer(case.gates, case.words, case.state, [2, 2])
    case.words[0, 0, 0] = 11
    with pytest.raises(IndexError):
        case.infer(stacks)


@pytest.mark.gpu
def test_on_a_gpu_the_table_gives_what_it_does_on_a_cpu_and_int8_is_refused() -> None:
    stacks = make(**KINDS[3])
    case = Case(stacks, 6, 9)
    exact = flat(case.infer(stacks))
    stacks = stacks.cuda()
    case.gates, case.words = case.gates.cuda(), case.words.cuda()
    case.state = tuple(tensor.cuda() for tensor in case.state)
    torch.testing.assert_close(flat(case.infer(stacks)).cpu(), exact, rtol=0, atol=1e-4)
    low = case.infer(stacks, "bfloat16")
    assert low.layers[0].dtype == torch.float32
    torch.testing.assert_close(flat(low).cpu(), exact, rtol=0, atol=0.05)
    with pytest.raises(ValueError, match="int8"):
        case.infer(stacks, "int8")


@pytest.mark.slow
def test_without_kernels_the_numbers_are_the_same_within_rounding() -> None:
    program = (
        "import torch; from relmo.nn.recurrence.elmo_lstm import ElmoLSTM; from relmo.nn.kernels import cpu\n"
        "torch.manual_seed(0); stacks = ElmoLSTM(input_size=8, hidden_size=12, projection=8, layers=2,"
        " skip_connections=True, cell_clip=3.0, projection_clip=3.0)\n"
        "gates, words = torch.randn(2, 5, 48), torch.arange(18).view(2, 3, 3) % 5\n"
        "runs = [stacks.infer(gates, words, precision=p) for p in ('float32', 'bfloat16', 'int8')]\n"
        "print(cpu.library() is not None, *(run.layers[-1].double().abs().sum().item() for run in runs))"
    )
    found = {}
    for wanted in ("0", "1"):
        environment = os.environ | {"RELMO_KERNELS": wanted}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert not done.stderr
        found[wanted] = done.stdout.split()
    assert found["0"][0] == "False"
    assert found["1"][0] == str(bool(BUILDS))
    for one, other, error in zip(found["0"][1:], found["1"][1:], (1e-5, 1e-2, 1e-2), strict=True):
        assert float(one) == pytest.approx(float(other), abs=error)
