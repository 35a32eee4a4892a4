"""Why gradients are clipped: a cliff in the loss of a recurrent network with one unit, and two ways down (cliff.png).

    x_t = w sigmoid(x_{t-1}) + b        x_0 = 1/2, 50 steps        loss = (sigmoid(x_50) - 0.7)^2

With some w and b the unit keeps one of two values for ever. A small step of w or b then lets it fall into the other
value, so the loss has a wall, where the gradient is large. Plain descent that touches the wall is thrown far away, to
where there is hardly any gradient to come back by. Clipped descent steps back a little and goes on along the wall.

    Pascanu et al. 2013, On the difficulty of training recurrent neural networks (figure 6 and section 3.2)
"""

import torch
from matplotlib.figure import Figure
from torch import Tensor

LR, STEPS, START = 0.3, 200, (5.5, -2.5)


def loss_and_gradient(w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The loss at weights of any shape, and its gradient with a last dimension of 2."""
    w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
    x = torch.full_like(w, 0.5)
    for _ in range(50):
        x = w * torch.sigmoid(x) + b
    loss = (torch.sigmoid(x) - 0.7) ** 2
    return loss.detach(), torch.stack(torch.autograd.grad(loss.sum(), (w, b)), dim=-1)


def descend(clip: float) -> Tensor:
    """Gradient descent with gradients scaled down to a norm of `clip`. -> w, b, loss, gradient's norm; (STEPS, 4)."""
    place, rows = torch.tensor(START, dtype=torch.float64), []
    for _ in range(STEPS):
        loss, gradient = loss_and_gradient(*place)
        norm = gradient.norm()
        rows.append(torch.stack([*place, loss, norm]))
        place = place - LR * gradient * (clip / (norm + 1e-6)).clamp(max=1.0)
    return torch.stack(rows)


w, b = (torch.linspace(*ends, 121, dtype=torch.float64) for ends in ((3, 8), (-5, 0)))
surface, _ = loss_and_gradient(*torch.meshgrid(w, b, indexing="xy"))
picture = Figure(figsize=(13, 4.5), layout="constrained")
left, middle, right = picture.subplots(1, 3, width_ratios=(1.3, 1, 1))
picture.colorbar(left.contourf(w, b, surface, levels=24, cmap="Greys"), ax=left, label="loss")
for name, clip, colour in (("plain", float("inf"), "#e67e22"), ("clipped at 0.5", 0.5, "#1f6fc0")):
    way = descend(clip)
    print(f"{name:14}  last loss {way[-1, 2]:.2g}, largest gradient {way[:, 3].max():.2f}")
    left.plot(way[:, 0], way[:, 1], ".-", color=colour, lw=1, ms=4, label=name)
    middle.plot(way[:, 2], color=colour)
    right.plot(way[:, 3], color=colour)
left.plot(*START, "k*", ms=10)
left.set(xlim=(3, 8), ylim=(-5, 0), xlabel="w", ylabel="b")
left.legend(fontsize=8)
middle.set(title="loss", xlabel="step", yscale="log")
right.set(title="norm of the gradient", xlabel="step", yscale="log")
picture.savefig("cliff.png", dpi=120)
