"""Layers put together into networks. They get sizes and ids, never vocabularies or paths."""

from collections.abc import Sequence

from relmo.networks.feedforward import FeedforwardLM
from relmo.networks.language_model import NeuralLM, RecurrentLM
from relmo.networks.ngram import NGramLM
from relmo.settings.lm import LanguageModelSettings


def make_language_model(
    settings: LanguageModelSettings, vocab_size: int, sizes: Sequence[int] | None = None
) -> NeuralLM | NGramLM:
    """The network that the settings describe; `sizes` are those of an n-gram model's tables."""
    if settings.cell == "ngram":
        return NGramLM(vocab_size=vocab_size, order=settings.order, sizes=sizes)
    network = FeedforwardLM if settings.cell == "feedforward" else RecurrentLM
    return network(settings, vocab_size=vocab_size)
