"""The compiled recurrence: against the definition; the same whatever the rows and threads; and without a library."""

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

from relmo.nn.kernels import cpu, lstm_cpu
from relmo.nn.kernels.lstm_step import lengths_of
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM

BUILDS = {f"{library.relmo_lanes()} lanes": library for library in cpu.libraries().values()}
needs_library = pytest.mark.skipif(not BUILDS, reason="the kernels were not built: there is no C compiler here")
KINDS: list[dict[str, Any]] = [
    {"hidden_size": 12, "projection": 8, "input_size": 8},
    {"hidden_size": 17, "projection": 5, "input_size": 9, "layers": 1},
    {"hidden_size": 64, "projection": 16, "input_size": 16},
    {"hidden_size": 250, "projection": 70, "input_size": 70},
    {"hidden_size": 17, "projection": None, "input_size": 17},
    {"hidden_size": 64, "projection": None, "input_size": 64, "cell_clip": None},
    {"hidden_size": 40, "projection": 12, "input_size": 12, "cell_clip": None, "projection_clip": None},
]


@pytest.fixture(params=BUILDS or [pytest.param(None, marks=needs_library)])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each build that can run here, in turn."""
    monkeypatch.setattr(cpu, "library", lambda: BUILDS[request.param])
    return request.param


@pytest.fixture
def threads() -> Iterator[None]:
    """Gives torch back the threads it had."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make(fast: bool = True, seed: int = 0, **options: Any) -> ElmoLSTM:
    """Stacks with weights large enough for the clips to bite."""
    torch.manual_seed(seed)
    kind: dict[str, Any] = {"layers": 2, "skip_connections": True, "cell_clip": 0.3, "projection_clip": 0.1}
    stacks = ElmoLSTM(**kind | options, fast=fast)
    with torch.no_grad():
        for parameter in stacks.parameters():
            parameter.mul_(2) if parameter.dim() == 3 else parameter.normal_()
    return stacks


def inputs(stacks: ElmoLSTM, steps: int, batch: int, seed: int = 1) -> tuple[Tensor, tuple[Tensor, ...]]:
    torch.manual_seed(seed)
    x = torch.randn(2, steps, batch, stacks.stack[0].weight_ih.shape[2])
    return x, tuple(0.1 * torch.randn_like(tensor) for tensor in stacks.initial_state(batch))


def shrinking(steps: int, batch: int) -> list[int]:
    """How many of the rows go on at each step, down to one."""
    return [max(1, batch * (steps - t) // steps) for t in range(steps)]


def everything(stacks: ElmoLSTM, x: Tensor, state: tuple[Tensor, ...], sizes: list[int] | None) -> list[Tensor]:
    """The outputs, the final state, and the gradients of a random sum of the outputs."""
    x = x.clone().requires_grad_()
    stacks.zero_grad()
    run = stacks(x, state, sizes)
    torch.manual_seed(2)
    weights = [torch.randn(layer.shape).to(layer) for layer in run.layers]
    sum((layer * w).sum() for layer, w in zip(run.layers, weights, strict=True)).backward()  # type: ignore[union-attr]
    gradients = [x.grad, *(parameter.grad for parameter in stacks.parameters())]
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)
    return [*run.layers, *run.state, *gradients]  # type: ignore[list-item]


def assert_close(mine: Tensor, exact: Tensor, atol: float = 2e-6) -> None:
    """Within float32's rounding of the largest number."""
    torch.testing.assert_close(mine.double(), exact, rtol=0, atol=atol * max(1.0, exact.abs().max().item()))


@pytest.mark.parametrize("batch", [1, 7, 40])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shrink", [False, True])
def test_values_states_and_gradients_equal_the_definition(
    build: str, kind: dict[str, Any], batch: int, shrink: bool
) -> None:
    slow, fast = make(fast=False, **kind).double(), make(**kind)
    x, state = inputs(fast, 6, batch)
    sizes = shrinking(6, batch) if shrink else None
    exact = everything(slow, x.double(), tuple(tensor.double() for tensor in state), sizes)
    for one, other in zip(everything(fast, x, state, sizes), exact, strict=True):
        assert_close(one, other)
    with torch.no_grad():
        run = fast(x, state, sizes)
    for one, other in zip([*run.layers, *run.state], exact, strict=False):
        assert_close(one, other)


@settings(max_examples=40, deadline=None)
@given(
    hidden=st.integers(1, 70),
    projection=st.none() | st.integers(1, 70),
    size=st.integers(1, 40),
    batch=st.integers(1, 20),
    steps=st.integers(1, 4),
)
@needs_library
def test_no_size_is_special(hidden: int, projection: int | None, size: int, batch: int, steps: int) -> None:
    kind: dict[str, Any] = {"hidden_size": hidden, "projection": projection, "input_size": size, "layers": 1}
    kind |= {"cell_clip": None, "projection_clip": None}
    slow, fast = make(fast=False, **kind).double(), make(**kind)
    x, state = inputs(fast, steps, batch)
    exact = everything(slow, x.double(), tuple(tensor.double() for tensor in state), None)
    for one, other in zip(everything(fast, x, state, None), exact, strict=True):
        assert_close(one, other)


def test_rows_that_never_start_keep_their_state_and_their_outputs_are_zero(build: str) -> None:
    stacks = make(**KINDS[0])
    x, state = inputs(stacks, 3, 5)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            run = stacks(x, state, [3, 3, 2])
        for before, after in zip(state, run.state, strict=True):
            assert torch.equal(before[3:], after[3:])
            assert not torch.equal(before[:3], after[:3])
        for layer in run.layers:
            for row, length in enumerate(lengths_of([3, 3, 2], 5).tolist()):
                assert (layer[:, length:, row] == 0).all()
                assert (layer[:, :length, row] != 0).any() or not length


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[3], {"hidden_size": 272, "projection": 130, "input_size": 260}])
def test_in_inference_a_row_is_the_same_to_the_bit_wherever_it_stands(build: str, kind: dict[str, Any]) -> None:
    stacks = make(**kind)
    x, state = inputs(stacks, 5, 40)
    with torch.no_grad():
        together = stacks(x, state)
        for rows in ([0], [39], [3, 17], [*range(39, 20, -1)]):
            some = stacks(x[:, :, rows], tuple(tensor[rows] for tensor in state))
            for one, other in zip(some.layers, together.layers, strict=True):
                assert torch.equal(one, other[:, :, rows])
            for one, other in zip(some.state, together.state, strict=True):
                assert torch.equal(one, other[rows])


