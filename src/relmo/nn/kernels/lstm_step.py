"""Arguments of a layer of ELMo's LSTM, common to all backends, and one step of it in torch's operations.

Both directions are in one tensor: z is (2, n, 4H), c and m (2, n, H), h (2, n, P); all are overwritten.
`lstm_step_triton` has the same functions for a GPU.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relmo.nn.recurrence.lstm import clip as clip_to

sigmoid_back, tanh_back = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
unclipped = torch.ops.aten.hardtanh_backward.grad_input  # zero where a value is at its limits


class Clips(NamedTuple):
    """Limits of the cell state and the projected output; None does not clip."""

    cell: float | None
    projection: float | None


class Weights(NamedTuple):
    """Weights of a layer: (2, 4H, I), (2, 4H), (2, 4H, P), and (2, P, H) or None."""

    ih: Tensor
    bias: Tensor
    hh: Tensor
    hr: Tensor | None

    def to(self, dtype: torch.dtype) -> "Weights":
        """Convert the weights to a type."""
        ih, bias, hh = (weight.to(dtype) for weight in self[:3])
        return Weights(ih, bias, hh, None if self.hr is None else self.hr.to(dtype))


class Gates(NamedTuple):
    """Input part of the gates, in place of an input: rows of a table (2, S, 4H), indexed by `words` (2, T, B)."""

    table: Tensor
    words: Tensor

    def rows(self) -> Tensor:
        """Look up the rows; (2, T, B, 4H)."""
        return torch.stack([table[words] for table, words in zip(self.table, self.words, strict=True)])


class Steps(NamedTuple):
    """Run of a layer: initial state h (2, B, P) and c (2, B, H), `sizes[t]` rows at step t, and clips."""

    h: Tensor
    c: Tensor
    sizes: Sequence[int]
    clips: Clips


def lengths_of(sizes: Sequence[int], batch: int) -> Tensor:
    """Return the length of each sequence (B,) from the number of active rows at each step."""
    return (torch.tensor(list(sizes)).unsqueeze(1) > torch.arange(batch)).sum(dim=0)


def forward(
    z: Tensor, bias: Tensor | None, c: Tensor, c_next: Tensor, m: Tensor, cell_clip: float | None, *, keep: bool = True
) -> None:
    """Turn pre-activations z, with the bias (2, 4H) added, into gates; fill c_next (may be c) and m.

    c_next = clip(f c + i g);  m = o tanh(c_next).  `keep` stores the gates.
    """
    if bias is not None:
        z += bias.unsqueeze(1)
    i, f, g, o = z.chunk(4, dim=-1)
    z[..., : 2 * i.shape[-1]].sigmoid_()
    _tanh_(g)
    o.sigmoid_()
    torch.mul(f, c, out=c_next).addcmul_(i, g)
    if cell_clip is not None:
        c_next.clamp_(-cell_clip, cell_clip)
    torch.mul(o, _tanh_(c_next.clone()).to(m.dtype), out=m)


def backward(z: Tensor, dm: Tensor, dc: Tensor, c: Tensor, c_next: Tensor, cell_clip: float | None) -> None:
    """Turn the gates z into gradients before activation, from those of m and of c from later steps, which dc becomes.

    dc += dm * o * (1 - tanh(c_next)^2), and zero where c_next was clipped
    di = dc * g * i(1 - i);   df = dc * c * f(1 - f);   dg = dc * i * (1 - g^2);   do = dm * tanh(c_next) * o(1 - o)
    """
    i, f, g, o = z.chunk(4, dim=-1)
    t = _tanh_(c_next.clone())
    dc += tanh_back(dm * o, t.to(dm.dtype))
    if cell_clip is not None:
        unclipped(dc, c_next, -cell_clip, cell_clip, grad_input=dc)
    low = dc.to(z.dtype)
    di, dg = sigmoid_back(low * g, i), tanh_back(low * i, g)
    df = sigmoid_back((dc * c).to(z.dtype), f)
    dc *= f
    o.copy_(sigmoid_back(dm * t.to(dm.dtype), o))
    i.copy_(di)
    f.copy_(df)
    g.copy_(dg)


def project(m: Tensor, weight_hr: Tensor, h: Tensor, clip: float | None) -> None:
    """Fill h with the projection clip(m W_hr^T)."""
    h.copy_(clip_to(torch.bmm(m, weight_hr.transpose(1, 2)), clip))


def parts_of(z: Tensor, size: int) -> Tensor:
    """Allocate the parts of `to_output`: (parts, 2, n, P)."""
    return z.new_empty(1, *z.shape[:2], size)


def to_output(z: Tensor, weight_hh: Tensor, parts: Tensor) -> None:
    """Fill the parts, whose sum z W_hh is the gradient of the previous h."""
    torch.bmm(z, weight_hh, out=parts[0])


def output_gradient(dy: Tensor, parts: Tensor, h: Tensor, dh: Tensor, clip: float | None) -> None:
    """Fill dh with the sum of dy and the parts, zero where the output h was clipped; all (2, n, P)."""
    torch.add(dy, parts[0], out=dh)
    if clip is not None:
        unclipped(dh, h, -clip, clip, grad_input=dh)


def _tanh_(x: Tensor) -> Tensor:
    """Apply tanh in place; on a CPU as 2 sigmoid(2 x) - 1, several times faster (and within 1e-7)."""
    return x.tanh_() if x.is_cuda else x.mul_(2).sigmoid_().mul_(2).sub_(1)
