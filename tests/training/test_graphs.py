"""Recorded steps are the model's own: losses, gradients, random numbers, and what follows from a checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.networks.language_model import RecurrentLM
from relmo.settings.bilm import BiLMModelSettings, BiLMTrainSettings
from relmo.settings.lm import LanguageModelSettings
from relmo.settings.sections import TrainSettings
from relmo.text.characters import Spellings
from relmo.text.tokenize import words
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.batch import BiLanes, BiText, Lanes, map_tensors, move_to_device
from relmo.training.loop import GraphedLoss, Trainer

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
on_gpu = pytest.mark.gpu


def lanes(device: str, limit: int = 200) -> tuple[BiLanes, SentenceVocabulary]:
    """Some sentences of prose, eight side by side."""
    sentences = [words(line) for line in ALICE.read_text(encoding="utf-8").splitlines()[:limit] if line.strip()]
    lexicon = ["<S>", "</S>", "<UNK>", *sorted({word for sentence in sentences for word in sentence})]
    number = {word: i for i, word in enumerate(lexicon)}
    stream = np.array([i for sentence in sentences for i in (-1, *(number[word] for word in sentence))] + [-1])
    vocabulary = SentenceVocabulary(lexicon)
    text = BiText(stream, vocabulary, spellings=Spellings(lexicon, 16), margin=3, device=torch.device(device))
    return BiLanes(text, batch=8, unroll=6), vocabulary


def network(vocabulary: SentenceVocabulary, **changes: Any) -> BiLMNetwork:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "filters": ("1x4", "2x4", "3x8"),
        "char_dim": 4,
        "hidden": 48,
        "projection": 16,
        "samples": 64,
        "max_characters": 16,
    }
    return BiLMNetwork(BiLMModelSettings(**settings | changes), vocab_size=len(vocabulary)).train()


def test_a_copy_of_a_batch_has_the_same_shape_and_tensors_of_its_own() -> None:
    batch = BiWindow([torch.ones(2, 3), torch.zeros(1)], torch.arange(4), torch.arange(5))
    again = map_tensors(batch, torch.clone)
    assert isinstance(again, BiWindow)
    assert isinstance(again.words, list)
    originals: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []
    map_tensors(batch, originals.append)
    map_tensors(again, copies.append)
    assert len(originals) == 4
    assert all(torch.equal(a, b) and a is not b for a, b in zip(originals, copies, strict=True))


@on_gpu
@pytest.mark.parametrize("softmax", ["full", "sampled"])
def test_recorded_losses_and_gradients_are_those_of_plain_steps(softmax: str) -> None:
    batches, vocabulary = lanes("cuda")
    model = network(vocabulary, dropout=0.0, state_dropout=0.0, softmax=softmax, samples=len(vocabulary)).cuda()
    parameters = list(model.parameters())
    graphed = GraphedLoss(model.loss, parameters)
    carry = model.initial_state(8)
    for index in range(1, 6):
        batch = BiWindow(
            *([part.cuda() for part in p] if isinstance(p, list) else p.cuda() for p in batches.get(0, index))
        )
        found = graphed(batch, carry)
        gradients = [p.grad.clone() for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        loss = model.loss(batch, carry)
        loss.mean.backward()
        torch.testing.assert_close(found.mean, loss.mean.detach(), rtol=1e-5, atol=0)
        for a, b in zip(gradients, parameters, strict=True):
            assert (a - b.grad).norm() <= 1e-4 * b.grad.norm() + 1e-9
        for a, b in zip(found.carry, loss.carry, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
        carry = found.carry


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELMO_GRAPHS", "1")


LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"last_hidden": 16, "tied": True},
    "gru": {"cell": "gru"},
    "mogrifier": {"cell": "mogrifier", "cell_options": ("rank=4",)},
    "mixture": {"softmax": "mixture", "mixtures": 3, "tied": True},
    "sampled": {"softmax": "sampled", "samples": 30},
}
DROPOUTS = {"dropout": 0.2, "input_dropout": 0.2, "word_dropout": 0.1, "weight_drop": 0.3, "variational": True}
PENALTIES = {"activation_penalty": 2.0, "temporal_penalty": 1.0}


def language_model(name: str, **changes: Any) -> RecurrentLM:
    torch.manual_seed(0)
    options = {"layers": 2, "hidden": 32, "embedding": 16} | LANGUAGE_MODELS[name] | PENALTIES | changes
    return RecurrentLM(LanguageModelSettings(**options), vocab_size=30).train()


def text_lanes() -> Lanes:
    return Lanes(np.random.default_rng(0).integers(0, 30, 2500), batch=8, unroll=20, seed=1)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.usefixtures("enabled")
def test_steps_of_language_models_are_recorded_unless_something_in_them_waits(name: str) -> None:
    assert language_model(name, **DROPOUTS).graphs
    assert not language_model(name, dropout=0.2).graphs, "cuDNN draws its own masks"
    plain: dict[str, Any] = {"softmax": "adaptive", "tied": False, "mixtures": 10, "samples": 8192}
    assert not language_model(name, **plain).graphs


@on_gpu
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_recorded_losses_of_language_models_are_those_of_plain_steps(name: str) -> None:
    model, batches = language_model(name).cuda(), text_lanes()
    parameters = list(model.parameters())
    graphed = GraphedLoss(model.loss, parameters)
    carry = model.initial_state(8)
    for index in range(1, 6):
        batch = move_to_device(batches.get(0, index), torch.device("cuda"))
        torch.manual_seed(index)
        replayed = graphed(batch, carry)
        gradients = [p.grad.clone() for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        torch.manual_seed(index)
        loss = model.loss(batch, carry)
        loss.mean.backward()
        torch.testing.assert_close(replayed.mean, loss.mean.detach(), rtol=1e-5, atol=0)
        for a, b in zip(gradients, parameters, strict=True):
            assert (a - b.grad).norm() <= 1e-4 * b.grad.norm() + 1e-9
        torch.testing.assert_close(replayed.carry, loss.carry, rtol=0, atol=1e-5)
        carry = replayed.carry


@on_gpu
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.usefixtures("enabled")
def test_on_a_gpu_a_language_model_goes_on_from_its_state_to_the_same_bits(name: str) -> None:
    options: dict[str, Any] = {"optimizer": "sgd", "lr": 8.0, "decay": "constant", "validate_every": 2}
    settings = TrainSettings(epochs=2.0, average_after=1, precision="bfloat16", **options)

    def trainer() -> Trainer:
        validations = iter([2.0, 1.0, 3.0] * 20)
        return Trainer(language_model(name, **DROPOUTS).cuda(), text_lanes(), settings, lambda _: next(validations))

    unbroken = trainer()
    saved: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
    for step in unbroken.steps():
        if step.number == 12:
            tensors, values = unbroken.state()
            saved = {name: tensor.clone() for name, tensor in tensors.items()}, dict(values)
    assert unbroken.graphed is not None
    assert len(unbroken.graphed.steps) > 1
    assert unbroken.average_start
    resumed = trainer()
    assert saved is not None
    resumed.load_state(*saved)
    for _ in resumed.steps():
        pass
    for a, b in zip(unbroken.parameters + unbroken.average, resumed.parameters + resumed.average, strict=True):
        assert torch.equal(a, b)


@on_gpu
def test_every_replay_draws_its_own_random_numbers_and_recording_draws_none() -> None:
    batches, vocabulary = lanes("cuda")
    model = network(vocabulary, dropout=0.5).cuda()
    graphed = GraphedLoss(model.loss, list(model.parameters()))
    batch = move_to_device(batches.get(0, 1), torch.device("cuda"))
    carry = model.initial_state(8)
    torch.manual_seed(3)
    before = torch.cuda.get_rng_state()
    first, second = (graphed(batch, carry).mean.item() for _ in range(2))
    assert first != second
    torch.cuda.set_rng_state(before)
    assert graphed(batch, carry).mean.item() == first
    assert graphed(batch, carry).mean.item() == second


@on_gpu
def test_on_a_gpu_a_run_goes_on_from_its_state_to_the_same_bits() -> None:
    settings = BiLMTrainSettings(batch=8, unroll=6, epochs=2.0, precision="bfloat16", device="cuda")

    def trainer() -> Trainer:
        batches, vocabulary = lanes("cuda")
        return Trainer(network(vocabulary, dropout=0.1).cuda(), batches, settings)

    whole = trainer()
    saved: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
    for step in whole.steps():
        if step.number == 7:
            held, values = whole.state()
            saved = {name: tensor.clone() for name, tensor in held.items()}, dict(values)
    assert whole.graphed is not None
    assert whole.graphed.steps
    again = trainer()
    assert saved is not None
    again.load_state(*saved)
    for _ in again.steps():
        pass
    for a, b in zip(whole.parameters, again.parameters, strict=True):
        assert torch.equal(a, b)
