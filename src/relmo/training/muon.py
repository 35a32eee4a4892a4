"""Muon: the matrices of hidden layers are moved by orthogonal matrices, all else as Adam moves it.

    M <- 0.95 M + G;    W <- (1 - lr decay) W - lr 0.2 sqrt(max(rows, columns)) orthogonal(G + 0.95 M)

Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks. A gradient has a few large singular values
and many small ones; `orthogonal` makes them all alike, so that every direction is learned at the same pace. The factor
gives a step the size that Adam's steps have, so that Adam's learning rates suit both: Liu et al. 2025, Muon is scalable
for LLM training. A step is as long however small the gradient is, and clipping does not shorten it, so that weights
grow throughout a long run. The decay, which is of the matrices alone, keeps them smaller.

Each gate of a recurrent layer has matrices of its own, and so has each direction; torch's own Muon, in newer versions
than we ask for, takes a parameter as one matrix. Embeddings, convolutions, the output layer and biases are left to
Adam.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: they raise small singular values fast, and end between 0.7 and 1.2


class Muon(torch.optim.Adam):
    """torch's Adam for all parameters but those of the group that has `rows`: of these, `rows[i]` rows at a time are a
    matrix."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step. The gradients of the matrices are gone after it."""
        for group in self.param_groups:
            moved = [
                (p, rows) for p, rows in zip(group["params"], group.get("rows", ()), strict=False) if p.grad is not None
            ]
            if moved:
                self._turn(*zip(*moved, strict=True), lr=group["lr"], decay=group["weight_decay"])
        super().step(closure)

    def _turn(self, parameters: Sequence[Tensor], rows: Sequence[int], *, lr: float, decay: float) -> None:
        """A step of these parameters. Matrices of the same size are made orthogonal together."""
        if decay:
            torch._foreach_mul_(list(parameters), 1 - lr * decay)
        gradients = [p.grad for p in parameters if p.grad is not None]
        momenta = [self._momentum(p) for p in parameters]
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, gradients)
        ahead = torch._foreach_add(gradients, momenta, alpha=MOMENTUM)
        alike = defaultdict(list)
        for parameter, direction, count in zip(parameters, ahead, rows, strict=True):
            matrices = direction.reshape(-1, count, direction.shape[-1])
            tall = matrices.shape[1] > matrices.shape[2]
            alike[tuple(sorted(matrices.shape[1:]))].append((parameter, matrices.mT if tall else matrices, tall))
        for (_, longer), entries in alike.items():
            turned = orthogonal(torch.cat([matrices for _, matrices, _ in entries]))
            for (parameter, _, tall), own in zip(entries, turned.split([len(m) for _, m, _ in entries]), strict=True):
                step = (own.mT if tall else own).reshape(parameter.shape)
                parameter.sub_(step, alpha=lr * 0.2 * math.sqrt(longer))
                parameter.grad = None  # so that Adam leaves it alone

    def _momentum(self, parameter: Tensor) -> Tensor:
        """M of a parameter; zero before its first step."""
        state = self.state[parameter]
        if not state:
            state["step"], state["momentum_buffer"] = torch.zeros(()), torch.zeros_like(parameter)
        state["step"] += 1
        return state["momentum_buffer"]


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices (N, R, C), R <= C, with the same singular vectors and singular values near one, by Newton-Schulz
    iterations; on a GPU in bfloat16."""
    a, b, c = QUINTIC
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16 if x.is_cuda else x.dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def hidden_matrices(model: nn.Module) -> dict[Tensor, int]:
    """The weights of recurrent and linear layers, and how many rows of each are a matrix."""
    found: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            found[module.weight] = module.out_features
        for name in ("weight_ih", "weight_hh", "weight_hr"):
            weight = getattr(module, name, None)
            if isinstance(weight, nn.Parameter):
                found[weight] = weight.shape[-2] if name == "weight_hr" else int(module.hidden_size)  # type: ignore[arg-type]
    return found