@pytest.mark.usefixtures("threads")
def test_how_many_threads_there_are_changes_no_bit(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cpu.MIN_PARALLEL_WORK, 2, 0)
    stacks = make(**KINDS[3])
    x, state = inputs(stacks, 5, 60)
    found = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        found.append(everything(stacks, x, state, shrinking(5, 60)))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_stay_in_their_row(build: str, bad: float) -> None:
    stacks = make(**KINDS[2])
    x, state = inputs(stacks, 4, 9)
    clean = stacks(x, state).layers[-1].detach()
    x[:, 1, 4] = bad
    run = stacks(x.requires_grad_(), state).layers[-1]
    run.sum().backward()
    rest = [row for row in range(9) if row != 4]
    assert torch.equal(run[:, :, rest], clean[:, :, rest])
    assert torch.equal(run[:, 0], clean[:, 0])
    if bad != bad:
        assert run[:, 1:, 4].isnan().all()


def test_large_arguments_saturate(build: str) -> None:
    stacks = make(hidden_size=16, projection=None, input_size=16, layers=1, cell_clip=None)
    with torch.no_grad():
        for parameter in stacks.parameters():
            parameter.zero_()
        for size in (30.0, 100.0, 1e4, 3e38):
            stacks.stack[0].bias.fill_(size)
            y = stacks(torch.zeros(2, 1, 1, 16)).layers[0]
            torch.testing.assert_close(y, torch.full_like(y, 1.0).tanh(), rtol=0, atol=2e-7)
            stacks.stack[0].bias.fill_(-size)
            assert stacks(torch.zeros(2, 1, 1, 16)).layers[0].abs().max() < 1e-12


def test_a_graph_is_walked_back_only_once(build: str) -> None:
    stacks = make(**KINDS[0])
    loss = stacks(*inputs(stacks, 3, 2)).layers[-1].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(TypeError):
        loss.backward()


def test_an_input_of_another_size_is_refused(build: str) -> None:
    stacks = make(**KINDS[0])
    x, state = inputs(stacks, 3, 2)
    with pytest.raises(ValueError, match=r"x is \(2, 3, 2, 7\)"):
        stacks(x[..., :7], state)
    with pytest.raises(ValueError, match="h is"):
        stacks(x, stacks.initial_state(3))


@pytest.mark.slow
def test_with_the_variable_set_there_are_no_kernels_and_the_numbers_are_torchs() -> None:
    program = (
        "import torch; from relmo.nn.recurrence.elmo_lstm import ElmoLSTM; from relmo.nn.kernels import cpu\n"
        "torch.manual_seed(0); stacks = ElmoLSTM(input_size=8, hidden_size=12, projection=8, layers=2,"
        " skip_connections=True, cell_clip=3.0, projection_clip=3.0)\n"
        "run = stacks(torch.ones(2, 3, 2, 8)); run.layers[-1].sum().backward()\n"
        "print(cpu.library() is not None, run.layers[-1].detach().double().sum().item(),"
        " stacks.stack[0].weight_hh.grad.double().sum().item())"
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
    for one, other in zip(found["0"][1:], found["1"][1:], strict=True):
        assert float(one) == pytest.approx(float(other), abs=1e-5)


def test_float32_on_a_cpu_takes_the_kernels(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for module, name in ((lstm_cpu.CompiledRecurrence, "apply"), (lstm_cpu, "infer")):
        run = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, run=run, name=name, **b: (taken.append(name), run(*a, **b))[1])
    stacks = make(**KINDS[0])
    x, state = inputs(stacks, 3, 2)
    stacks(x, state)
    with torch.no_grad():
        stacks(x, state)
    assert taken == ["apply", "apply", "infer", "infer"]


def test_other_precisions_are_left_to_torch() -> None:
    assert not cpu.supports(torch.zeros(1, dtype=torch.float64))
    assert not cpu.supports(torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16))
    assert cpu.supports(torch.zeros(1)) == (cpu.library() is not None)
