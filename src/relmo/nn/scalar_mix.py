"""Learned mixture of a biLM's layers.

    ELMo = gamma * sum_k softmax(w)_k * h_k                        Peters et al. 2018, equation 1

With `layer_norm` each layer is normalised first, by one mean and one variance over all real tokens and dimensions of
the batch, as in the original. A sentence's vectors then depend on the other sentences in its batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """Weighted sum of layers with a scale gamma, initially uniform; `fixed` weights (logits) are not trained."""

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
            layers = torch.stack([_normalise(layer, mask, self.epsilon) for layer in layers])
        shares = torch.softmax(self.weights, dim=0).to(layers.dtype)
        return self.gamma.to(layers.dtype) * torch.tensordot(shares, layers, dims=1)

    def l2(self) -> Tensor:
        """Return the squared norm of the weights, a penalty that favours a uniform mixture."""
        return self.weights.square().sum()


def _normalise(x: Tensor, mask: Tensor | None, epsilon: float) -> Tensor:
    tokens = x if mask is None else x[mask]
    mean = tokens.mean()
    variance = (tokens - mean).square().mean()
    return (x - mean) * torch.rsqrt(variance + epsilon)


def _from_allennlp(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Convert AllenNLP's weights, one parameter each: scalar_parameters.0, scalar_parameters.1, …"""
    names = [f"{prefix}scalar_parameters.{k}" for k in range(len(module.weights))]  # type: ignore[arg-type]
    if f"{prefix}weights" not in state and all(name in state for name in names):
        state[f"{prefix}weights"] = torch.cat([state.pop(name).reshape(1) for name in names])
