"""Untrained networks, the control of what training adds."""

from typing import TypeVar

import torch

from relmo.errors import ModelError
from relmo.models.sequence_model import SequenceModel

M = TypeVar("M", bound=SequenceModel)


def untrained(model: M, seed: int = 0) -> M:
    """Return the same model with initial weights; torch's random state is restored."""
    if not model.is_recurrent:
        raise ModelError("Only recurrent language models can be reinitialised.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.with_initial_weights()
