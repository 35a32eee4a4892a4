"""The training loop: schedule, clipping, accumulation and averaging as defined; stopped, it goes on to the bit."""

import copy
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from relmo.errors import RelmoError, SettingError
from relmo.networks.language_model import Loss, RecurrentLM
from relmo.settings.lm import LanguageModelSettings
from relmo.settings.sections import TrainSettings
from relmo.training import loop
from relmo.training.batch import Lanes
from relmo.training.loop import Step, Trainer, learning_rate, time_steps


class Line(nn.Module):
    """One vector w with the loss w . batch, whose gradient is the batch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))

    def loss(self, batch: Tensor, carry: Any) -> Loss:
        return Loss((self.w * batch).sum(), 1, ())


class Given:
    """Batches from a list."""

    def __init__(self, *batches: list[float]):
        self.batches = [torch.tensor(batch) for batch in batches]

    def __len__(self) -> int:
        return len(self.batches)

    def get(self, epoch: int, index: int) -> Tensor:
        return self.batches[index]


PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.5,
    "decay": "constant",
    "warmup": 0,
    "clip_norm": 0.0,
    "epochs": 1,
}


def line_trainer(*batches: list[float], validate: Callable[[nn.Module], float] | None = None, **more: Any) -> Trainer:
    return Trainer(Line(), Given(*batches), TrainSettings(**(PLAIN | more)), validate)


def weights(trainer: Trainer) -> Tensor:
    return trainer.parameters[0].detach().clone()


def rates(total: int, **chosen: Any) -> list[float]:
    settings = TrainSettings(**({"lr": 2.0, "warmup": 0, "decay": "constant"} | chosen))
    return [learning_rate(settings, step, total) for step in range(total)]


def test_the_rate_rises_in_equal_steps_to_its_full_height() -> None:
    assert rates(100, warmup=4)[:6] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_warm_up_takes_at_most_a_tenth_of_the_run() -> None:
    assert rates(20, warmup=1000)[:4] == [1.0, 2.0, 2.0, 2.0]
    assert rates(9, warmup=1000) == [2.0] * 9


def test_a_linear_rate_falls_by_the_same_amount_each_step_towards_its_end() -> None:
    assert rates(4, decay="linear") == [2.0, 1.5, 1.0, 0.5]
    assert rates(4, decay="linear", final_lr=0.5) == [2.0, 1.75, 1.5, 1.25]


def test_a_cosine_rate_is_half_way_down_in_the_middle() -> None:
    found = rates(101, decay="cosine", final_lr=0.1)
    assert found[0] == 2.0
    assert found == sorted(found, reverse=True)
    assert rates(100, decay="cosine")[50] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(0.2, abs=1e-2)


def test_the_rate_of_a_step_is_the_one_the_optimiser_used() -> None:
    trainer = line_trainer(*[[1.0, 0.0, 0.0]] * 4, decay="linear")
    before = weights(trainer)
    for step in trainer.steps():
        assert before[0] - weights(trainer)[0] == pytest.approx(step.lr)
        before = weights(trainer)
    assert step.number == 4


def test_a_gradient_above_the_threshold_is_scaled_to_it_and_counted() -> None:
    trainer = line_trainer([3.0, 4.0, 0.0], [0.3, 0.4, 0.0], [0.0, 0.0, 2.0], clip_norm=1.0)
    expected = [[0.6, 0.8, 0.0], [0.3, 0.4, 0.0], [0.0, 0.0, 1.0]]
    norms, counts = [], []
    for gradient in expected:
        before = weights(trainer)
        step = trainer._step()
        norms.append(float(step.norm))
        counts.append(int(step.clipped))
        assert torch.allclose(before - weights(trainer), 0.5 * torch.tensor(gradient), atol=1e-5)
    assert norms == pytest.approx([5.0, 0.5, 2.0])
    assert counts == [1, 1, 2]


def test_without_clipping_the_gradient_is_as_it_is_and_its_norm_still_told() -> None:
    trainer = line_trainer([3.0, 4.0, 0.0], clip_norm=0.0)
    (step,) = trainer.steps()
    assert float(step.norm) == pytest.approx(5.0)
    assert float(step.clipped) == 0
    assert weights(trainer).tolist() == pytest.approx([1.0 - 1.5, -2.0 - 2.0, 3.0])


def test_accumulation_steps_once_with_the_mean_of_the_gradients() -> None:
    trainer = line_trainer([2.0, 0.0, 0.0], [0.0, 4.0, 0.0], [6.0, 0.0, 0.0], [0.0, 0.0, 2.0], accumulate=2)
    steps = [(step, weights(trainer)) for step in trainer.steps()]
    assert [step.number for step, _ in steps] == [1, 2]
    first, second = (w for _, w in steps)
    assert torch.allclose(first, torch.tensor([1.0, -2.0, 3.0]) - 0.5 * torch.tensor([1.0, 2.0, 0.0]))
    assert torch.allclose(second, first - 0.5 * torch.tensor([3.0, 0.0, 1.0]))
    assert [step.predictions for step, _ in steps] == [2, 2]
    assert float(steps[0][0].loss) == pytest.approx((1.0 * 2 + -2.0 * 4) / 2)
    assert [step.epoch for step, _ in steps] == [0.5, 1.0]


def test_clipping_is_of_the_accumulated_gradient() -> None:
    trainer = line_trainer([4.0, 0.0, 0.0], [-4.0, 0.0, 0.0], accumulate=2, clip_norm=1.0)
    (step,) = trainer.steps()
    assert float(step.norm) == 0
    assert float(step.clipped) == 0


@pytest.mark.parametrize(
    ("epochs", "accumulate", "steps"), [(1, 1, 5), (2, 1, 10), (0.3, 1, 2), (1, 2, 3), (1e-9, 1, 1)]
)
def test_a_run_has_as_many_steps_as_the_epochs_need(epochs: float, accumulate: int, steps: int) -> None:
    trainer = line_trainer(*[[1.0, 0.0, 0.0]] * 5, epochs=epochs, accumulate=accumulate)
    assert len(list(trainer.steps())) == steps == trainer.total
    assert trainer.finished


def test_the_average_follows_its_definition_and_serves_validation_alone() -> None:
    seen: list[Tensor] = []
    trainer = line_trainer(
        *[[1.0, 1.0, 1.0]] * 30,
        average=0.8,
        validate_every=1,
        validate=lambda model: float(seen.append(model.w.detach().clone()) or 1.0),  # type: ignore[attr-defined,func-returns-value]
    )
    average = weights(trainer)
    for number, _ in enumerate(trainer.steps()):
        decay = min(0.8, (1 + number) / (10 + number))
        average = decay * average + (1 - decay) * weights(trainer)
        assert torch.allclose(seen[-1], average, atol=1e-5)
        assert not torch.allclose(seen[-1], weights(trainer))
    with trainer.averaged_weights():
        assert torch.equal(weights(trainer), seen[-1])
    assert weights(trainer)[0] == pytest.approx(1.0 - 30 * 0.5)


def test_an_error_within_averaged_puts_the_weights_back() -> None:
    trainer = line_trainer([1.0, 1.0, 1.0], average=0.5)
    trainer._step()
    before = weights(trainer)

    def broken() -> None:
        with trainer.averaged_weights():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert torch.equal(weights(trainer), before)


def validated(values: list[float], **more: Any) -> list[Step]:
    left = iter(values)
    batches = [[1.0, 0.0, 0.0]] * 12
    return list(line_trainer(*batches, validate=lambda model: next(left), **({"validate_every": 2} | more)).steps())


def test_validation_comes_every_so_often_and_at_the_end() -> None:
    steps = validated([5.0, 4.0, 4.5], validate_every=5)
    assert [(s.number, s.valid, s.is_best) for s in steps if s.valid is not None] == [
        (5, 5.0, True),
        (10, 4.0, True),
        (12, 4.5, False),
    ]


def test_validation_comes_at_the_end_of_every_epoch_where_not_said_otherwise() -> None:
    steps = validated([3.0, 2.0, 1.0], validate_every=None, epochs=2.5)
    assert [s.number for s in steps if s.valid is not None] == [12, 24, 30]


def test_training_stops_when_patience_is_at_its_end() -> None:
    steps = validated([5.0, 6.0, 4.0, 4.0, 4.0, 1.0], patience=2)
    assert [s.valid for s in steps if s.valid is not None] == [5.0, 6.0, 4.0, 4.0, 4.0]
    assert [s.number for s in steps if s.is_best] == [2, 6]
    assert len(validated([5.0, 6.0, 4.0, 4.0, 4.0, 1.0], patience=3)) == 12


class WithPart(Line):
    """Notes the mode of a part at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.modes = nn.Dropout(), list[bool]()

    def loss(self, batch: Tensor, carry: Any) -> Loss:
        self.modes.append(self.part.training)
        return super().loss(batch, carry)


