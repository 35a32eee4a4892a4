"""Highway layers: each element is a mixture of a transformed and an untouched input.

g  = sigmoid(W_carry x + b_carry)
x' = g * relu(W_transform x + b_transform) + (1 - g) * x

Srivastava et al. 2015, Highway networks. The names are those of the original ELMo files, whose "carry" gate in truth
lets the transform through; it starts nearly closed (b_carry = -2).
"""

import math

import torch
from torch import Tensor, nn

from relmo.nn.kernels import highway_triton, linear_cpu


class Highway(nn.Module):
    """One highway layer over vectors of `size`. `fast` lets a compiled twin be taken where no gradients are wanted."""

    def __init__(self, size: int, *, fast: bool = True):
        super().__init__()
        self.fast = fast
        self.carry = nn.Linear(size, size)
        self.transform = nn.Linear(size, size)
        for linear, bias in ((self.carry, -2.0), (self.transform, 0.0)):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(size))
            nn.init.constant_(linear.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) -> (N, F)."""
        if self.fast and linear_cpu.suits(x, self.carry.weight):
            return linear_cpu.highway(x, self.carry, self.transform)
        if self.fast and highway_triton.available(x):
            return highway_triton.Mixture.apply(self.carry(x), self.transform(x), x)
        gate = torch.sigmoid(self.carry(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x
