"""Distillation of layers: a student network whose layers approximate those of a teacher.

    |M h - g|^2 / |g|^2        Romero et al. 2015, FitNets: hints for thin deep nets

h and g are outputs of a layer of the student and of the teacher; M is a learned matrix. Distillation of predictions is
in `softmax.py`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LayerMaps(nn.Module):
    """Matrices from the student's outputs to the teacher's, one for each layer and direction."""

    def __init__(self, layers: int, size: int, teacher_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layers, 2, size, teacher_size))
        nn.init.normal_(self.weight, std=1 / math.sqrt(size))

    def distance(self, student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
        """Return the mean over layers (each (2, T, B, P)) of |M h - g|^2 / |g|^2."""
        distances = []
        for weight, h, g in zip(self.weight, student, teacher, strict=True):
            mapped = torch.bmm(h.flatten(1, 2), weight.to(h.dtype))
            g = g.flatten(1, 2).detach()
            distances.append((mapped - g).float().square().mean() / g.float().square().mean())
        return torch.stack(distances).mean()