def test_a_validation_of_a_part_leaves_no_part_out_of_training() -> None:
    """As where a taught network is validated by itself."""
    model = WithPart()
    settings = TrainSettings(**(PLAIN | {"epochs": 3, "validate_every": 1}))
    list(Trainer(model, Given([1.0, 0.0, 0.0]), settings, lambda _: model.part.eval().p).steps())
    assert model.modes == [True] * 3


def test_a_validation_loss_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(RelmoError, match="lower --lr"):
        validated([math.nan])


TEXT = np.tile(np.array([2, 3, 4, 5, 6, 3, 2, 4, 4, 5]), 60).astype(np.uint16)


def network_trainer(model: dict[str, Any], **train: Any) -> Trainer:
    torch.manual_seed(0)
    network = RecurrentLM(LanguageModelSettings(**({"hidden": 8, "embedding": 5} | model)), vocab_size=8)
    lanes = Lanes(TEXT, batch=4, unroll=10, seed=2 if train.get("vary_unroll") else None)

    def validate(model: nn.Module) -> float:
        window = lanes.get(0, 3)
        model.eval()
        with torch.no_grad():
            return float(model.loss(window, None).mean)  # type: ignore[operator]

    settings = TrainSettings(**({"epochs": 2, "warmup": 2, "validate_every": 7} | train))
    return Trainer(network, lanes, settings, validate)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "lr": 0.02, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "lr": 0.02},
    "muon": {"optimizer": "muon", "lr": 0.02},
    "sgd": {"optimizer": "sgd", "lr": 1.0},
    "sgd with momentum": {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "weight_decay": 1e-4},
    "adagrad": {"optimizer": "adagrad", "lr": 0.5},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_lowers_the_loss(name: str) -> None:
    losses = [float(step.loss) for step in network_trainer({}, epochs=3, **OPTIMIZERS[name]).steps()]
    assert losses[-1] < 0.75 * losses[0]


