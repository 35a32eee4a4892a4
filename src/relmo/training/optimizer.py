"""Optimisers: construction, gradient clipping, and the update of weights and their moving average."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from relmo.nn.kernels import elementwise_triton
from relmo.nn.recurrence import Cell
from relmo.settings.sections import TrainSettings

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: small singular values grow fast, and all end between 0.7 and 1.2


class Muon(torch.optim.Adam):
    """Adam, except for the parameter group with `rows`, whose i-th parameter stacks matrices of `rows[i]` rows.

        M <- 0.95 M + G;    W <- (1 - lr decay) W - lr 0.2 sqrt(max(rows, columns)) orthogonal(G + 0.95 M)

    Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks. `orthogonalize` makes all singular
    values alike, so that every direction is learned at the same pace. The factor gives updates the size of Adam's, so
    that one learning rate suits both (Liu et al. 2025, Muon is scalable for LLM training). The size of an update does
    not depend on the gradient: clipping has no effect, and weight decay, of the matrices only, limits their growth.
    Each gate of a recurrent layer is a matrix of its own, and so is each direction; torch's own Muon, in newer versions
    than we require, treats a parameter as one matrix. Embeddings, convolutions, the output layer and biases use Adam.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step. The gradients of the matrices are None after it."""
        for group in self.param_groups:
            rows = {p: n for p, n in zip(group["params"], group.get("rows", ()), strict=False) if p.grad is not None}
            if not rows:
                continue
            lr, decay = group["lr"], group["weight_decay"]
            if decay:
                torch._foreach_mul_(list(rows), 1 - lr * decay)
            gradients, momenta = [p.grad for p in rows], []
            for parameter in rows:
                state = self.state[parameter]
                if not state:
                    state["step"], state["momentum_buffer"] = torch.zeros(()), torch.zeros_like(parameter)
                state["step"] += 1
                momenta.append(state["momentum_buffer"])
            torch._foreach_mul_(momenta, MOMENTUM)
            torch._foreach_add_(momenta, gradients)
            directions = torch._foreach_add(gradients, momenta, alpha=MOMENTUM)
            by_shape = defaultdict(list)  # matrices of one size, possibly transposed, are orthogonalized together
            for (parameter, count), direction in zip(rows.items(), directions, strict=True):
                matrices = direction.reshape(-1, count, direction.shape[-1])
                is_tall = matrices.shape[1] > matrices.shape[2]
                matrices = matrices.mT if is_tall else matrices
                by_shape[tuple(matrices.shape[1:])].append((parameter, matrices, is_tall))
            for (_, longer_side), entries in by_shape.items():
                updates = orthogonalize(torch.cat([matrices for _, matrices, _ in entries]))
                parts = updates.split([len(matrices) for _, matrices, _ in entries])
                for (parameter, _, is_tall), update in zip(entries, parts, strict=True):
                    step = (update.mT if is_tall else update).reshape(parameter.shape)
                    parameter.sub_(step, alpha=lr * 0.2 * math.sqrt(longer_side))
                    parameter.grad = None  # Adam skips it
        super().step(closure)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Set the singular values of (N, R, C), R <= C, close to one by Newton-Schulz iterations, on a GPU in bfloat16."""
    a, b, c = QUINTIC
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16 if x.is_cuda else x.dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


class OnePassAdagrad(torch.optim.Adagrad):
    """torch's Adagrad in a single pass over memory on a GPU, where torch has no fused kernel; its state is the same."""


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Create the optimiser of the settings. Weight decay excludes biases; dense gradients use fused kernels."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": parameters, "weight_decay": 0.0}]
    if settings.weight_decay:
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
    dense = not any(getattr(module, "sparse", False) for module in model.modules())
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=dense)
    if settings.optimizer == "muon":
        rows = dict(chain.from_iterable(map(_hidden_matrices, model.modules())))
        rows = {p: count for p, count in rows.items() if p.requires_grad}
        groups = [
            {"params": list(rows), "rows": list(rows.values()), "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p not in rows], "weight_decay": 0.0},
        ]
        return Muon(groups, lr=settings.lr, fused=dense)
    if settings.optimizer == "adagrad":
        fused = dense and parameters[0].device.type == "cpu"  # torch has no fused Adagrad for GPUs
        adagrad = OnePassAdagrad if dense and elementwise_triton.supports_adagrad(*parameters) else torch.optim.Adagrad
        initial = settings.initial_accumulator
        return adagrad(groups, lr=settings.lr, initial_accumulator_value=initial, fused=fused or None)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=settings.lr, fused=dense)


def _hidden_matrices(module: nn.Module) -> Iterator[tuple[nn.Parameter, int]]:
    """Yield the weights of a recurrent or linear layer that are matrices, stacked or not, and the rows of each matrix.

    A weight of a cell has one matrix per gate, and one square matrix per gate and head if the heads have a dimension.
    """
    if isinstance(module, nn.Linear) and isinstance(module.weight, nn.Parameter):
        yield module.weight, module.out_features
    for name in ("weight_ih", "weight_hh", "weight_mh", "weight_gates", "weight_hr"):
        weight = getattr(module, name, None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1:
            if name == "weight_hr":
                rows = weight.shape[-2]
            else:
                has_heads = isinstance(module, Cell) and weight.dim() > 2
                rows = weight.shape[-1] if has_heads else getattr(module, "hidden_size", weight.shape[-2])
            if weight.shape[-2] % rows == 0:
                yield weight, rows


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the joint norm of all dense gradients, on the device."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse])


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """Return the factor that clips gradients of this norm to `limit`, with torch's epsilon."""
    return torch.clamp(limit / (norm + 1e-6), max=1.0)


@torch.no_grad()
def update(
    optimizer: torch.optim.Optimizer, averages: dict[nn.Parameter, Tensor], *, factor: Tensor | None, weight: float
) -> None:
    """Step with the gradients times `factor`, if any, then move the averages by `weight` towards the weights."""
    if isinstance(optimizer, OnePassAdagrad):
        if factor is None:
            factor = torch.ones((), device=optimizer.param_groups[0]["params"][0].device)
        averages = dict(averages)
        for group in optimizer.param_groups:
            constants = {name: group[name] for name in ("lr", "eps", "weight_decay")}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, gradient = optimizer.state[parameter], parameter.grad.contiguous()
                state["step"] += 1
                average = averages.pop(parameter, None)
                elementwise_triton.step_adagrad(
                    parameter, gradient, state["sum"], average, factor=factor, weight=weight, **constants
                )
                torch.autograd.graph.increment_version(parameter)  # torch does not see writes by Triton
    elif factor is not None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, factor)
    if not isinstance(optimizer, OnePassAdagrad):
        optimizer.step()
    if averages:
        torch._foreach_lerp_(list(averages.values()), [p.detach() for p in averages], weight)
