"""What a decoder expects and looks at, step by step, is what it does when it is stepped through."""

from typing import Any

import numpy as np
import pytest
import torch

from relmo.settings.tasks import (
    Seq2SeqInputSettings,
    Seq2SeqModelSettings,
    Seq2SeqSettings,
    Seq2SeqTextSettings,
    Seq2SeqTrainSettings,
)
from relmo.tasks.seq2seq import Seq2Seq, decoder_steps
from relmo.text.readers.parallel import TextToText
from relmo.training.batch import move_to_device

PAIRS = [TextToText("the cat sat", ["le chat"]), TextToText("a black cat", ["un chat noir"])]


def untaught(**model: Any) -> Seq2Seq:
    torch.manual_seed(4)
    settings = Seq2SeqSettings(
        text=Seq2SeqTextSettings(metric="exact"),
        input=Seq2SeqInputSettings(word_dim=6),
        model=Seq2SeqModelSettings(**({"hidden": 7, "target_dim": 5, "dropout": 0.3} | model)),
        train=Seq2SeqTrainSettings(),
    )
    made = Seq2Seq.prepare(settings, PAIRS, torch.device("cpu")).initialize()
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter.mul_(3.0)
    return made


@torch.no_grad()
def stepped(model: Seq2Seq, source: TextToText, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """A unit at a time, as a search does: the distributions, and what each step adds to what was covered."""
    network: Any = model.network
    read = network(move_to_device(model.encode([source]).batch(np.array([0])), model.device))
    state, log_probs, covered = network.body.initial_state(read), [], [np.zeros(read.mask.shape[1])]
    for unit in [model.targets.end, *ids]:
        found, state = network.body.step(torch.tensor([unit]), state, read)
        log_probs.append(found[0].numpy())
        covered.append(state[-1][0].numpy())
    return np.stack(log_probs), np.diff(np.stack(covered), axis=0)


@pytest.mark.parametrize("options", [{}, {"input_feeding": True}, {"attention": "dot", "cell": "gru", "layers": 2}])
def test_steps_are_those_of_a_decoder_that_is_stepped_through(options: dict[str, Any]) -> None:
    model, source = untaught(**options), TextToText("the black cat", [])
    texts = [[2, 3, 4], [], [3, 3, 3, 2, 4]]
    for ids, found in zip(texts, decoder_steps(model, source, texts), strict=True):
        log_probs, attention = stepped(model, source, ids)
        np.testing.assert_allclose(found.log_probs, log_probs, atol=1e-5)
        assert found.attention is not None
        np.testing.assert_allclose(found.attention, attention, atol=1e-5)
        np.testing.assert_allclose(found.attention.sum(axis=1), 1.0, atol=1e-5)


def test_the_steps_of_a_candidate_sum_to_its_probability_whether_it_ended_or_was_cut_off() -> None:
    model, ended = untaught(attention="none"), set()
    for limit in (1, 8):
        found = model.predict(["the cat"], beams=4, best=4, limit=limit, attention=False)[0].candidates
        every = decoder_steps(model, model.make_example("the cat"), [each.ids for each in found])
        for each, steps in zip(found, every, strict=True):
            assert steps.attention is None
            ids = [*each.ids, *([model.targets.end] if each.ended else [])]
            assert steps.log_probs[range(len(ids)), ids].sum() == pytest.approx(each.log_prob, abs=1e-4)
            assert [model.targets.symbols[i] for i in each.ids] == each.units
            ended.add(each.ended)
    assert ended == {True, False}
