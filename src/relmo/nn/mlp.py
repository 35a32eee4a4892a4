"""What stands on top of a network: layers of rectifiers, or of maxima.

Goodfellow et al. 2013, Maxout networks
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from relmo.nn.dropout import drop

Activation = Literal["relu", "tanh"]


class MLP(nn.Module):
    """Linear layers with an activation and dropout after each: x -> dropout(f(W x + b)). Without `sizes`, x itself."""

    def __init__(self, input_size: int, sizes: Sequence[int], *, dropout: float = 0.0, activation: Activation = "relu"):
        super().__init__()
        self.dropout = dropout
        self.activation = relu if activation == "relu" else torch.tanh
        ins = [input_size, *sizes[:-1]]
        self.layers = nn.ModuleList([nn.Linear(i, o) for i, o in zip(ins, sizes, strict=False)])
        self.output_size = sizes[-1] if sizes else input_size

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) -> (…, O)."""
        for layer in self.layers:
            x = drop(self.activation(layer(x)), self.dropout, self.training)
        return x


class Maxout(nn.Module):
    """Layers of the largest of `pieces` linear functions: y = max_k (W_k x + b_k), then `dropouts` of each layer.

    McCann et al. 2017 normalise the batch before the maximum. We do not: a batch holds sentences of one length, and the
    running statistics of short phrases, which are most of a treebank, are wrong for whole sentences.
    """

    def __init__(self, input_size: int, sizes: Sequence[int], *, pieces: int, dropouts: Sequence[float]):
        super().__init__()
        self.pieces = pieces
        self.dropouts = list(dropouts)
        ins = [input_size, *sizes[:-1]]
        self.layers = nn.ModuleList([nn.Linear(i, o * pieces) for i, o in zip(ins, sizes, strict=True)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, I) -> (B, O)."""
        for layer, p in zip(self.layers, self.dropouts, strict=True):
            x = drop(layer(x).view(len(x), -1, self.pieces).amax(dim=2), p, self.training)
        return x
