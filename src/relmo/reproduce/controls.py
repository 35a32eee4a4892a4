"""What a figure has to beat before it says something about training or context: the same network with fresh weights,
and one vector a word whatever the sentence. (The third control, the biLM's own layer without context, is its layer 0.)
"""

from dataclasses import dataclass

import torch

from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork


@dataclass(frozen=True)
class Controls:
    """The models a reproduction compares with; without static vectors their rows are left out."""

    untrained: BiLM
    vectors: WordVectors | None = None


def untrained(model: BiLM, seed: int = 0) -> BiLM:
    """The same settings and vocabulary with weights as training starts from; torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        size = None if model.vocabulary is None else len(model.vocabulary)
        network = BiLMNetwork(model.settings.model, vocab_size=size)
    return BiLM(network, model.settings, model.vocabulary, model.device, model.precision)
