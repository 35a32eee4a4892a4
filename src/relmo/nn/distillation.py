"""A network whose layers are drawn to those of another.

    |M h - g|^2 / |g|^2        Romero et al. 2015, FitNets: hints for thin deep nets

h and g are outputs of a layer of the student and of the teacher; M is a matrix that is learned on the way. What the
student learns from the teacher's predictions is in `softmax.py`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LayerMaps(nn.Module):
    """A matrix for each layer and direction, from the student's outputs to the teacher's."""

    def __init__(self, layers: int, size: int, teacher_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layers, 2, size, teacher_size))
        nn.init.normal_(self.weight, std=1 / math.sqrt(size))

    def distance(self, student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
        """The mean over layers (each (2, T, B, P)) of |M h - g|^2 / |g|^2."""
        parts = []
        for weight, h, g in zip(self.weight, student, teacher, strict=True):
            mapped = torch.bmm(h.flatten(1, 2), weight.to(h.dtype))
            g = g.flatten(1, 2).detach()
            parts.append((mapped - g).float().square().mean() / g.float().square().mean())
        return torch.stack(parts).mean()
