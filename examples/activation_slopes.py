"""Plot activation functions and their derivatives (activations.png), and print the largest derivatives.

In back-propagation, the gradient is multiplied by the derivative of the activation at every step. If the derivative is
always below 1, the gradient vanishes: that of the sigmoid is at most 0.25, so less than a millionth remains after ten
steps.
"""

import torch
from torch.nn import functional

from relmo.analysis.core.show import save_figure

ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "gelu": functional.gelu}

x = torch.linspace(-6, 6, 241, dtype=torch.float64, requires_grad=True)
print("activation  max derivative  to the power of 10  % of x with derivative < 0.1")
with save_figure("activations.png", 10, 4) as figure:
    left, right = figure.subplots(1, 2)
    for name, activation in ACTIVATIONS.items():
        y = activation(x)
        (derivative,) = torch.autograd.grad(y.sum(), x)
        maximum, flat_share = float(derivative.max()), float((derivative < 0.1).double().mean())
        print(f"{name:<10}  {maximum:14.3f}  {maximum**10:18.2g}  {100 * flat_share:25.0f}")
        left.plot(x.detach(), y.detach(), label=name)
        right.plot(x.detach(), derivative, label=f"{name}, at most {maximum:.2g}")
    left.set(title="y", xlabel="x", ylim=(-1.1, 3))
    right.set(title="dy/dx", xlabel="x")
    for axes in (left, right):
        axes.grid(visible=True)
        axes.legend()
