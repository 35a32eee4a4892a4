"""Small models with weights large enough that gates move, for several tests of analyses."""

from typing import Any

import torch

from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.ngram import NGramLM
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

TEXT = "the cat (a cat) sat\non the mat. " * 9
SENTENCES = "the cat sat\nthe mat , the large mat\na cat\n" * 8


def language_model(cell: str = "lstm", scale: float = 3.0, **options: Any) -> LanguageModel:
    """Over the characters of TEXT."""
    torch.manual_seed(3)
    settings = LMSettings(
        model=LanguageModelSettings(cell=cell, **({"hidden": 7, "embedding": 5} | options)),  # type: ignore[arg-type]
        text=TextSettings(),
    )
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(TEXT))])
    network = make_language_model(settings.model, len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale)
    return LanguageModel(network, vocabulary, settings)


def ngram_model(order: int = 3) -> LanguageModel:
    """Counted on TEXT."""
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(TEXT))])
    network = NGramLM.fit(vocabulary.ids(TEXT), vocab_size=len(vocabulary), order=order)
    return LanguageModel(network, vocabulary, LMSettings(model=LanguageModelSettings(cell="ngram", order=order)))


def bilm(**options: Any) -> BiLM:
    """Over the words of SENTENCES, `large` and the comma not among them."""
    torch.manual_seed(5)
    given = {"filters": ("1x4", "2x4"), "char_dim": 3, "hidden": 9, "projection": 4, "cell_clip": 0.3} | options
    settings = BiLMModelSettings(**given)
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "a", "cat", "mat", "sat", "the"])
    network = BiLMNetwork(settings, vocab_size=len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    return BiLM(network, BiLMSettings(model=settings), vocabulary)
