"""Muon: orthogonal updates for the matrices of hidden layers, Adam for all other parameters.

    M <- 0.95 M + G;    W <- (1 - lr decay) W - lr 0.2 sqrt(max(rows, columns)) orthogonal(G + 0.95 M)

Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks. A gradient has a few large singular values
and many small ones; `orthogonalize` makes them all alike, so that every direction is learned at the same pace. The
factor gives updates the size of Adam's, so that one learning rate suits both (Liu et al. 2025, Muon is scalable for LLM
training). The size of an update does not depend on the gradient, so clipping has no effect and weights grow during a
long run. Weight decay, which applies to the matrices only, limits that.

Each gate of a recurrent layer is a matrix of its own, and so is each direction; torch's own Muon, in newer versions
than we require, treats a parameter as one matrix. Embeddings, convolutions, the output layer and biases use Adam.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: small singular values grow fast, and all end between 0.7 and 1.2


class Muon(torch.optim.Adam):
    """Adam, except for the parameter group with `rows`, whose i-th parameter stacks matrices of `rows[i]` rows."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step. The gradients of the matrices are None after it."""
        for group in self.param_groups:
            matrices = [
                (p, rows) for p, rows in zip(group["params"], group.get("rows", ()), strict=False) if p.grad is not None
            ]
            if matrices:
                self._update_matrices(*zip(*matrices, strict=True), lr=group["lr"], decay=group["weight_decay"])
        super().step(closure)

    def _update_matrices(self, parameters: Sequence[Tensor], rows: Sequence[int], *, lr: float, decay: float) -> None:
        if decay:
            torch._foreach_mul_(list(parameters), 1 - lr * decay)
        gradients = [p.grad for p in parameters if p.grad is not None]
        momenta = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"], state["momentum_buffer"] = torch.zeros(()), torch.zeros_like(parameter)
            state["step"] += 1
            momenta.append(state["momentum_buffer"])
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, gradients)
        directions = torch._foreach_add(gradients, momenta, alpha=MOMENTUM)
        by_shape = defaultdict(list)  # matrices of one size, possibly transposed, are orthogonalized together
        for parameter, direction, count in zip(parameters, directions, rows, strict=True):
            matrices = direction.reshape(-1, count, direction.shape[-1])
            is_tall = matrices.shape[1] > matrices.shape[2]
            by_shape[tuple(sorted(matrices.shape[1:]))].append(
                (parameter, matrices.mT if is_tall else matrices, is_tall)
            )
        for (_, longer_side), entries in by_shape.items():
            updates = orthogonalize(torch.cat([matrices for _, matrices, _ in entries]))
            parts = updates.split([len(matrices) for _, matrices, _ in entries])
            for (parameter, _, is_tall), update in zip(entries, parts, strict=True):
                step = (update.mT if is_tall else update).reshape(parameter.shape)
                parameter.sub_(step, alpha=lr * 0.2 * math.sqrt(longer_side))
                parameter.grad = None  # Adam skips it


def orthogonalize(matrices: Tensor) -> Tensor:
    """Set the singular values of matrices (N, R, C), R <= C, close to one by Newton-Schulz iterations.

    Computed in bfloat16 on a GPU.
    """
    a, b, c = QUINTIC
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16 if x.is_cuda else x.dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def find_hidden_matrices(model: nn.Module) -> dict[Tensor, int]:
    """Return the weights of recurrent and linear layers with the number of rows of each matrix in them."""
    num_rows: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            num_rows[module.weight] = module.out_features
        for name in ("weight_ih", "weight_hh", "weight_hr"):
            weight = getattr(module, name, None)
            if isinstance(weight, nn.Parameter):
                num_rows[weight] = weight.shape[-2] if name == "weight_hr" else int(module.hidden_size)  # type: ignore[arg-type]
    return num_rows
