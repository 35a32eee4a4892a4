"""Highway layers: each element is a mixture of a transformed and an untouched input.

g  = sigmoid(W_carry x + b_carry)
x' = g * relu(W_transform x + b_transform) + (1 - g) * x

Srivastava et al. 2015, Highway networks. The names are those of the original ELMo files, whose "carry" gate in fact
lets the transform through; it starts nearly closed (b_carry = -2).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from relmo.nn.kernels import elementwise_triton, linear_cpu


class Highway(nn.Module):
    """One highway layer over vectors of `size`; `fast` permits the compiled kernel where no gradients are needed."""

    def __init__(self, size: int, *, fast: bool = True):
        super().__init__()
        self.fast = fast
        self.carry = nn.Linear(size, size)
        self.transform = nn.Linear(size, size)
        for linear, bias in ((self.carry, -2.0), (self.transform, 0.0)):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(size))
            nn.init.constant_(linear.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (N, F) to x' (N, F)."""
        if self.fast and linear_cpu.supports(x, self.carry.weight):
            return linear_cpu.highway(x, self.carry, self.transform)
        if self.fast:
            return Mixture.apply(self.carry(x), self.transform(x), x)
        gate = torch.sigmoid(self.carry(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


class Mixture(torch.autograd.Function):
    """sigmoid(carry) * relu(transform) + (1 - sigmoid(carry)) * x, in fewer passes over memory than autograd takes."""

    @staticmethod
    def forward(ctx: Any, carry: Tensor, transform: Tensor, x: Tensor) -> Tensor:
        if elementwise_triton.supports_mixture(carry, transform, x):
            saved = (carry.contiguous(), transform.contiguous(), x.contiguous())  # the kernel activates them again
            y = elementwise_triton.mix(*saved)
        else:
            saved = (torch.sigmoid(carry).to(x.dtype), torch.relu(transform).to(x.dtype), x)
            y = torch.lerp(x, saved[1], saved[0])
        ctx.save_for_backward(*saved)
        ctx.dtypes = carry.dtype, transform.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        gate, transform, x = ctx.saved_tensors
        if elementwise_triton.supports_mixture(gate, transform, x):
            return elementwise_triton.mix_backward(gate, transform, x, dy)
        d_transform = dy * gate
        dx = dy - d_transform
        d_carry = (transform - x).mul_(d_transform)
        d_carry.addcmul_(d_carry, gate, value=-1)
        torch.ops.aten.threshold_backward.grad_input(d_transform, transform, 0, grad_input=d_transform)
        return d_carry.to(ctx.dtypes[0]), d_transform.to(ctx.dtypes[1]), dx
