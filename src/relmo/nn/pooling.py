"""Reductions to one vector: pooling of a padded sentence's tokens, and the learned mixture of a biLM's layers.

Pooling reduces x (B, T, D) with lengths (B,) to (B, D). Padding has no influence. An empty sentence gives zeros.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


def length_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return the mask (B, T), true where there is a token, on the device of `lengths`."""
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)


def mask_padding(x: Tensor, lengths: Tensor, value: float = 0.0) -> Tensor:
    """Set x (B, T, D) to `value` past each sentence's end."""
    return x.masked_fill(~length_mask(lengths.to(x.device), x.shape[1]).unsqueeze(2), value)


def mean(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean of a sentence's vectors."""
    return mask_padding(x, lengths).sum(dim=1) / lengths.to(x.device).clamp(min=1).unsqueeze(1)


def maximum(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the largest value in each dimension; the smallest is -maximum(-x, lengths)."""
    lengths = lengths.to(x.device)
    x = pad(x, (0, 0, 0, 1)) if x.shape[1] == 0 else x  # torch has no maximum of an empty tensor
    return torch.where((lengths > 0).unsqueeze(1), mask_padding(x, lengths, -torch.inf).amax(dim=1), 0.0)


def final(x: Tensor, lengths: Tensor, *, directions: int = 1) -> Tensor:
    """Return the vector of the last token; with two directions, the second half is that of the first token."""
    lengths = lengths.to(x.device)
    x = pad(x, (0, 0, 0, 1)) if x.shape[1] == 0 else x
    last = x[torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0)]  # (B, D)
    if directions == 2:
        half = x.shape[2] // 2
        last = torch.cat([last[:, :half], x[:, 0, half:]], dim=1)
    return torch.where((lengths > 0).unsqueeze(1), last, 0.0)


class ScalarMix(nn.Module):
    """Weighted sum of layers, initially uniform; `fixed` weights (logits) are not trained.

    ELMo = gamma * sum_k softmax(w)_k * h_k                        Peters et al. 2018, equation 1

    With `layer_norm` each layer is normalised first, by one mean and one variance over all real tokens and dimensions
    of the batch, as in the original. A sentence's vectors then depend on the other sentences in its batch.
    """

    def __init__(
        self, layers: int, *, layer_norm: bool = False, fixed: Sequence[float] | None = None, epsilon: float = 1e-12
    ):
        super().__init__()
        if fixed is not None and len(fixed) != layers:
            raise ValueError(f"There are {len(fixed)} fixed weights for {layers} layers.")
        start = torch.zeros(layers) if fixed is None else torch.tensor(fixed, dtype=torch.float32)
        self.weights = nn.Parameter(start, requires_grad=fixed is None)
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=fixed is None)
        self.layer_norm = layer_norm
        self.epsilon = epsilon
        self.register_load_state_dict_pre_hook(_from_allennlp)

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix layers (K, …, D) to (…, D); mask (…) is true for tokens, and used by the layer norm only."""
        if self.layer_norm:
            normalised = []
            for layer in layers:
                tokens = layer if mask is None else layer[mask]
                centre = tokens.mean()
                variance = (tokens - centre).square().mean()
                normalised.append((layer - centre) * torch.rsqrt(variance + self.epsilon))
            layers = torch.stack(normalised)
        shares = torch.softmax(self.weights, dim=0).to(layers.dtype)
        return self.gamma.to(layers.dtype) * torch.tensordot(shares, layers, dims=1)

    def l2(self) -> Tensor:
        """Return the squared norm of the weights, a penalty that favours a uniform mixture."""
        return self.weights.square().sum()


def _from_allennlp(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Convert AllenNLP's weights, one parameter each: scalar_parameters.0, scalar_parameters.1, …"""
    names = [f"{prefix}scalar_parameters.{k}" for k in range(len(module.weights))]  # type: ignore[arg-type]
    if f"{prefix}weights" not in state and all(name in state for name in names):
        state[f"{prefix}weights"] = torch.cat([state.pop(name).reshape(1) for name in names])
