"""What stands on top of a network: layers of rectifiers, or of maxima with batch normalisation.

Goodfellow et al. 2013, Maxout networks;  Ioffe & Szegedy 2015, Batch normalization
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, relu

from relmo.nn.dropout import drop

Activation = Literal["relu", "tanh"]


class MLP(nn.Module):
    """Linear layers with an activation and dropout after each: x -> dropout(f(W x + b)). No sizes: nothing happens."""

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
    """Layers of the largest of `pieces` linear functions, batch-normalised before the maximum but for the last layer.

    y = max_k BN(W_k x + b_k), then `dropouts` of each layer. In evaluation mode the running mean and variance are used,
    so that nothing depends on batch mates; in training also where a batch is a single row, which has no variance.
    """

    def __init__(self, input_size: int, sizes: Sequence[int], *, pieces: int, dropouts: Sequence[float]):
        super().__init__()
        self.pieces = pieces
        self.dropouts = list(dropouts)
        ins = [input_size, *sizes[:-1]]
        self.layers = nn.ModuleList([nn.Linear(i, o * pieces) for i, o in zip(ins, sizes, strict=True)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(o * pieces) for o in sizes[:-1]])

    def forward(self, x: Tensor) -> Tensor:
        """(B, I) -> (B, O)."""
        for depth, (layer, p) in enumerate(zip(self.layers, self.dropouts, strict=True)):
            x = layer(x)
            if depth < len(self.norms):
                x = self._normalised(x, self.norms[depth])
            x = x.view(len(x), -1, self.pieces).amax(dim=2)
            x = drop(x, p, self.training)
        return x

    def _normalised(self, x: Tensor, norm: nn.Module) -> Tensor:
        if not isinstance(norm, nn.BatchNorm1d) or len(x) > 1 or not self.training:
            return norm(x)
        return batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
