"""What an activation does to a gradient: its slope, as numbers and as a picture (activations.png).

A gradient that goes back through an activation is multiplied by its slope at every step. A slope that is always below 1
makes it vanish: the sigmoid's is at most 0.25, which leaves less than a millionth after ten steps.
"""

import torch
from matplotlib.figure import Figure
from torch.nn import functional

ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "gelu": functional.gelu}

x = torch.linspace(-6, 6, 241, dtype=torch.float64, requires_grad=True)
picture = Figure(figsize=(10, 4), layout="constrained")
left, right = picture.subplots(1, 2)
print("activation  largest slope  to the power of 10  % of x with a slope below 0.1")
for name, activation in ACTIVATIONS.items():
    y = activation(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    largest, flat = float(slope.max()), float((slope < 0.1).double().mean())
    print(f"{name:<10}  {largest:13.3f}  {largest**10:18.2g}  {100 * flat:29.0f}")
    left.plot(x.detach(), y.detach(), label=name)
    right.plot(x.detach(), slope, label=f"{name}, at most {largest:.2g}")
left.set(title="y", xlabel="x", ylim=(-1.1, 3))
right.set(title="dy/dx", xlabel="x")
for axes in (left, right):
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
picture.savefig("activations.png", dpi=120)
