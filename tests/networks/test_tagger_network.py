"""The tagger's network: it learns by heart, and a sentence's tags are its own."""

import itertools

import pytest
import torch
from torch.nn.functional import log_softmax

from relmo.networks.inputs import IGNORED
from relmo.networks.sentence_encoder import Encoded
from relmo.networks.tagger import TaggerNetwork

LENGTHS = torch.tensor([4, 2, 1])
TAGS = torch.tensor([[0, 1, 2, 1], [2, 0, IGNORED, IGNORED], [1, IGNORED, IGNORED, IGNORED]])


@pytest.mark.parametrize("crf", [False, True])
def test_a_small_batch_is_learnt_by_heart(crf: bool) -> None:
    torch.manual_seed(0)
    x, again = torch.randn(3, 4, 5), torch.randn(3, 4, 2)
    network = TaggerNetwork(input_size=5, tags=3, hidden=16, layers=2, again_size=2, dropout=0.0, crf=crf)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        network.loss(network(Encoded(x, LENGTHS, again)), TAGS).backward()
        optimizer.step()
    found = network.decode(network(Encoded(x, LENGTHS, again)))
    assert [each.tags for each in found] == [[0, 1, 2, 1], [2, 0], [1]]


def test_the_softmax_loss_is_the_mean_over_words() -> None:
    torch.manual_seed(0)
    network = TaggerNetwork(input_size=5, tags=3, hidden=4)
    emissions = network.eval()(Encoded(torch.randn(3, 4, 5), LENGTHS))
    log_probs = log_softmax(emissions.scores, dim=2)
    terms = [-log_probs[b, t, TAGS[b, t]] for b in range(3) for t in range(int(LENGTHS[b]))]
    assert torch.allclose(network.loss(emissions, TAGS), torch.stack(terms).mean())


@pytest.mark.parametrize("crf", [False, True])
def test_a_sentence_is_tagged_alike_alone_and_among_longer_ones(crf: bool) -> None:
    torch.manual_seed(1)
    x, again = torch.randn(3, 4, 5), torch.randn(3, 4, 2)
    network = TaggerNetwork(input_size=5, tags=3, hidden=8, again_size=2, crf=crf).eval()
    together = network(Encoded(x, LENGTHS, again))
    for row, length in enumerate(LENGTHS.tolist()):
        alone = network(Encoded(x[row : row + 1, :length], LENGTHS[row : row + 1], again[row : row + 1, :length]))
        assert torch.allclose(alone.scores[0], together.scores[row, :length], atol=1e-5)
        one, among = network.decode(alone)[0], network.decode(together)[row]
        assert one.tags == among.tags
        assert one.each == pytest.approx(among.each, abs=1e-6)


def test_with_a_crf_no_illegal_sequence_is_chosen() -> None:
    torch.manual_seed(2)
    legal = torch.ones(5, 5, dtype=torch.bool)
    legal[0, 1] = legal[3, 2] = False  # 1 never after 0, no sentence begins with 2
    network = TaggerNetwork(input_size=5, tags=3, hidden=8, crf=True, legal=legal).eval()
    for tags in network.decode(network(Encoded(5 * torch.randn(40, 9, 5), torch.full((40,), 9)))):
        assert tags[0] != 2
        assert (0, 1) not in itertools.pairwise(tags)
