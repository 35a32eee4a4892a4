"""A network taught by another: losses that compare what the two say of the same text.

    predictions    (1 - a) * -log p(y)  +  a * sum_k q(k) * -log p(k)        Hinton et al. 2015, at temperature 1
    layers         |M h - g|^2 / |g|^2                                      Romero et al. 2015

p and q are the student's and the teacher's distributions, y is the word that follows, a the teacher's share; h and g
are their outputs of a layer and M is a matrix that is learnt beside the student.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from relmo.nn.kernels import softmax_triton
from relmo.nn.softmax import rows_at_once, softmax_shares


class Logits(NamedTuple):
    """z = W x + b of N rows x (N, D) for S symbols, W (S, D) and b (S,); of a sampled softmax each row's target is a
    further symbol with the weights `own` (N, D) and `own_bias` (N,)."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    own: Tensor | None
    own_bias: Tensor | None

    def of_targets(self) -> Tensor | None:
        """Each row's own logit; (N,)."""
        if self.own is None or self.own_bias is None:
            return None
        return (self.x * self.own).sum(dim=1, dtype=torch.float32) + self.own_bias


def taught_loss(student: Logits, teacher: Logits, place: Tensor, share: float) -> Tensor:
    """The mean loss of the predictions. `place` (N,) is as in `SoftmaxLoss`. The teacher gets no gradient: autograd
    does not look into tuples."""
    return TaughtLoss.apply(*student, teacher, place, share)


class TaughtLoss(torch.autograd.Function):
    """As `SoftmaxLoss`, with the gradient computed in the forward pass, some rows at a time.

    By the student's logits it is p - (1 - a) * [y] - a * q = (p - [y]) - a * (q - [y]): the gradient of the plain loss
    less a times what the teacher's would be."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        own: Tensor | None,
        own_bias: Tensor | None,
        teacher: Logits,
        place: Tensor,
        share: float,
    ) -> Tensor:
        student = Logits(x, weight, bias, own, own_bias)
        count = rows_at_once(weight)
        total = x.new_zeros((), dtype=torch.float32)
        dx, dw = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        db, d_own = torch.zeros_like(bias, dtype=torch.float32), torch.empty_like(place, dtype=torch.float32)
        own_logits = student.of_targets(), teacher.of_targets()
        buffers = [x.new_empty(min(count, len(x)), len(weight)) for _ in range(2)]
        with torch.autocast(x.device.type, enabled=False):
            for begin in range(0, len(x), count):
                part = slice(begin, begin + count)
                z, q = (
                    torch.mm(given.x[part], given.weight.to(given.x.dtype).t(), out=buffer[: len(x) - begin])
                    for given, buffer in zip((student, teacher), buffers, strict=True)
                )
                owns = [None if each is None else each[part] for each in own_logits]
                _, d_teacher, teacher_columns = _shares(q, teacher.bias.float(), owns[1], place[part])
                expected = _expected(q, d_teacher, z, bias.float(), owns[0])  # of z - z_y, by the teacher
                nll, d_own[part], columns = _shares(z, bias.float(), owns[0], place[part])
                total += nll.sum() - share * expected.sum()
                z.sub_(q, alpha=share)
                d_own[part] -= share * d_teacher
                torch.mm(z, weight.to(x.dtype), out=dx[part])
                dw += torch.mm(z.t(), x[part])
                db += columns - share * teacher_columns
        d_row = None
        if own is not None:
            d_low = d_own.to(x.dtype).unsqueeze(1)
            dx.addcmul_(d_low, own)
            d_row = d_low * x
        d_bias = None if own_bias is None else d_own.to(own_bias.dtype)
        ctx.save_for_backward(dx, dw.to(weight.dtype), db.to(bias.dtype), d_row, d_bias)
        return total / len(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        d = d / len(ctx.saved_tensors[0])
        return *(None if g is None else g * d.to(g.dtype) for g in ctx.saved_tensors), None, None, None


def _shares(logits: Tensor, bias: Tensor, own: Tensor | None, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shares = softmax_triton.shares if softmax_triton.available(logits) else softmax_shares
    return shares(logits, bias, own, place)


def _expected(q: Tensor, d_own: Tensor, z: Tensor, bias: Tensor, own: Tensor | None) -> Tensor:
    """sum_k q_k (z_k - z_y) for each row, from q - [y] as `softmax_shares` leaves it; (n,). It is what the teacher's
    share takes off the plain loss."""
    inner = (q * z).sum(dim=1, dtype=torch.float32) + torch.mv(q, bias.to(q.dtype)).float()
    return inner if own is None else inner + d_own * own


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
