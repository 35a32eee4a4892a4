"""A model as it was before training: the control that every claim about a trained one needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from relmo.errors import ModelError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import RecurrentLM


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the block torch draws from this seed. After it torch goes on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def untrained(model: Any, seed: int = 0) -> Any:
    """The same LanguageModel or BiLM with the weights that training would start from. torch's random state stays."""
    with seeded(seed):
        if isinstance(model, BiLM):
            size = None if model.vocabulary is None else len(model.vocabulary)
            network = BiLMNetwork(model.settings.model, vocab_size=size)
            return BiLM(network, model.settings, model.vocabulary, model.device, model.precision)
        if isinstance(model, LanguageModel) and isinstance(model.network, RecurrentLM):
            fresh = make_language_model(model.settings.model, len(model.vocabulary))
            return LanguageModel(fresh, model.vocabulary, model.settings, model.device)
    raise ModelError("only recurrent language models have weights to draw anew")
