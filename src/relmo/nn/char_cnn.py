"""Word vectors from characters: embeddings, convolutions of several widths, the maximum over the word.

y_w = activation(max_t (sum_k x[t + k] W_w[k] + b_w))          for each filter width w, side by side

Kim et al. 2016, Character-aware neural language models;  Jozefowicz et al. 2016, Exploring the limits of
language modeling
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad

from relmo.nn.kernels import char_cnn_cpu, elementwise_triton


class CharCNN(nn.Module):
    """Character CNN with one vector per word.

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
        self.activation = activation
        self.max_characters = max_characters
        self.end = end
        self.fast = fast
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

        C is `max_characters`. It may be less if the last columns, as many as the widest filter has, are padding: one
        window of padding only is enough. All filters are one product, padded with zeros to the widest. The maximum is
        taken before the bias and the activation, which does not change the result, as both are monotone.
        """
        if self.fast and char_cnn_cpu.supports(groups, self.embedding):
            y = char_cnn_cpu.maxima(groups, self.embedding, list(self.weights), self.end)
        else:
            weight = torch.cat([pad(w, (0, self.widest - w.shape[2])) for w in self.weights])  # (F, E, W)
            weight = weight.transpose(1, 2).flatten(1)  # (F, W E)
            y = torch.cat([self._maxima(ids, weight) for ids in groups])
        y = y + torch.cat(list(self.biases)).to(y.dtype)
        return torch.relu(y) if self.activation == "relu" else torch.tanh(y)

    def _maxima(self, ids: Tensor, weight: Tensor) -> Tensor:
        x = embedding(ids - 1, self.embedding)  # (N, C, E)
        num_padding = self.widest - 1 if ids.shape[1] == self.max_characters else 0
        x = pad(x, (0, 0, 0, num_padding)) if num_padding else x  # narrow filters have more windows than wide ones
        count = x.shape[1] - self.widest + 1
        windows = torch.cat([x[:, k : k + count] for k in range(self.widest)], dim=2)  # (N, count, W E)
        y = linear(windows, weight)  # (N, count, F)
        maximum = Maximum.apply if self.fast else partial(torch.amax, dim=1)
        if not num_padding:
            return maximum(y)
        parts = y.split([len(w) for w in self.weights], dim=2)
        counts = [ids.shape[1] - w.shape[2] + 1 for w in self.weights]
        return torch.cat([maximum(part[:, :n]) for part, n in zip(parts, counts, strict=True)], dim=1)


class Maximum(torch.autograd.Function):
    """Maximum over the middle dimension, its gradient shared evenly among equal elements.

    torch's own does the same, several times slower on a CPU.
    """

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
