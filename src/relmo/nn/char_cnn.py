"""Word vectors from characters: convolutions of several widths, the maximum over the word, and highway layers.

Kim et al. 2016, Character-aware neural language models;  Jozefowicz et al. 2016, Exploring the limits of
language modeling;  Srivastava et al. 2015, Highway networks
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad

from relmo.nn.kernels import elementwise_triton, encoder_cpu


class CharCNN(nn.Module):
    """Character CNN with one vector per word.

    y_w = activation(max_t (sum_k x[t + k] W_w[k] + b_w))          for each filter width w, side by side

    `filters` are pairs (width, count). Only padding follows the id `end`. `fast` permits the compiled kernel.
    """

    def __init__(
        self,
        filters: Sequence[tuple[int, int]],
        *,
        char_dim: int,
        characters: int,
        max_characters: int,
        end: int,
        activation: Literal["relu", "tanh"] = "relu",
        fast: bool = True,
    ):
        super().__init__()
        self.activation, self.max_characters, self.end, self.fast = activation, max_characters, end, fast
        self.output_size = sum(count for _, count in filters)
        self.widest = max(width for width, _ in filters)
        self.embedding = nn.Parameter(torch.empty(characters, char_dim).uniform_(-1, 1))
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for width, count in filters:
            weight = torch.empty(count, char_dim, width)
            if activation == "relu":
                weight.uniform_(-0.05, 0.05)
            else:
                weight.normal_(std=1 / math.sqrt(width * char_dim))
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(count)))

    def forward(self, *groups: Tensor) -> Tensor:
        """Encode groups of words, character ids (N, C) from 1 with a C for each group, to vectors (N, F) of all words.

        C is `max_characters`, or less if the last columns, as many as the widest filter has, are padding: one window of
        padding is enough. The maximum is taken before the bias and the activation, which are monotone.
        """
        if self.fast and encoder_cpu.supports_words(groups, self.embedding):
            y = encoder_cpu.maxima(groups, self.embedding, list(self.weights), self.end)
        else:
            weight = torch.cat([pad(w, (0, self.widest - w.shape[2])) for w in self.weights])  # (F, E, W)
            weight = weight.transpose(1, 2).flatten(1)  # (F, W E)
            maximum = Maximum.apply if self.fast else partial(torch.amax, dim=1)
            maxima = []
            for ids in groups:
                x = embedding(ids - 1, self.embedding)  # (N, C, E)
                num_padding = self.widest - 1 if ids.shape[1] == self.max_characters else 0
                x = pad(x, (0, 0, 0, num_padding)) if num_padding else x  # narrow filters have more windows
                count = x.shape[1] - self.widest + 1
                windows = torch.cat([x[:, k : k + count] for k in range(self.widest)], dim=2)  # (N, count, W E)
                y = linear(windows, weight)  # (N, count, F)
                if not num_padding:
                    maxima.append(maximum(y))
                    continue
                parts = y.split([len(w) for w in self.weights], dim=2)
                counts = [ids.shape[1] - w.shape[2] + 1 for w in self.weights]
                parts = [maximum(part[:, :n]) for part, n in zip(parts, counts, strict=True)]
                maxima.append(torch.cat(parts, dim=1))
            y = torch.cat(maxima)
        y = y + torch.cat(list(self.biases)).to(y.dtype)
        return torch.relu(y) if self.activation == "relu" else torch.tanh(y)


class Maximum(torch.autograd.Function):
    """Maximum over the middle dimension, its gradient shared evenly among equal elements, faster than torch's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.amax(dim=1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        if elementwise_triton.triton is not None and x.is_cuda:
            return elementwise_triton.maximum_backward(x, y, dy)
        equal = x.clone().eq_(y.unsqueeze(1))  # ones and zeros
        return equal.mul_((dy / equal.sum(dim=1)).unsqueeze(1))


class Highway(nn.Module):
    """One highway layer over vectors of `size`; `fast` permits the compiled kernel where no gradients are needed.

    g  = sigmoid(W_carry x + b_carry)
    x' = g * relu(W_transform x + b_transform) + (1 - g) * x

    The names are those of the original ELMo files, whose "carry" gate in fact lets the transform through; it starts
    nearly closed (b_carry = -2).
    """

    def __init__(self, size: int, *, fast: bool = True):
        super().__init__()
        self.fast = fast
        self.carry = nn.Linear(size, size)
        self.transform = nn.Linear(size, size)
        for layer, bias in ((self.carry, -2.0), (self.transform, 0.0)):
            nn.init.normal_(layer.weight, std=1 / math.sqrt(size))
            nn.init.constant_(layer.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (N, F) to x' (N, F)."""
        if self.fast and encoder_cpu.supports(x, self.carry.weight):
            return encoder_cpu.highway(x, self.carry, self.transform)
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
