"""Products of weights and activations in reduced precision, defined in torch's operations.

    float32    x W^T
    bfloat16   both rounded to bfloat16; sums in float32
    int8       both as whole numbers from -127 to 127 times a scale for every BLOCK numbers of a row of x (…, K) or of
               an output of W (N, K), its largest magnitude over 127; sums of these exact, then float32

The products of a block add up to less than 2^24, so float32 holds their sum exactly in any order. The compiled kernels
(`kernels/lstm_cpu.py`) use int32 and agree within rounding. Weights stored as int8 (`store/weights.py`) have the same
blocks and are not rounded twice.

One product is levelled first, an LSTM's projection W m: training makes the outputs m of a few cells many times larger,
and their columns of W smaller, and a scale that fits these leaves few integers for the others. With l_k the length of
column w_k, W m = sum_k (w_k / l_k) (l_k m_k), and every cell has the same share in the rounding error.
(Xiao et al. 2023, SmoothQuant, use activations, too.)
"""

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

BLOCK = 512  # numbers that share a scale
MAX_INT8 = 127
GROUP = 64  # numbers that share a scale in NF4
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8)
MIN_LENGTH = 1e-7  # of a column; smaller ones are 0 in float16
# fmt: off
NF4_LEVELS = (
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
)
# fmt: on
"""Levels of NormalFloat, a quantile each of normally distributed numbers."""


class Quantized(NamedTuple):
    """Numbers as values * scale: integers (…, K) stored as float32, and a scale per block (…, K / BLOCK)."""

    values: Tensor
    scale: Tensor

    def numbers(self) -> Tensor:
        """Return values * scale (…, K)."""
        blocks = zip(self.values.split(BLOCK, dim=-1), self.scale.split(1, dim=-1), strict=True)
        return torch.cat([values * scale for values, scale in blocks], dim=-1)


def quantize(x: Tensor, *, scales: torch.dtype = torch.float32) -> Quantized:
    """Quantize numbers (…, K) to int8, with scales rounded to a type. A NaN makes the scale of its block NaN."""
    size = x.shape[-1]
    blocks = pad(x, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(dim=-1)  # (…, blocks)
    scale, inverse = largest / MAX_INT8, MAX_INT8 / largest
    if scales != torch.float32:
        scale = scale.to(scales).float()
        inverse = 1 / scale
    inverse = torch.where(scale > 0, inverse, 0.0)
    values = (blocks * inverse.unsqueeze(-1)).round().clamp(-MAX_INT8, MAX_INT8).nan_to_num(0.0)
    return Quantized(values.flatten(-2)[..., :size], scale)


class NormalFloat(NamedTuple):
    """Numbers (…, N, K) as level * scale * length: the indices of levels, two in a byte (…, N, K / 2), the first in the
    lower half; a scale per GROUP of a row; and the length of each column (…, 1, K), as in `level_columns`."""

    levels: Tensor
    scale: Tensor
    length: Tensor

    def numbers(self) -> Tensor:
        """Return the numbers (…, N, K)."""
        size, levels = self.length.shape[-1], torch.tensor(NF4_LEVELS)
        halves = (levels[half.int()] for half in (self.levels & 15, self.levels >> 4))
        numbers = torch.stack([*halves], dim=-1).flatten(-2)[..., :size]
        numbers *= self.scale.float().repeat_interleave(GROUP, dim=-1)[..., :size]  # in place: a matrix may be large
        return numbers.mul_(self.length.float())


def quantize_nf4(x: Tensor) -> NormalFloat:
    """Quantize numbers (…, N, K) to the 16 levels of NF4, with scales and lengths in float16.

    Of CLIPS, the shares of the largest magnitude that become the largest level, each group has the one with the
    smallest squared error. A number that is not finite makes its scale so. (Dettmers et al. 2023, QLoRA)"""
    _, length = level_columns(x)
    length = length.half().float().clamp(min=MIN_LENGTH).unsqueeze(-2)
    groups = pad(x / length, (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1)
    levels = torch.tensor(NF4_LEVELS)
    limits = (levels[1:] + levels[:-1]) / 2
    best = torch.full_like(largest, math.inf)
    scale, indices = torch.zeros_like(largest), torch.zeros_like(groups, dtype=torch.uint8)
    for clip in CLIPS:
        candidate = (largest * clip).half().float()
        inverse = torch.where(candidate != 0, 1 / candidate, 0.0).unsqueeze(-1)
        nearest = torch.bucketize(groups * inverse, limits)
        error = (groups - levels[nearest] * candidate.unsqueeze(-1)).square().sum(dim=-1)
        is_better = ~(error >= best)
        best, scale = torch.where(is_better, error, best), torch.where(is_better, candidate, scale)
        indices = torch.where(is_better.unsqueeze(-1), nearest.to(torch.uint8), indices)
    halves = pad(indices.flatten(-2)[..., : x.shape[-1]], (0, x.shape[-1] % 2)).unflatten(-1, (-1, 2))
    return NormalFloat(halves[..., 0] | (halves[..., 1] << 4), scale.half(), length.half())


def level_columns(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise the columns of a weight (…, N, K) to length 1; return it and their lengths (…, K), 1 for zeros."""
    length = torch.linalg.vector_norm(weight, dim=-2, dtype=torch.float64).to(weight.dtype)
    length = torch.where(length > 0, length, 1.0)
    return weight / length.unsqueeze(-2), length


class Factor:
    """A weight (…, N, K) prepared for products; `levelled` applies to int8."""

    def __init__(self, weight: Tensor, precision: Precision, *, levelled: bool = False):
        self.precision = precision
        self.level: Tensor | None = None
        if levelled and precision == "int8":
            weight, self.level = level_columns(weight)
        self.weight = quantize(weight) if precision == "int8" else round_to(weight, precision)

    def product(self, x: Tensor) -> Tensor:
        """Multiply x (…, n, K) by the weight; (…, n, N), float32."""
        if isinstance(self.weight, Tensor):
            return round_to(x, self.precision) @ self.weight.mT
        values, scales = quantize(x if self.level is None else x * self.level.unsqueeze(-2))
        total = x.new_zeros(())
        parts = zip(values.split(BLOCK, dim=-1), self.weight.values.split(BLOCK, dim=-1), strict=True)
        for block, (a, b) in enumerate(parts):
            scale = scales[..., block].unsqueeze(-1) * self.weight.scale[..., block].unsqueeze(-2)
            total = total + (a @ b.mT) * scale
        return total


def round_to(x: Tensor, precision: Precision) -> Tensor:
    """Round the numbers to a precision, in float32."""
    return x.bfloat16().float() if precision == "bfloat16" else x
