"""Dropout in the three forms recurrent language models use; all do nothing in evaluation mode.

Srivastava et al. 2014, Dropout;  Gal & Ghahramani 2016 (one mask for all time steps, whole words dropped);
Wan et al. 2013, DropConnect, on the recurrent weights as in Merity et al. 2018 (AWD-LSTM)
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout


def drop(x: Tensor, p: float, training: bool) -> Tensor:
    """Ordinary dropout. On a CPU it draws 16 random bits an element, in a quarter of the time that torch takes for
    32."""
    if not training or p == 0:
        return x
    if x.device.type != "cpu":
        return dropout(x, p)
    dropped = round(p * 65536)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
    kept = (bits[: x.numel()] >= dropped - 32768).to(x.dtype).mul_(65536 / max(65536 - dropped, 1))
    return x * kept.view(x.shape)


class SequenceDropout(nn.Module):
    """Dropout over (B, T, H): a new mask at every step, or, `variational`, one mask a sequence for all its steps."""

    def __init__(self, p: float, *, variational: bool = False):
        super().__init__()
        self.p = p
        self.variational = variational

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H); in training only."""
        if not self.training or self.p == 0:
            return x
        if not self.variational:
            return dropout(x, self.p)
        return x * dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p)


def drop_weights(weight: Tensor, p: float, training: bool) -> Tensor:
    """DropConnect: each weight zeroed with probability p, the same for every step of the sequence."""
    return dropout(weight, p, training) if training and p else weight


def drop_words(embedding: Tensor, p: float, training: bool) -> Tensor:
    """The embedding matrix (V, D) with whole rows dropped: a dropped word is gone wherever it stands in the batch."""
    if not training or p == 0:
        return embedding
    return embedding * dropout(torch.ones_like(embedding[:, :1]), p)
