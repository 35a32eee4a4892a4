"""The tagger's network: it learns by heart, and a sentence's tags are its own."""

import itertools
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

from relmo.networks.inputs import IGNORED, Encoded
from relmo.networks.tagger import TaggerNetwork
from relmo.settings.tasks import TaggerModelSettings

LENGTHS = torch.tensor([4, 2, 1])
TAGS = torch.tensor([[0, 1, 2, 1], [2, 0, IGNORED, IGNORED], [1, IGNORED, IGNORED, IGNORED]])


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_a_small_batch_is_learnt_by_heart(decoder: Any) -> None:
    torch.manual_seed(0)
    x, elmo = torch.randn(3, 4, 5), torch.randn(3, 4, 2)
    settings = TaggerModelSettings(hidden=16, layers=2, dropout=0.0, decoder=decoder)
    network = TaggerNetwork(settings, input_size=5, num_tags=3, elmo_size=2)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        network.loss(network(Encoded(x, LENGTHS, elmo)), TAGS).backward()
        optimizer.step()
    found = network.decode(network(Encoded(x, LENGTHS, elmo)))
    assert [each.tags for each in found] == [[0, 1, 2, 1], [2, 0], [1]]


def test_the_softmax_loss_is_the_mean_over_words() -> None:
    torch.manual_seed(0)
    network = TaggerNetwork(TaggerModelSettings(hidden=4), input_size=5, num_tags=3)
    emissions = network.eval()(Encoded(torch.randn(3, 4, 5), LENGTHS))
    log_probs = log_softmax(emissions.scores, dim=2)
    terms = [-log_probs[b, t, TAGS[b, t]] for b in range(3) for t in range(int(LENGTHS[b]))]
    assert torch.allclose(network.loss(emissions, TAGS), torch.stack(terms).mean())


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_a_sentence_is_tagged_alike_alone_and_among_longer_ones(decoder: Any) -> None:
    torch.manual_seed(1)
    x, elmo = torch.randn(3, 4, 5), torch.randn(3, 4, 2)
    settings = TaggerModelSettings(hidden=8, decoder=decoder)
    network = TaggerNetwork(settings, input_size=5, num_tags=3, elmo_size=2).eval()
    together = network(Encoded(x, LENGTHS, elmo))
    for row, length in enumerate(LENGTHS.tolist()):
        alone = network(Encoded(x[row : row + 1, :length], LENGTHS[row : row + 1], elmo[row : row + 1, :length]))
        assert torch.allclose(alone.scores[0], together.scores[row, :length], atol=1e-5)
        one, among = network.decode(alone)[0], network.decode(together)[row]
        assert one.tags == among.tags
        assert one.unary == pytest.approx(among.unary, abs=1e-6)


def test_with_a_crf_no_illegal_sequence_is_chosen() -> None:
    torch.manual_seed(2)
    legal = torch.ones(5, 5, dtype=torch.bool)
    legal[0, 1] = legal[3, 2] = False  # 1 never after 0, no sentence begins with 2
    settings = TaggerModelSettings(hidden=8, decoder="crf")
    network = TaggerNetwork(settings, input_size=5, num_tags=3, legal=legal).eval()
    for decoded in network.decode(network(Encoded(5 * torch.randn(40, 9, 5), torch.full((40,), 9)))):
        assert decoded.tags[0] != 2
        assert (0, 1) not in itertools.pairwise(decoded.tags)
