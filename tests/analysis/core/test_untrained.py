"""The same model untrained: its shape, weights of its own, and a seed that nothing else feels."""

import pytest
import torch

from relmo.errors import ModelError
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import SentenceVocabulary
from support.small_models import ngram_model

SETTINGS = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)


@pytest.mark.parametrize("vocabulary", [None, SentenceVocabulary([*SentenceVocabulary.specials, "the"])])
def test_the_untrained_network_has_the_models_shape_and_weights_of_its_own(
    vocabulary: SentenceVocabulary | None,
) -> None:
    torch.manual_seed(3)
    size = None if vocabulary is None else len(vocabulary)
    model = BiLM(BiLMNetwork(SETTINGS, vocab_size=size), BiLMSettings(model=SETTINGS), vocabulary)
    before = torch.random.get_rng_state()
    first, second, other = untrained(model, 1), untrained(model, 1), untrained(model, 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.vocabulary is vocabulary
    weights = {name: weight for name, weight in model.network.named_parameters() if weight.std() > 0}
    assert len(weights) > 5
    for name, weight in weights.items():
        fresh = first.network.get_parameter(name)
        assert fresh.shape == weight.shape
        assert not torch.equal(fresh, weight), name
        assert torch.equal(fresh, second.network.get_parameter(name)), name
        assert not torch.equal(fresh, other.network.get_parameter(name)), name


def test_a_model_that_is_counted_has_no_weights_to_draw() -> None:
    with pytest.raises(ModelError, match="recurrent"):
        untrained(ngram_model())
