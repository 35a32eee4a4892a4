"""Why gradients are clipped: a cliff in the loss of a recurrent network with one unit, and two ways down.

    x_t = w sigmoid(x_{t-1}) + b        x_0 = 1/2, 50 steps        loss = (sigmoid(x_50) - 0.7)^2

Where w and b make the unit keep one of two values for ever, a small step of w or b lets it fall into the other: the
loss, 50 steps later, has a wall, and the gradient at the wall is large. Plain descent that touches it is thrown far
away, onto a plain where there is next to no gradient to come back by. With the gradient scaled down to a norm it steps
back a little and goes on along the wall.

    Pascanu et al. 2013, On the difficulty of training recurrent neural networks (figure 6 and section 3.2)
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relmo.analysis.core.show import Table, figure, picture
from relmo.errors import SettingError
from relmo.training.optimizer import clip_factor

UNROLL, START, TARGET = 50, 0.5, 0.7


@dataclass(frozen=True)
class Descent:
    """A way down. At each step: w, b, the loss there, the gradient's norm before clipping; how many steps were clipped,
    and the longest step taken."""

    clip: float | None
    w: list[float]
    b: list[float]
    loss: list[float]
    norm: list[float]
    clipped: int
    longest_step: float


@dataclass(frozen=True)
class Cliff:
    """The loss over w and b, [w][b], the gradient's norm there, and the ways down."""

    w: list[float]
    b: list[float]
    loss: list[list[float]]
    norm: list[list[float]]
    lr: float
    descents: list[Descent]

    @property
    def steepest(self) -> float:
        """The largest gradient on the surface."""
        return max(map(max, self.norm))

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return dataclasses.asdict(self) | {"steepest": self.steepest}

    def table(self) -> Table:
        """The ways down side by side."""
        rows = [
            [
                "plain" if way.clip is None else f"clipped at {way.clip:g}",
                figure(way.loss[0], 4),
                f"{way.loss[-1]:.2g}",
                figure(way.longest_step, 2),
                f"{max(way.norm):.2f}",
                str(way.clipped),
                f"{way.w[-1]:.2f}, {way.b[-1]:.2f}",
            ]
            for way in self.descents
        ]
        columns = [
            "descent",
            "first loss",
            "last loss",
            "longest step",
            "largest gradient",
            "steps clipped",
            "ends at w, b",
        ]
        notes = [
            f"{len(self.descents[0].loss)} steps of size {self.lr:g} from w = {self.descents[0].w[0]:g}, "
            f"b = {self.descents[0].b[0]:g}; the largest gradient on the surface is {self.steepest:.1f}"
        ]
        return Table(columns, rows, "one sigmoid unit, 50 steps", notes)

    def _repr_html_(self) -> str:
        return self.table().html()


def _unit_loss(w: Tensor, b: Tensor) -> Tensor:
    """The loss of the network with these weights, any shape."""
    x = torch.full_like(w, START)
    for _ in range(UNROLL):
        x = w * torch.sigmoid(x) + b
    return (torch.sigmoid(x) - TARGET) ** 2


def loss_and_gradient(w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient with a last dimension of 2."""
    w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
    loss = _unit_loss(w, b)
    return loss.detach(), torch.stack(torch.autograd.grad(loss.sum(), (w, b)), dim=-1)


def descend(w: float, b: float, *, lr: float, clip: float | None, steps: int) -> Descent:
    """Gradient descent from (w, b). With `clip` the gradient is scaled as the training loop scales it."""
    place = torch.tensor([w, b], dtype=torch.float64)
    places, losses, norms, moves, clipped = [], [], [], [0.0], 0
    for _ in range(steps):
        loss, gradient = loss_and_gradient(*place)
        norm = gradient.norm()
        places.append(place.tolist())
        losses.append(float(loss))
        norms.append(float(norm))
        if clip is not None:
            clipped += bool(norm > clip)
            gradient = gradient * clip_factor(norm, clip)
        place = place - lr * gradient
        moves.append(lr * float(gradient.norm()))
    ws, bs = (list(values) for values in zip(*places, strict=True))
    return Descent(clip, ws, bs, losses, norms, clipped, max(moves))


def clipping(
    *,
    start: tuple[float, float] = (5.5, -2.5),
    lr: float = 0.3,
    clip: float = 0.5,
    steps: int = 200,
    w_range: tuple[float, float] = (3.0, 8.0),
    b_range: tuple[float, float] = (-5.0, 0.0),
    points: int = 121,
) -> Cliff:
    """The surface over a square of w and b, and descent from `start` without clipping and with it."""
    if clip <= 0 or lr <= 0 or steps < 1 or points < 2:
        raise SettingError(
            f"lr {lr:g} and clip {clip:g} must be above 0, steps {steps} 1 or more and points {points} 2 or more"
        )
    if not all(math.isfinite(value) for value in start):
        raise SettingError(f"start is {start}; give two numbers, w and b")
    w, b = (torch.linspace(*ends, points, dtype=torch.float64) for ends in (w_range, b_range))
    loss, gradient = loss_and_gradient(*torch.meshgrid(w, b, indexing="ij"))
    descents = [descend(*start, lr=lr, clip=limit, steps=steps) for limit in (None, clip)]
    return Cliff(w.tolist(), b.tolist(), loss.tolist(), gradient.norm(dim=-1).tolist(), lr, descents)


def draw_clipping(cliff: Cliff, path: str | Path) -> None:
    """The loss as a surface with the ways over it; beside it the loss and the gradient's norm, step by step."""
    with picture(path, 13, 4.5) as drawn:
        left, middle, right = drawn.subplots(1, 3, width_ratios=(1.3, 1, 1))
        surface = left.contourf(cliff.w, cliff.b, list(zip(*cliff.loss, strict=True)), levels=24, cmap="Greys")
        drawn.colorbar(surface, ax=left, label="loss")
        for way, colour in zip(cliff.descents, ("#e67e22", "#1f6fc0"), strict=True):
            label = "plain" if way.clip is None else f"clipped at {way.clip:g}"
            left.plot(way.w, way.b, ".-", color=colour, lw=1, ms=4, label=label)
            middle.plot(way.loss, color=colour, label=label)
            right.plot(way.norm, color=colour, label=label)
        left.plot(cliff.descents[0].w[0], cliff.descents[0].b[0], "k*", ms=10)
        left.set_xlim(cliff.w[0], cliff.w[-1])
        left.set_ylim(cliff.b[0], cliff.b[-1])
        left.set_xlabel("w")
        left.set_ylabel("b")
        for axes, title in ((middle, "loss"), (right, "norm of the gradient")):
            axes.set_title(title)
            axes.set_xlabel("step")
            axes.set_yscale("log")
        left.legend(fontsize=8)
