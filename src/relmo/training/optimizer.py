"""One step of the optimiser: gradients clipped, weights moved, their average moved after them.

The optimisers are torch's. `OnePassAdagrad` does the same with Adagrad in a single pass over memory on a GPU, where
torch has no fused one; its state is torch's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relmo.nn.kernels import adagrad_triton
from relmo.settings.training import TrainSettings
from relmo.training.muon import Muon, hidden_matrices

MOMENTS = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "muon": ("exp_avg", "exp_avg_sq"),
    "adagrad": ("sum",),
    "sgd": ("momentum_buffer",),
}
"""What is kept for each parameter, of the parameter's shape; beside it, but for SGD, a count of steps. Muon's matrices
have the momentum alone."""


class OnePassAdagrad(torch.optim.Adagrad):
    """torch's Adagrad, with `update` in place of `step`."""

    @torch.no_grad()
    def update(self, averages: dict[nn.Parameter, Tensor], *, factor: Tensor | None, weight: float) -> None:
        """As the function `update`."""
        if factor is None:
            factor = torch.ones((), device=self.param_groups[0]["params"][0].device)
        still = dict(averages)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["step"] += 1
                adagrad_triton.step(
                    parameter,
                    parameter.grad.contiguous(),
                    state["sum"],
                    still.pop(parameter, None),
                    factor=factor,
                    lr=group["lr"],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                    weight=weight,
                )
                torch.autograd.graph.increment_version(parameter)  # torch does not see what Triton writes
        if still:
            torch._foreach_lerp_(list(still.values()), [p.detach() for p in still], weight)


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """The settings' optimiser; weight decay spares biases. Fused kernels wherever gradients are dense."""
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
        rows = {p: count for p, count in hidden_matrices(model).items() if p.requires_grad}
        others = [p for p in parameters if p not in rows]
        matrices = {"params": list(rows), "rows": list(rows.values()), "weight_decay": settings.weight_decay}
        groups = [matrices, {"params": others, "weight_decay": 0.0}]
        return Muon(groups, lr=settings.lr, fused=dense)
    if settings.optimizer == "adagrad":
        start, fused = settings.initial_accumulator, dense and parameters[0].device.type == "cpu"  # all that torch has
        adagrad = OnePassAdagrad if dense and adagrad_triton.available(*parameters) else torch.optim.Adagrad
        return adagrad(groups, lr=settings.lr, initial_accumulator_value=start, fused=fused or None)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=settings.lr, fused=dense)


def state_like(optimizer: torch.optim.Optimizer, settings: TrainSettings) -> list[dict[str, Tensor]]:
    """For each parameter, in the order in which torch numbers them, tensors of the types and shapes of its state."""
    like: list[dict[str, Tensor]] = []
    for group in optimizer.param_groups:
        names = MOMENTS["sgd" if "rows" in group else settings.optimizer]
        for parameter in group["params"]:
            own: dict[str, Tensor] = dict.fromkeys(names, parameter)
            like.append(own if settings.optimizer == "sgd" else own | {"step": torch.zeros(())})
    return like


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The norm of all dense gradients together, on the device."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse])


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """What gradients of this norm are multiplied by, so that it is at most `limit`; as torch has it."""
    return torch.clamp(limit / (norm + 1e-6), max=1.0)


@torch.no_grad()
def update(
    optimizer: torch.optim.Optimizer, averages: dict[nn.Parameter, Tensor], *, factor: Tensor | None, weight: float
) -> None:
    """One step of the optimiser with gradients times `factor` (as they are without); then the averages, by parameter,
    move by `weight` towards the weights."""
    if isinstance(optimizer, OnePassAdagrad):
        optimizer.update(averages, factor=factor, weight=weight)
        return
    if factor is not None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, factor)
    optimizer.step()
    if averages:
        torch._foreach_lerp_(list(averages.values()), [p.detach() for p in averages], weight)
