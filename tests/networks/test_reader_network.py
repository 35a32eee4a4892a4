"""The reader's network: what it does not depend on, what it learns, and the spans that are chosen from its scores."""

from itertools import combinations_with_replacement

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relmo.networks.inputs import Encoded
from relmo.networks.reader import SpanReader, SpanScores, best_spans
from relmo.settings.tasks import ReaderModelSettings
from support.sentence_batches import assert_gradients_reach_everything, make_network, overfit, row, sentences

PASSAGES, QUESTIONS, WHICH = [6, 1, 9, 0], [2, 4, 3, 1, 5, 0], torch.tensor([0, 2, 2, 1, 3, 0])


def network(**more: int | float | str) -> SpanReader:
    torch.manual_seed(0)
    return make_network(SpanReader, ReaderModelSettings, **({"input_size": 6, "hidden": 5} | more))


def texts(elmo: int = 0, padding: int = 0) -> tuple[Encoded, Encoded]:
    options = {"elmo": elmo, "padding": padding}
    return sentences(PASSAGES, seed=1, **options), sentences(QUESTIONS, seed=2, **options)


@pytest.mark.parametrize("elmo", [0, 4])
@pytest.mark.parametrize("padding", [0, 3])
def test_an_answer_depends_on_its_passage_and_its_question_alone(elmo: int, padding: int) -> None:
    reader = network(elmo_size=elmo).eval()
    with torch.no_grad():
        for parameter in reader.parameters():  # biases begin as zeros, which would hide a padded word
            parameter.add_(0.1 * torch.randn_like(parameter))
        passages, questions = texts(elmo, padding)
        together = reader(passages, questions, WHICH)
        for question, passage in enumerate(WHICH.tolist()):
            length = PASSAGES[passage]
            if not length:
                continue
            alone = reader(row(passages, passage), row(questions, question), torch.tensor([0]))
            for mine, all_of_them in zip(alone, together, strict=True):
                torch.testing.assert_close(mine[0], all_of_them[question, :length], rtol=1e-5, atol=1e-5)
                assert mine[0].exp().sum() == pytest.approx(1, abs=1e-5)
    assert together.start.isfinite().all()


def test_gradients_reach_every_weight_and_are_finite_with_empty_texts() -> None:
    reader = network(elmo_size=4)
    targets = torch.tensor([[1, 3], [0, 8], [4, 4], [0, 0], [0, 0], [2, 2]])
    assert_gradients_reach_everything(reader, reader.loss(reader(*texts(elmo=4), WHICH), targets))


def test_the_loss_is_that_of_both_ends() -> None:
    start, end = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), torch.tensor([[0.2, 0.2, 0.6], [0.3, 0.3, 0.4]])
    found = network().loss(SpanScores(start.log(), end.log()), torch.tensor([[0, 2], [1, 1]]))
    assert found.exp() == pytest.approx((1 / 0.5 / 0.6 / 0.8 / 0.3) ** 0.5)


def test_answers_drawn_at_random_are_learned_by_heart() -> None:
    reader = network(hidden=16, dropout=0.0)
    passages, questions = sentences([7, 5, 6], seed=3), sentences([3] * 6, seed=4)
    which = torch.arange(6) % 3
    targets = torch.tensor([[0, 1], [4, 4], [2, 5], [6, 6], [1, 3], [0, 0]])
    overfit(reader, lambda: reader.loss(reader(passages, questions, which), targets), steps=50, rate=0.02)
    spans = best_spans(reader(passages, questions, which), passages.lengths[which], longest=4)
    assert torch.stack([spans.first, spans.last], dim=2)[:, 0].tolist() == targets.tolist()


def test_elmo_beside_the_encoders_output_is_looked_at_in_passage_and_question() -> None:
    reader = network(elmo_size=4).eval()
    passages, questions = texts(elmo=4)
    before = reader(passages, questions, WHICH).start[0, :6]
    for one in (0, 1):
        changed = [passages, questions]
        vectors = changed[one].elmo
        assert vectors is not None
        changed[one] = changed[one]._replace(elmo=vectors + 1)
        assert (reader(*changed, WHICH).start[0, :6] - before).abs().max() > 1e-4


@given(st.data())
def test_the_best_spans_are_those_of_trying_all(data: st.DataObject) -> None:
    length, padding, longest = (data.draw(st.integers(low, high)) for low, high in ((0, 7), (0, 3), (1, 5)))
    steps, count = max(length + padding, 1), data.draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 20)))
    scores = SpanScores(*(torch.rand(1, steps, generator=generator).log() for _ in range(2)))
    found = best_spans(scores, torch.tensor([length]), longest=longest, count=count)

    allowed = [(i, j) for i, j in combinations_with_replacement(range(length), 2) if j - i < longest]
    expected = []
    for i, j in sorted(allowed, key=lambda span: -(scores.start[0, span[0]] + scores.end[0, span[1]])):
        if all(j < first or i > last for first, last in expected) and len(expected) < count:
            expected.append((i, j))
    there = found.score[0] > -torch.inf
    chosen = list(zip(found.first[0][there].tolist(), found.last[0][there].tolist(), strict=True))
    assert chosen == expected
    for (i, j), score in zip(expected, found.score[0].tolist(), strict=False):
        assert score == pytest.approx(float(scores.start[0, i] + scores.end[0, j]))
