"""Networks, built from layers, sizes and settings; they know ids, no vocabularies and no paths."""

from collections.abc import Sequence

from relmo.networks.language_model import FeedforwardLM, NeuralLM, RecurrentLM
from relmo.networks.ngram import NGramLM
from relmo.settings.lm import LanguageModelSettings


def make_language_model(
    settings: LanguageModelSettings, vocab_size: int, sizes: Sequence[int] | None = None
) -> NeuralLM | NGramLM:
    """Build the language model of these settings; `sizes` are those of the tables of an n-gram model."""
    if settings.cell == "ngram":
        return NGramLM(vocab_size=vocab_size, order=settings.order, sizes=sizes)
    network = FeedforwardLM if settings.cell == "feedforward" else RecurrentLM
    return network(settings, vocab_size=vocab_size)
