"""Products of weights and activations in fewer bits: what they are, in torch's operations.

    float32    x W^T
    bfloat16   both rounded to bfloat16; sums in float32
    int8       both as whole numbers from -127 to 127 times a scale; sums of these exact, then float32
               x (…, K): a scale for every BLOCK numbers of a row;  W (N, K): for every BLOCK numbers of an output

A block's scale is its largest magnitude over 127. The products of a block add up to less than 2^24, so float32 holds
their sum exactly, whatever the order. The compiled kernels (`kernels/infer_cpu.py`) use int32 and agree within
rounding. Weights that were stored as int8 (`store/weights.py`, with the same blocks) keep their numbers: they are not
rounded twice.

One product is levelled first: an LSTM's projection W m of its cells' outputs m. Training makes the outputs of a few
cells many times larger than the rest, some at every word, and makes their columns of W smaller. A scale that fits these
cells leaves few whole numbers for the others. With l_k the length of column w_k of W,

    W m = sum_k (w_k / l_k) (l_k m_k)

and l_k m_k is as large as what cell k contributes. Rounded in this form, every cell has the same share in the error.
The l_k come from the weights alone; W / l is rounded anew.  (Xiao et al. 2023, SmoothQuant, use activations, too.)
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

BLOCK = 512  # numbers that share a scale
LARGEST = 127


class Quantized(NamedTuple):
    """Numbers as values * scale: whole values (…, K) held as float32, a scale for each block (…, K / BLOCK)."""

    values: Tensor
    scale: Tensor

    def numbers(self) -> Tensor:
        """values * scale (…, K)."""
        blocks = zip(self.values.split(BLOCK, dim=-1), self.scale.split(1, dim=-1), strict=True)
        return torch.cat([values * scale for values, scale in blocks], dim=-1)


def quantize(x: Tensor, *, scales: torch.dtype = torch.float32) -> Quantized:
    """int8 of numbers (…, K), with scales rounded to a type. A NaN makes its block's scale NaN."""
    size = x.shape[-1]
    blocks = pad(x, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(dim=-1)  # (…, blocks)
    scale, by = largest / LARGEST, LARGEST / largest
    if scales != torch.float32:
        scale = scale.to(scales).float()
        by = 1 / scale
    by = torch.where(scale > 0, by, 0.0)
    values = (blocks * by.unsqueeze(-1)).round().clamp(-LARGEST, LARGEST).nan_to_num(0.0)
    return Quantized(values.flatten(-2)[..., :size], scale)


def level(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight (…, N, K) with its columns made 1 long, and how long they were (…, K); 1 for a column of zeros."""
    length = torch.linalg.vector_norm(weight, dim=-2, dtype=torch.float64).to(weight.dtype)
    length = torch.where(length > 0, length, 1.0)
    return weight / length.unsqueeze(-2), length


class Factor:
    """A weight (…, N, K) made ready to be multiplied by; in int8 levelled, where that is wanted."""

    def __init__(self, weight: Tensor, precision: Precision, *, levelled: bool = False):
        self.precision = precision
        self.level: Tensor | None = None
        if levelled and precision == "int8":
            weight, self.level = level(weight)
        self.weight = quantize(weight) if precision == "int8" else rounded(weight, precision)

    def product(self, x: Tensor) -> Tensor:
        """x (…, n, K) -> (…, n, N), float32."""
        if isinstance(self.weight, Tensor):
            return rounded(x, self.precision) @ self.weight.mT
        values, scales = quantize(x if self.level is None else x * self.level.unsqueeze(-2))
        total = x.new_zeros(())
        parts = zip(values.split(BLOCK, dim=-1), self.weight.values.split(BLOCK, dim=-1), strict=True)
        for block, (a, b) in enumerate(parts):
            scale = scales[..., block].unsqueeze(-1) * self.weight.scale[..., block].unsqueeze(-2)
            total = total + (a @ b.mT) * scale
        return total


def rounded(x: Tensor, precision: Precision) -> Tensor:
    """The numbers as the precision has them, in float32."""
    return x.bfloat16().float() if precision == "bfloat16" else x
