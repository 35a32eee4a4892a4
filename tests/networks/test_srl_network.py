"""The network of semantic roles: predicates stand alone, padding has no influence, tags are legal, it learns by
heart."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax

from relmo.networks.inputs import IGNORED, Encoded
from relmo.networks.srl import Predicates, RoleScores, RoleTargets, SRLNetwork
from relmo.settings.tasks import SRLModelSettings
from relmo.text.readers.tagged import legal_transitions
from support.sentence_batches import assert_gradients_reach_everything, overfit, row, sentences

TAGS = ["O", "B-V", "I-V", "B-ARG0", "I-ARG0", "B-ARG1"]
LEGAL = torch.from_numpy(legal_transitions(TAGS))
PREDICATES = Predicates(torch.tensor([0, 0, 2]), torch.tensor([1, 3, 0]))  # of sentences of 4, 3 and 2 words
TARGETS = RoleTargets(
    torch.tensor([[3, 1, 5, 0], [0, 3, 4, 1], [1, 5, IGNORED, IGNORED]]),
    torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]),
)
LENGTHS = [4, 3, 2]


def make(*, elmo: int = 0, detector: int = 4, dropout: float = 0.0) -> SRLNetwork:
    torch.manual_seed(0)
    settings = SRLModelSettings(hidden=8, layers=3, mark_dim=3, dropout=dropout, detector=detector)
    return SRLNetwork(settings, input_size=6, legal=LEGAL, verb=1, elmo_size=elmo)


def scores(network: SRLNetwork, batch: Encoded, predicates: Predicates = PREDICATES) -> RoleScores:
    odds = None if network.detector is None else network.detector(batch)
    return RoleScores(predicates, network.label(batch, predicates), batch.lengths[predicates.rows], odds)


@pytest.mark.parametrize("elmo", [0, 2])
def test_a_predicate_is_labelled_alike_alone_and_among_others(elmo: int) -> None:
    network, batch = make(elmo=elmo).eval(), sentences(LENGTHS, elmo=elmo, padding=2)
    together = scores(network, batch)
    assert together.odds is not None
    for number, (sentence, place) in enumerate(zip(*(each.tolist() for each in PREDICATES), strict=True)):
        alone = row(batch, sentence)
        steps = alone.x.shape[1]
        tags = network.label(alone, Predicates(torch.tensor([0]), torch.tensor([place])))
        torch.testing.assert_close(tags[0], together.tags[number, :steps])
        torch.testing.assert_close(network.detector(alone)[0], together.odds[sentence, :steps])  # type: ignore[misc]
        assert together.odds[sentence, steps:].isneginf().all()


def test_the_mark_tells_predicates_of_one_sentence_apart() -> None:
    found = scores(make().eval(), sentences(LENGTHS)).tags
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_the_loss_is_the_mean_over_tags_and_over_words() -> None:
    network, batch = make().eval(), sentences(LENGTHS)
    found = scores(network, batch)
    assert found.odds is not None
    probabilities = log_softmax(found.tags, dim=2)
    tags = [
        -probabilities[p, t, tag]
        for p, each in enumerate(TARGETS.tags.tolist())
        for t, tag in enumerate(each)
        if tag >= 0
    ]
    words = [
        binary_cross_entropy_with_logits(found.odds[b, t], TARGETS.predicates[b, t].float())
        for b, length in enumerate(LENGTHS)
        for t in range(length)
    ]
    expected = torch.stack(tags).mean() + torch.stack(words).mean()
    torch.testing.assert_close(network.loss(found, TARGETS), expected)
    without = make(detector=0)
    torch.testing.assert_close(without.loss(found._replace(odds=None), TARGETS), torch.stack(tags).mean())


def test_gradients_reach_every_weight_and_a_batch_is_learnt_by_heart() -> None:
    network, batch = make(elmo=2), sentences(LENGTHS, elmo=2)
    assert_gradients_reach_everything(network, network.loss(scores(network, batch), TARGETS))
    overfit(network, lambda: network.loss(scores(network, batch), TARGETS), steps=60, rate=0.03)
    found = scores(network, batch)
    assert network.decode(found) == [[3, 1, 5, 0], [0, 3, 4, 1], [1, 5]]
    assert (found.odds > 0).nonzero().tolist() == [[0, 1], [0, 3], [2, 0]]  # type: ignore[operator]


def test_a_batch_without_predicates_has_a_loss_and_gradients() -> None:
    network, batch = make(), sentences(LENGTHS)
    none = Predicates(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    found = scores(network, batch, none)
    assert found.tags.shape == (0, 4, len(TAGS))
    loss = network.loss(found, RoleTargets(torch.zeros(0, 4, dtype=torch.int64), torch.zeros(3, 4)))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    assert network.decode(found) == []


def test_decoded_tags_are_legal_and_the_predicate_alone_is_its_verb() -> None:
    network = make()
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, 9, (50,), generator=generator)
    predicates = Predicates(torch.arange(50), places)
    wild = RoleScores(predicates, 5 * torch.randn(50, 9, len(TAGS), generator=generator), torch.full((50,), 9), None)
    before = wild.tags.clone()
    for place, tags in zip(places.tolist(), network.decode(wild), strict=True):
        assert [t for t, tag in enumerate(tags) if tag == 1] == [place]
        assert all(LEGAL[one, two] for one, two in pairwise([len(TAGS), *tags]))
    assert wild.tags.equal(before)


def test_where_nothing_is_learned_predicates_that_are_found_are_labelled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, network = sentences(LENGTHS), make()
    learning = network(batch, PREDICATES, detect=False)
    assert learning.predicates is PREDICATES
    with torch.no_grad():
        network.eval()
        whole = network(batch, PREDICATES, detect=True)
        chosen = [*zip(*(each.tolist() for each in whole.predicates), strict=True)]
        found = {(b, t) for b, t in (whole.odds > 0).nonzero().tolist()}
        assert chosen == sorted(found | {(0, 1), (0, 3), (2, 0)})  # each once, sentence by sentence
        monkeypatch.setattr("relmo.networks.srl.MAX_WORDS", 4)  # a predicate at a time
        torch.testing.assert_close(network(batch, PREDICATES, detect=True).tags, whole.tags)


def test_predicates_that_are_given_and_found_are_taken_once_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make().eval()
    odds = torch.tensor([[1.0, -1.0, -torch.inf], [-1.0, 2.0, 0.0]])
    monkeypatch.setattr(network.detector, "forward", lambda _: odds)
    given = Predicates(torch.tensor([1, 0]), torch.tensor([0, 0]))
    both = network(sentences([2, 3]), given, detect=True).predicates
    assert [each.tolist() for each in both] == [[0, 1, 1], [0, 0, 1]]
    assert odds[0, 1] == -1
