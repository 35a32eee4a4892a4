"""Words from their characters: embeddings, convolutions of several widths, the maximum over the word.

y_w = activation(max_t (sum_k x[t + k] W_w[k] + b_w))          for each filter width w, side by side

Kim et al. 2016, Character-aware neural language models;  Jozefowicz et al. 2016, Exploring the limits of
language modeling
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, embedding


class CharCNN(nn.Module):
    """Character ids to one vector a word. `filters` are pairs (width, how many)."""

    def __init__(
        self,
        filters: Sequence[tuple[int, int]],
        *,
        char_dim: int,
        characters: int,
        activation: Literal["relu", "tanh"] = "relu",
    ):
        super().__init__()
        self.activation = activation
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

    def forward(self, ids: Tensor) -> Tensor:
        """ids (N, C), from 1 on; at least as many columns as the widest filter -> (N, F).

        The maximum is taken before the bias is added and the activation applied, which changes nothing: both rise.
        """
        x = embedding(ids - 1, self.embedding).transpose(1, 2)  # (N, E, C)
        maxima = [conv1d(x, weight).amax(dim=2) for weight in self.weights]
        y = torch.cat([m + bias for m, bias in zip(maxima, self.biases, strict=True)], dim=1)
        return torch.relu(y) if self.activation == "relu" else torch.tanh(y)