def test_weight_decay_spares_biases() -> None:
    trainer = network_trainer({}, optimizer="adamw", weight_decay=0.5)
    decayed = {id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}
    assert len(decayed) == len(trainer.parameters)
    assert all(decayed[id(p)] == (0.5 if p.dim() > 1 else 0.0) for p in trainer.parameters)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: ({"dropout": 0.2}, options) for name, options in OPTIMIZERS.items()},
    "no dropout": ({}, {}),
    "every dropout": (
        {
            "layers": 2,
            "dropout": 0.2,
            "input_dropout": 0.1,
            "word_dropout": 0.1,
            "weight_drop": 0.2,
            "variational": True,
        },
        {},
    ),
    "mogrifier": (
        {
            "cell": "mogrifier",
            "cell_options": ("rank=3",),
            "layers": 2,
            "last_hidden": 5,
            "tied": True,
            "dropout": 0.2,
            "input_dropout": 0.1,
            "word_dropout": 0.1,
            "weight_drop": 0.2,
            "variational": True,
        },
        {},
    ),
    "average": ({"dropout": 0.2}, {"average": 0.9}),
    "accumulate": ({"dropout": 0.2}, {"accumulate": 2}),
    "average and accumulate": ({"cell": "gru", "dropout": 0.2}, {"average": 0.9, "accumulate": 3, "optimizer": "sgd"}),
    "bfloat16": ({"dropout": 0.2}, {"precision": "bfloat16"}),
    "patience": ({"dropout": 0.2}, {"patience": 1, "lr": 1.0, "clip_norm": 0.0}),
    "sampled": ({"softmax": "sampled", "samples": 3}, {}),
    "adaptive": ({"softmax": "adaptive", "cutoffs": (3,)}, {}),
    "tied": ({"tied": True, "dropout": 0.2}, {}),
    "penalties": ({"activation_penalty": 2.0, "temporal_penalty": 1.0, "output_dropout": 0.3}, {}),
    "mixture": ({"softmax": "mixture", "mixtures": 3, "mixture_dropout": 0.3, "tied": True, "variational": True}, {}),
    "triggered average": (
        {"dropout": 0.2},
        {"optimizer": "sgd", "lr": 8.0, "decay": "constant", "average_after": 1, "validate_every": 2, "clip_norm": 0.0},
    ),
    "varied windows": ({"dropout": 0.2}, {"vary_unroll": True, "optimizer": "sgd", "accumulate": 2}),
}


