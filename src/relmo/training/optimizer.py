"""Optimisers: construction, gradient clipping, and the update of weights and their moving average.

The optimisers are torch's. `OnePassAdagrad` is Adagrad in a single pass over memory on a GPU, where torch has no fused
kernel; its state is the same.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relmo.nn.kernels import elementwise_triton
from relmo.settings.training import TrainSettings
from relmo.training.muon import Muon, find_hidden_matrices

MOMENTS = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "muon": ("exp_avg", "exp_avg_sq"),
    "adagrad": ("sum",),
    "sgd": ("momentum_buffer",),
}
"""State tensors of the parameter's shape, by optimiser. All but SGD count steps; Muon's matrices have SGD's state."""


class OnePassAdagrad(torch.optim.Adagrad):
    """torch's Adagrad with `update` in place of `step`."""

    @torch.no_grad()
    def update(self, averages: dict[nn.Parameter, Tensor], *, factor: Tensor | None, weight: float) -> None:
        """Take one step as the function `update` does."""
        if factor is None:
            factor = torch.ones((), device=self.param_groups[0]["params"][0].device)
        pending = dict(averages)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["step"] += 1
                elementwise_triton.step_adagrad(
                    parameter,
                    parameter.grad.contiguous(),
                    state["sum"],
                    pending.pop(parameter, None),
                    factor=factor,
                    lr=group["lr"],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                    weight=weight,
                )
                torch.autograd.graph.increment_version(parameter)  # torch does not see writes by Triton
        if pending:
            torch._foreach_lerp_(list(pending.values()), [p.detach() for p in pending], weight)


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
        rows = {p: count for p, count in find_hidden_matrices(model).items() if p.requires_grad}
        groups = [
            {"params": list(rows), "rows": list(rows.values()), "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p not in rows], "weight_decay": 0.0},
        ]
        return Muon(groups, lr=settings.lr, fused=dense)
    if settings.optimizer == "adagrad":
        fused = dense and parameters[0].device.type == "cpu"  # torch has no fused Adagrad for GPUs
        adagrad = OnePassAdagrad if dense and elementwise_triton.supports_adagrad(*parameters) else torch.optim.Adagrad
        return adagrad(
            groups, lr=settings.lr, initial_accumulator_value=settings.initial_accumulator, fused=fused or None
        )
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=settings.lr, fused=dense)


def make_state_template(optimizer: torch.optim.Optimizer, settings: TrainSettings) -> list[dict[str, Tensor]]:
    """Return tensors with the types and shapes of each parameter's state, in torch's order of parameters."""
    states: list[dict[str, Tensor]] = []
    for group in optimizer.param_groups:
        names = MOMENTS["sgd" if "rows" in group else settings.optimizer]
        for parameter in group["params"]:
            state: dict[str, Tensor] = dict.fromkeys(names, parameter)
            states.append(state if settings.optimizer == "sgd" else state | {"step": torch.zeros(())})
    return states


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
        optimizer.update(averages, factor=factor, weight=weight)
        return
    if factor is not None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, factor)
    optimizer.step()
    if averages:
        torch._foreach_lerp_(list(averages.values()), [p.detach() for p in averages], weight)
