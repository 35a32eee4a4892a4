"""Highway layers: each element is a mixture of a transformed and an untouched input.

g  = sigmoid(W_carry x + b_carry)
x' = g * relu(W_transform x + b_transform) + (1 - g) * x

Srivastava et al. 2015, Highway networks. The names are those of the original ELMo files, whose "carry" gate in truth
lets the transform through; it starts nearly closed (b_carry = -2).
"""

import math

import torch
from torch import Tensor, nn


class Highway(nn.Module):
    """One highway layer over vectors of `size`."""

    def __init__(self, size: int):
        super().__init__()
        self.carry = nn.Linear(size, size)
        self.transform = nn.Linear(size, size)
        for linear, bias in ((self.carry, -2.0), (self.transform, 0.0)):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(size))
            nn.init.constant_(linear.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) -> (N, F)."""
        gate = torch.sigmoid(self.carry(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x