TRIGGERED = CASES["triggered average"][1]


def test_a_triggered_average_is_averaged_sgd_from_the_first_validation_that_is_worse_than_an_old_one() -> None:
    """As in the authors' loop: plain SGD, a list of validations, and the mean of all weights since the trigger."""
    number_of_checks = 3
    trainer = network_trainer({}, **TRIGGERED | {"average_after": number_of_checks, "epochs": 4, "warmup": 0})
    reference = network_trainer({}, **TRIGGERED | {"average_after": None, "epochs": 4, "warmup": 0})
    model, lanes, carry = reference.model, reference.batches, None
    assert reference.validate is not None
    validations: list[float] = []
    iterates: list[list[Tensor]] = []  # since the trigger
    triggered_at = 0
    for number, step in enumerate(trainer.steps(), start=1):
        model.train()
        loss = model.loss(lanes.get(0, (number - 1) % len(lanes)), carry if (number - 1) % len(lanes) else None)  # type: ignore[operator]
        carry = loss.carry
        model.zero_grad()
        loss.mean.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 8.0 * parameter.grad
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        if triggered_at:
            iterates.append(weights)
        if number % 2:
            continue
        with torch.no_grad():
            for parameter, *values in zip(model.parameters(), *iterates, strict=True):
                if values:
                    parameter.copy_(torch.stack(values).double().mean(dim=0))
        valid = reference.validate(model)
        torch.testing.assert_close(step.valid, valid, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), weights, strict=True):
                parameter.copy_(value)
        if not triggered_at and len(validations) > number_of_checks and valid > min(validations[:-number_of_checks]):
            triggered_at, iterates = number, [weights]
        validations.append(valid)
        assert int(trainer.average_start) == triggered_at
    assert 2 * number_of_checks < triggered_at < number - 20
    with trainer.averaged_weights():
        for parameter, *values in zip(trainer.parameters, *iterates, strict=True):
            torch.testing.assert_close(parameter.detach(), torch.stack(values).mean(dim=0), rtol=1e-3, atol=1e-4)
    assert min(validations[-3:]) < min(validations[: triggered_at // 2]), "the average is better"


def test_a_triggered_average_needs_validation_and_excludes_a_moving_one() -> None:
    with pytest.raises(SettingError, match="average_after needs validation"):
        line_trainer([1.0, 0.0, 0.0], average_after=2)
    with pytest.raises(SettingError, match="average_after has no effect with average"):
        TrainSettings(average=0.9, average_after=2).check()


def test_a_checkpoint_whose_average_starts_after_it_is_refused() -> None:
    trainer = network_trainer({}, **TRIGGERED)
    trainer._step()
    tensors, values = copy.deepcopy(trainer.state())
    assert trainer.find_mismatch(tensors) is trainer.find_problem(tensors, values) is None
    tensors["average_start"].fill_(2)
    assert "average" in str(trainer.find_problem(tensors, values))


def test_the_rate_of_a_varied_window_is_in_proportion_to_its_length() -> None:
    train: dict[str, Any] = {"vary_unroll": True, "decay": "constant", "warmup": 0, "lr": 0.5}
    trainer = network_trainer({}, **train)
    lengths = [trainer.batches.get(*divmod(i, len(trainer.batches))).inputs.shape[1] for i in range(trainer.total)]
    assert len(set(lengths)) > 2
    assert [step.lr for step in trainer.steps()] == pytest.approx([0.5 * length / 10 for length in lengths])
    pairs = [sum(lengths[i : i + 2]) / 2 for i in range(0, len(lengths), 2)]
    both = network_trainer({}, accumulate=2, **train)
    assert [step.lr for step in both.steps()][: len(pairs) - 1] == pytest.approx([0.5 * n / 10 for n in pairs[:-1]])


def record(step: Step) -> list[float | None]:
    return [step.number, step.lr, float(step.loss), float(step.norm), float(step.clipped), step.valid, step.is_best]


@pytest.mark.parametrize("name", CASES)
def test_a_run_stopped_in_the_middle_goes_on_to_the_bit(name: str) -> None:
    model, train = CASES[name]
    unbroken = network_trainer(model, **train)
    expected = [record(step) for step in unbroken.steps()]
    for stop in (0, 1, 7, len(expected) // 2, len(expected)):
        first = network_trainer(model, **train)
        found = [record(step) for _, step in zip(range(stop), first.steps(), strict=False)]
        state = copy.deepcopy(first.state())
        for _ in zip(range(3), first.steps(), strict=False):  # what comes after the checkpoint is lost
            pass
        second = network_trainer(model, **train)
        torch.manual_seed(1000 + stop)
        second.load_state(*state)
        found += [record(step) for step in second.steps()]
        assert found == expected
        for one, other in zip(second.state()[0].items(), unbroken.state()[0].items(), strict=True):
            assert one[0] == other[0]
            assert torch.equal(one[1], other[1]), one[0]


def test_a_run_of_minutes_keeps_the_number_of_steps_that_it_was_given() -> None:
    first = network_trainer({}, minutes=1.0)
    first.set_total_steps(9)
    steps = first.steps()
    lrs = [next(steps).lr for _ in range(4)]
    state = copy.deepcopy(first.state())
    lrs += [step.lr for step in steps]
    assert len(lrs) == 9
    assert lrs == [learning_rate(first.settings, i, 9) for i in range(9)]
    second = network_trainer({}, minutes=1.0)
    assert second.find_problem(*state) is None
    second.load_state(*state)
    assert [step.lr for step in second.steps()] == lrs[4:]
    for wrong in (None, 3, 10**400):
        assert second.find_problem(state[0], state[1] | {"total": wrong}) is not None


def test_the_plan_of_a_run_of_minutes_has_as_many_steps_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "time_steps", lambda trainer: 0.5)
    trainer = network_trainer({}, minutes=2.0)
    made = loop.make_plan(trainer, 1, "words")
    assert made.steps == trainer.total == 240
    assert made.seconds == pytest.approx(120)


def test_the_state_is_that_of_the_moment_and_holds_the_carried_state() -> None:
    trainer = network_trainer({"layers": 2})
    assert not any(name.startswith("carry") for name in trainer.state()[0])
    trainer._step()
    tensors, values = trainer.state()
    carried = [tensor for name, tensor in tensors.items() if name.startswith("carry")]
    assert len(carried) == len(trainer.carry or ()) > 0
    assert any(tensor.any() for tensor in carried)
    assert values["step"] == 1


def test_the_state_is_carried_within_an_epoch_and_not_beyond() -> None:
    carries: list[bool] = []

    class Spy(Line):
        def loss(self, batch: Tensor, carry: Any) -> Loss:
            carries.append(carry is not None)
            return super().loss(batch, carry)

    trainer = Trainer(Spy(), Given(*[[1.0, 0.0, 0.0]] * 3), TrainSettings(**(PLAIN | {"epochs": 2})))
    list(trainer.steps())
    assert carries == [False, True, True, False, True, True]


def test_the_seed_decides_what_dropout_drops() -> None:
    losses = [[float(s.loss) for s in network_trainer({"dropout": 0.5}, seed=seed).steps()] for seed in (1, 1, 2)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def workers() -> list[str]:
    """The threads that make batches."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.mark.parametrize("name", ["no dropout", "accumulate", "every dropout", "patience"])
@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_made_ahead_change_nothing(name: str, ahead: int) -> None:
    model, train = CASES[name]
    expected = [record(step) for step in network_trainer(model, **train).steps()]
    first = network_trainer(model, **train)
    first.prefetch = ahead
    found = [record(step) for _, step in zip(range(5), first.steps(), strict=False)]
    state = copy.deepcopy(first.state())
    second = network_trainer(model, **train)
    second.prefetch = ahead
    second.load_state(*state)
    assert found + [record(step) for step in second.steps()] == expected
    assert not workers()


class Asked(Given):
    """Batches from a list, which keeps what was asked of it and by whom, and breaks at one place."""

    def __init__(self, count: int, broken: int | None = None):
        super().__init__(*[[1.0, 0.0, 0.0]] * count)
        self.broken = broken
        self.asked: list[tuple[int, int]] = []
        self.threads: set[str] = set()

    def get(self, epoch: int, index: int) -> Tensor:
        self.asked.append((epoch, index))
        self.threads.add(threading.current_thread().name)
        if index == self.broken:
            raise RelmoError("no such batch")
        return super().get(epoch, index)


def asked_trainer(batches: Asked, ahead: int, **more: Any) -> Trainer:
    return Trainer(Line(), batches, TrainSettings(**(PLAIN | more)), prefetch=ahead)


@pytest.mark.parametrize("ahead", [0, 1, 3, 100])
def test_each_batch_is_made_once_in_order_and_none_beyond_the_end(ahead: int) -> None:
    batches = Asked(5)
    steps = list(asked_trainer(batches, ahead, epochs=1.6).steps())
    assert len(steps) == 8
    assert batches.asked == [divmod(place, 5) for place in range(8)]
    (thread,) = batches.threads
    assert thread.startswith("batches") == (ahead > 0)


def test_batches_are_made_while_a_step_is_looked_at_and_no_more_than_so_many() -> None:
    batches = Asked(20)
    steps = asked_trainer(batches, 3).steps()
    next(steps)
    while len(batches.asked) < 4:
        time.sleep(0.001)
    time.sleep(0.01)  # in which one more could come
    assert len(batches.asked) == 4
    assert workers()
    steps.close()
    assert not workers()


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_in_making_a_batch_is_raised_at_its_step_and_leaves_no_thread(ahead: int) -> None:
    trainer = asked_trainer(Asked(9, broken=4), ahead)
    done = []
    with pytest.raises(RelmoError, match="no such batch"):
        done.extend(step.number for step in trainer.steps())
    assert trainer.number == 4
    assert not workers()


def test_a_cpu_makes_no_batches_ahead() -> None:
    assert line_trainer([1.0, 0.0, 0.0]).prefetch == 0


class TwoLines(nn.Module):
    """Two vectors, each with the loss w . batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Line(), Line()

    def loss(self, batch: Tensor, carry: Any) -> Loss:
        return Loss(self.a.loss(batch, carry).mean + self.b.loss(batch, carry).mean, 1, ())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_frozen_parameters_take_no_step_no_decay_and_no_part_in_the_norm_until_they_thaw(optimizer: str) -> None:
    model = TwoLines()
    asked: list[float] = []

    def frozen(epoch: float) -> list[nn.Parameter]:
        asked.append(epoch)
        return [model.b.w] if epoch < 1.5 else []

    settings = TrainSettings(**(PLAIN | {"optimizer": optimizer, "epochs": 2, "weight_decay": 0.1, "momentum": 0.0}))
    trainer = Trainer(model, Given([3.0, 4.0, 0.0], [3.0, 4.0, 0.0]), settings, frozen=frozen)
    start, norms, moved = model.b.w.detach().clone(), [], []
    for step in trainer.steps():
        norms.append(float(step.norm))
        moved.append(not torch.equal(model.b.w, start))
    assert asked == [0.0, 0.5, 1.0, 1.5]
    assert norms == pytest.approx([5.0, 5.0, 5.0, math.hypot(5.0, 5.0)])
    assert moved == [False, False, False, True]
    assert not torch.equal(model.a.w, start)


def test_a_run_stopped_while_parameters_are_frozen_goes_on_to_the_bit() -> None:
    def make() -> Trainer:
        model = TwoLines()
        settings = TrainSettings(**(PLAIN | {"optimizer": "adam", "epochs": 3}))
        batches = Given([3.0, 4.0, 0.0], [1.0, -1.0, 2.0])
        return Trainer(model, batches, settings, frozen=lambda epoch: [model.b.w] if epoch < 2 else [])

    unbroken, stopped, resumed = make(), make(), make()
    list(unbroken.steps())
    for step in stopped.steps():
        if step.number == 3:
            break
    resumed.load_state(*copy.deepcopy(stopped.state()))
    list(resumed.steps())
    for found, wanted in zip(resumed.parameters, unbroken.parameters, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("optimizer", ["adam", "muon", "adagrad", "sgd"])
def test_a_rehearsal_trains_as_the_run_does_and_leaves_no_trace(optimizer: str) -> None:
    ids = np.random.default_rng(0).integers(0, 9, 400)
    settings = TrainSettings(optimizer=optimizer, batch=4, unroll=5, epochs=2, average=0.9, momentum=0.5)  # type: ignore[arg-type]
    network = RecurrentLM(LanguageModelSettings(hidden=6, embedding=4, dropout=0.3), vocab_size=9)
    trainer = Trainer(network, Lanes(ids, batch=4, unroll=5), settings)
    twin = copy.deepcopy(network)
    modes: list[bool] = []
    loss = trainer.loss
    trainer.loss = lambda batch, carry: modes.append(network.training) or loss(batch, carry)  # type: ignore[assignment]
    network.eval()  # as one finds it that was loaded
    random = torch.get_rng_state()
    assert time_steps(trainer) > 0
    assert modes
    assert all(modes)
    assert torch.equal(torch.get_rng_state(), random)
    assert trainer.number == 0
    steps = list(trainer.steps())
    fresh = Trainer(twin, Lanes(ids, batch=4, unroll=5), settings)
    for one, other in zip(steps, fresh.steps(), strict=True):
        assert torch.equal(one.loss, other.loss)
        assert torch.equal(one.norm, other.norm)
    for one, other in zip(trainer.parameters, fresh.parameters, strict=True):
        assert torch.equal(one, other)
