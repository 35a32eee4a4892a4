"""Untrained models, the control for every claim about a trained one."""

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
    """Seed torch within the block and restore its random state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def untrained(model: Any, seed: int = 0) -> Any:
    """Return the same LanguageModel or BiLM with initial weights; torch's random state is restored."""
    with seeded(seed):
        if isinstance(model, BiLM):
            size = None if model.vocabulary is None else len(model.vocabulary)
            network = BiLMNetwork(model.settings.model, vocab_size=size)
            return BiLM(network, model.settings, model.vocabulary, model.device, model.precision)
        if isinstance(model, LanguageModel) and isinstance(model.network, RecurrentLM):
            initial = make_language_model(model.settings.model, len(model.vocabulary))
            return LanguageModel(initial, model.vocabulary, model.settings, model.device)
    raise ModelError("Only recurrent language models can be reinitialised.")
