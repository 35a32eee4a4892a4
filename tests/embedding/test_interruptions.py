"""Ctrl-C at any step of embedding, and going on in the same process: no vector is wrong, nothing is locked."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from relmo.analysis.core import ablate
from relmo.embedding.engine import Embedder
from relmo.models.bilm import BiLM
from relmo.nn.kernels import cpu
from support.at_once import interrupted
from support.small_models import bilm

FIRST = [[f"a{i}", f"b{i % 3}", "c"] for i in range(7)]
SECOND = [["c", f"a{i}", f"d{i}", f"e{i % 2}"] for i in range(3, 10)]
SAMPLED = 30  # steps that are interrupted, of one or two thousand


def engine(model: BiLM, room: int) -> Embedder:
    """One with room for so many words, a third of their gates, and few steps in a chunk."""
    return Embedder(
        model.network,
        max_characters=model.settings.model.max_characters,
        precision=model.precision,
        cached_vectors=room,
        cached_gates=-(-room // 3),
        chunk_bytes=1 << 12,
    )


def interruptions(prepare: Callable[[], Any], work: Callable[[Any], object], sampled: int) -> Iterator[tuple[int, Any]]:
    """What `prepare` gives, after `work` on it was interrupted at a step: each of some steps in turn."""
    work(prepare())  # what is made of the weights is there then
    prepared = prepare()
    with interrupted(None) as steps:
        work(prepared)
    rng = random.Random(0)
    for step in sorted(rng.sample(range(1, steps.count), min(sampled, steps.count - 1))):
        prepared = prepare()
        with pytest.raises(KeyboardInterrupt), interrupted(step):
            work(prepared)
        yield step, prepared


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("room", "precision"), [(100, "float32"), (30, "float32"), (30, "int8")])
def test_words_that_were_being_added_when_it_was_interrupted_are_right_afterwards(room: int, precision: Any) -> None:
    """There is room for all words, or so little that some have to go."""
    model = bilm()
    model.precision = precision
    sentences = FIRST + SECOND
    expected = model.embed(sentences)
    order = random.Random(1).choices(range(len(sentences)), k=15)

    def prepared() -> BiLM:
        vars(model)["embedder"] = engine(model, room)
        model.embed(FIRST)
        return model

    for step, _ in interruptions(prepared, lambda model: model.embed(SECOND), SAMPLED):
        for i in order:  # one by one, so that words come and go
            assert same(model.embed([sentences[i]]), [expected[i]]), step


def test_an_interrupted_batch_leaves_the_carried_states_before_it_or_after_it() -> None:
    model = bilm()

    def carry(sentences: list[list[str]]) -> list[np.ndarray]:
        return model.embed(sentences, state="carry", batch_size=9)

    def prepared() -> BiLM:
        vars(model)["embedder"] = engine(model, 40)
        carry(FIRST)
        return model

    prepared()
    before, after = carry(SECOND), carry(SECOND)
    seen = set()
    for step, _ in interruptions(prepared, lambda _: carry(SECOND), SAMPLED):
        found = carry(SECOND)
        assert same(found, before) or same(found, after), step
        seen.add(same(found, before))
    assert True in seen


def test_states_that_are_reset_and_words_that_are_forgotten_lock_nobody_out() -> None:
    model = bilm()
    expected = model.embed(SECOND)

    def prepared() -> BiLM:
        vars(model)["embedder"] = engine(model, 40)
        model.embed(FIRST)
        return model

    def work(model: BiLM) -> None:
        model.reset_states()
        model.embedder.forget_words()
        model.embed(SECOND)

    for step, _ in interruptions(prepared, work, SAMPLED):
        assert not model.embedder.lock.locked(), step
        assert same(model.embed(SECOND), expected), step


def test_weights_that_have_changed_are_seen_though_it_was_interrupted() -> None:
    model = bilm()
    weight = model.network.lstm.stack[0].weight_ih

    def prepared() -> BiLM:
        vars(model)["embedder"] = engine(model, 40)
        model.embed(FIRST)
        with torch.no_grad():
            weight.mul_(1.01)
        return model

    for step, _ in interruptions(prepared, lambda model: model.embed(SECOND), SAMPLED):
        found = model.embed(FIRST + SECOND)
        vars(model)["embedder"] = engine(model, 100)
        assert same(found, model.embed(FIRST + SECOND)), step


def test_an_interruption_while_units_are_changed_leaves_the_network_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bilm()
    expected, calls, multiply = model.embed(FIRST), [], torch.Tensor.mul_

    def interrupt_once(tensor: torch.Tensor, factor: float) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return multiply(tensor, factor)

    monkeypatch.setattr(torch.Tensor, "mul_", interrupt_once)  # raises the version of the changed weights
    with pytest.raises(KeyboardInterrupt), ablate.intervene(model, 0, 1):
        raise AssertionError("the block is not entered")
    assert not ablate.ACTIVE_EDITS
    assert same(model.embed(FIRST), expected)


def test_nobody_is_left_at_work_when_an_interruption_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def work_on(_: int, start: int, stop: int) -> None:
        if start == 0:
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append((start, stop))

    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    size = cpu.MIN_ROWS
    with pytest.raises(KeyboardInterrupt):
        cpu.spread(work_on, 3 * size, 1 << 40, directions=1)
    assert sorted(ended) == [(size, 2 * size), (2 * size, 3 * size)]
