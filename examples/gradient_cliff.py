"""Compare gradient descent with and without clipping on a loss surface with a cliff (cliff.png).

    x_t = w sigmoid(x_{t-1}) + b        x_0 = 1/2, 50 steps        loss = (sigmoid(x_50) - 0.7)^2

For some w and b, the recurrence has two stable fixed points. A small change of w or b moves the unit from one to the
other, so the loss has a cliff with a large gradient. Without clipping, a step at the cliff ends far away in a flat
region. With clipping, the step is small, and the descent continues along the cliff.

    Pascanu et al. 2013, On the difficulty of training recurrent neural networks (figure 6 and section 3.2)
"""

import torch
from torch import Tensor

from relmo.analysis.core.show import PALETTE, save_figure

LR, STEPS, START = 0.3, 200, (5.5, -2.5)


def loss_and_gradient(w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss at weights of any shape, and its gradient with a last dimension of 2."""
    w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
    x = torch.full_like(w, 0.5)
    for _ in range(50):
        x = w * torch.sigmoid(x) + b
    loss = (torch.sigmoid(x) - 0.7) ** 2
    return loss.detach(), torch.stack(torch.autograd.grad(loss.sum(), (w, b)), dim=-1)


def descend(clip: float) -> Tensor:
    """Run gradient descent with clipping; return w, b, loss and gradient norm of each step as (STEPS, 4)."""
    point, rows = torch.tensor(START, dtype=torch.float64), []
    for _ in range(STEPS):
        loss, gradient = loss_and_gradient(*point)
        norm = gradient.norm()
        rows.append(torch.stack([*point, loss, norm]))
        point = point - LR * gradient * (clip / (norm + 1e-6)).clamp(max=1.0)
    return torch.stack(rows)


w, b = (torch.linspace(*limits, 121, dtype=torch.float64) for limits in ((3, 8), (-5, 0)))
surface, _ = loss_and_gradient(*torch.meshgrid(w, b, indexing="xy"))
with save_figure("cliff.png", 13, 4.5) as figure:
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    figure.colorbar(left.contourf(w, b, surface, levels=24, cmap="Greys"), ax=left, label="loss")
    for name, clip, colour in (("unclipped", float("inf"), PALETTE[1]), ("clipped at 0.5", 0.5, PALETTE[0])):
        path = descend(clip)
        print(f"{name:14}  final loss {path[-1, 2]:.2g}, largest gradient norm {path[:, 3].max():.2f}")
        left.plot(path[:, 0], path[:, 1], ".-", color=colour, lw=1, ms=4, label=name)
        middle.plot(path[:, 2], color=colour)
        right.plot(path[:, 3], color=colour)
    left.plot(*START, "k*", ms=10)
    left.set(xlim=(3, 8), ylim=(-5, 0), xlabel="w", ylabel="b", title="loss surface")
    left.legend()
    middle.set(title="loss", xlabel="step", yscale="log")
    right.set(title="gradient norm", xlabel="step", yscale="log")
