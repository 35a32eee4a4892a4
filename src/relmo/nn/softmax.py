"""Output layers: from features (N, D) to a distribution over V symbols.

Each has the same three methods: `loss(x, targets)`, the mean training loss; `nll(x, targets)`, the exact negative
log-likelihood of each target (N,); and `log_probs(x)`, the whole distribution (N, V).

    full       exact
    sampled    trains against a sample of the vocabulary (Jean et al. 2015), scores exactly
    adaptive   clusters by frequency, the rarer in fewer dimensions (Grave et al. 2017)

Sampled and adaptive softmax need symbols sorted by falling frequency.

The loss of the first two may be taught (Hinton et al. 2015, Distilling the knowledge in a neural network): with a
teacher's distribution q and its share a it is (1 - a) * -log p(y) + a * sum_k q(k) * -log p(k), where y is the target.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, embedding, linear, log_softmax

from relmo.nn.kernels import softmax_triton

LOGITS_AT_ONCE = {"cuda": 1 << 26, "cpu": 1 << 22}  # logits held in memory at a time; on a CPU they fit its cache
FEWEST_ROWS = 128  # with fewer rows of logits products get slow


class FullSoftmax(nn.Module):
    """p(y | x) = softmax(W x + b); with a bottleneck of fewer than `size` dimensions, softmax(W R x + b)."""

    def __init__(self, size: int, vocab_size: int, *, bottleneck: int | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, bottleneck or size))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[1]))
        self.bottleneck: nn.Linear | None = None
        if bottleneck is not None:
            self.bottleneck = nn.Linear(size, bottleneck, bias=False)
            nn.init.normal_(self.bottleneck.weight, std=1 / math.sqrt(size))

    def reduced(self, x: Tensor) -> Tensor:
        """What W is multiplied with: x (N, D), or R x."""
        return x if self.bottleneck is None else self.bottleneck(x)

    def vectors(self, symbols: Tensor) -> Tensor:
        """What x is multiplied with for the logits of these symbols: their rows of W, or of W R; (…, D)."""
        rows = self.weight[symbols]
        return rows if self.bottleneck is None else rows @ self.bottleneck.weight

    def logits(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, V)."""
        return linear(self.reduced(x), self.weight, self.bias)

    def loss(self, x: Tensor, targets: Tensor, lesson: "Lesson | None" = None) -> Tensor:
        """The mean training loss of the targets (N,)."""
        if lesson is None and not torch.is_grad_enabled():
            return self.nll(x, targets).mean()
        taught = None if lesson is None else lesson.of_all()
        return SoftmaxLoss.apply(autocast(self.reduced(x)), self.weight, self.bias, None, None, targets, taught)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """The exact negative log-likelihood of each target; (N,)."""
        rows = _rows_at_once(self.weight)
        chunks = zip(x.split(rows), targets.split(rows), strict=True)
        return torch.cat([cross_entropy(self.logits(a).float(), b, reduction="none") for a, b in chunks])

    def log_probs(self, x: Tensor) -> Tensor:
        """The whole distribution; (N, V)."""
        return log_softmax(self.logits(x).float(), dim=-1)


class SampledSoftmax(FullSoftmax):
    """Trains on the target and `samples` other symbols, drawn log-uniformly without replacement; the vocabulary must be
    sorted by frequency.

    The logit of every symbol is lowered by the log of its expected count in the sample, so that the estimate's gradient
    approaches the full softmax's; a sampled symbol that is the target itself is taken out.

    Drawing until `samples` distinct symbols have come up is the same as keeping the `samples` largest of log p + Gumbel
    noise, which needs no loop. The expected count of symbol k is 1 - (1 - p_k)^T, T being the number of draws after
    which `samples` distinct symbols are expected.
    """

    def __init__(self, size: int, vocab_size: int, *, samples: int, bottleneck: int | None = None):
        super().__init__(size, vocab_size, bottleneck=bottleneck)
        self.samples = min(samples, vocab_size)
        log_p = log_uniform(vocab_size)
        draws = expected_draws(log_p.exp(), self.samples)
        log_count = torch.log(-torch.expm1(draws * torch.log1p(-log_p.exp())))
        self.log_p: Tensor
        self.log_count: Tensor
        self.register_buffer("log_p", log_p.float(), persistent=False)
        self.register_buffer("log_count", log_count.float(), persistent=False)

    def loss(self, x: Tensor, targets: Tensor, lesson: "Lesson | None" = None) -> Tensor:
        if not self.training:
            return super().loss(x, targets, lesson)
        noise = -torch.log(torch.empty_like(self.log_p).exponential_())  # Gumbel
        sample = torch.topk(self.log_p + noise, self.samples, sorted=False).indices  # (S,)
        place = torch.full_like(self.log_p, -1, dtype=torch.int64)
        place[sample] = torch.arange(len(sample), device=sample.device)
        symbols, sizes = torch.cat([sample, targets]), (len(sample), len(targets))  # looked up at once: one gradient
        weight, own = autocast(embedding(symbols.int(), self.weight)).split(sizes)  # (S, D), (N, D)
        bias, own_bias = (self.bias - self.log_count)[symbols].split(sizes)
        taught = None if lesson is None else lesson.of_sample(sample, targets, self.log_count)
        return SoftmaxLoss.apply(autocast(self.reduced(x)), weight, bias, own, own_bias, place[targets], taught)


class Lesson(NamedTuple):
    """What a teacher says at the same places: its features (N, E), its output layer over the same symbols, and its
    share of the loss."""

    x: Tensor
    softmax: FullSoftmax
    share: float

    def of_all(self) -> "TeacherLogits":
        """Of all symbols."""
        softmax = self.softmax
        return TeacherLogits(self._reduced(), autocast(softmax.weight), softmax.bias.float(), None, self.share)

    def of_sample(self, sample: Tensor, targets: Tensor, log_count: Tensor) -> "TeacherLogits":
        """Of a sample (S,) and of the targets (N,), all lowered."""
        x, weight, bias = self._reduced(), autocast(self.softmax.weight), self.softmax.bias - log_count
        own = (x * weight[targets]).sum(dim=1, dtype=torch.float32) + bias[targets]
        return TeacherLogits(x, weight[sample], bias[sample].float(), own, self.share)

    def _reduced(self) -> Tensor:
        with torch.no_grad():
            return autocast(self.softmax.reduced(self.x))


class TeacherLogits(NamedTuple):
    """A teacher's z = W x + b for W (S, E) and b (S,); with `own` (N,) the target's own."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    own: Tensor | None
    share: float

    def shares(self, part: slice, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q - [y] of some rows (n, S), its column of the target's own symbol (n,), and the sums of its columns (S,)."""
        q = torch.mm(self.x[part], self.weight.t())
        _, d_own, columns = _shares(q, self.bias, None if self.own is None else self.own[part], place[part])
        return q, d_own, columns


class SoftmaxLoss(torch.autograd.Function):
    """mean(log sum_s e^z_s - z_target), z = W x + b for x (N, D), W (S, D), b (S,).

    `place` (N,) is the symbol that is each row's target. With `own` (N, D) and `own_bias` (N,) the target is a further
    symbol with these weights; then the symbol `place` is left out (-1: none is).

    Taught, its gradient by z is p - (1 - a) * [y] - a * q = (p - [y]) - a * (q - [y]), and the loss itself is lower by
    a * sum_k (q - [y])_k z_k. Autograd does not look into tuples: the teacher gets no gradient.

    The gradients are computed in the forward pass, some rows at a time, so that the N x S logits are never all in
    memory."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        own: Tensor | None,
        own_bias: Tensor | None,
        place: Tensor,
        teacher: TeacherLogits | None,
    ) -> Tensor:
        rows = _rows_at_once(weight)
        total = x.new_zeros((), dtype=torch.float32)
        dx, dw = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        db, d_own = torch.zeros_like(bias, dtype=torch.float32), torch.empty_like(place, dtype=torch.float32)
        low, bias32 = weight.to(x.dtype), bias.float()
        buffer = x.new_empty(min(rows, len(x)), len(weight))  # one for all: new memory costs as much as a product
        z_own = (
            None if own is None or own_bias is None else (x * own).sum(dim=1, dtype=torch.float32) + own_bias
        )  # (N,)
        with torch.autocast(x.device.type, enabled=False):
            for begin in range(0, len(x), rows):
                part = slice(begin, begin + rows)
                share = torch.mm(x[part], low.t(), out=buffer[: len(x) - begin])
                own_part = None if z_own is None else z_own[part]
                if teacher is not None:
                    q, d_teacher, teacher_columns = teacher.shares(part, place)
                    total -= teacher.share * _expected(q, d_teacher, share, bias32, own_part)
                nll, d_own[part], columns = _shares(share, bias32, own_part, place[part])
                total += nll.sum()
                if teacher is not None:
                    share.sub_(q, alpha=teacher.share)
                    d_own[part] -= teacher.share * d_teacher
                    columns = columns - teacher.share * teacher_columns
                torch.mm(share, low, out=dx[part])
                if x.dtype == dw.dtype:
                    dw.addmm_(share.t(), x[part])
                else:
                    dw += torch.mm(share.t(), x[part])
                db += columns
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
        return *(None if g is None else g * d.to(g.dtype) for g in ctx.saved_tensors), None, None


def _shares(logits: Tensor, bias: Tensor, own: Tensor | None, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shares = softmax_triton.shares if softmax_triton.available(logits) else softmax_shares
    return shares(logits, bias, own, place)


def _expected(d: Tensor, d_own: Tensor, z: Tensor, bias: Tensor, own: Tensor | None) -> Tensor:
    """sum_k d_k (z_k + b_k), the target's own symbol included, over all rows."""
    inner = (d * z).sum(dtype=torch.float32) + torch.mv(d, bias.to(d.dtype)).sum(dtype=torch.float32)
    return inner if own is None else inner + (d_own * own).sum()


def softmax_shares(logits: Tensor, bias: Tensor, own: Tensor | None, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `SoftmaxLoss` needs of some rows of W x (n, S): each one's negative log-likelihood (n,); and the gradients
    of their sum, by z in the logits' own place, by the target's own z (n,) and by the bias (S,).
    `softmax_triton.shares` is the same on a GPU."""
    z = logits.float().add_(bias)
    column = place.clamp(min=0).unsqueeze(1)
    there = z.gather(1, column)
    target = there.squeeze(1) if own is None else own.float()
    z.scatter_(1, column, there.masked_fill(place.unsqueeze(1) >= 0, -torch.inf))
    top = torch.maximum(z.amax(dim=1), target)  # (n,): taken out first, so that no exponential overflows
    share = z.sub_(top.unsqueeze(1)).exp_()
    own_share = (target - top).exp_()
    whole = share.sum(dim=1) + own_share
    d_own = own_share / whole - 1
    share.div_(whole.unsqueeze(1))
    if own is None:
        share.scatter_(1, column, d_own.unsqueeze(1))
    if share is not logits:
        logits.copy_(share)
    return torch.log(whole) + top - target, d_own, share.sum(dim=0)


def autocast(x: Tensor) -> Tensor:
    """x in the precision of products under autocast."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _rows_at_once(weight: Tensor) -> int:
    """How many rows of logits are held at a time."""
    return max(FEWEST_ROWS, LOGITS_AT_ONCE["cuda" if weight.is_cuda else "cpu"] // len(weight))


class AdaptiveSoftmax(nn.Module):
    """torch's adaptive softmax. Each cluster of rarer symbols has a quarter of the dimensions of the cluster before it,
    or more where the last cluster would have fewer than four."""

    def __init__(self, size: int, vocab_size: int, *, cutoffs: Sequence[int] = ()):
        super().__init__()
        cutoffs = list(cutoffs) or [cut for cut in (2000, 10000, 50000, 200000) if cut < vocab_size]
        cutoffs = cutoffs or [max(1, vocab_size // 4)]
        shrink = min(4.0, max(1.0, (size / 4) ** (1 / len(cutoffs))))
        self.clusters = nn.AdaptiveLogSoftmaxWithLoss(size, vocab_size, cutoffs, div_value=shrink)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean training loss of the targets (N,)."""
        with torch.autocast(x.device.type, enabled=False):  # under autocast torch's module fails on mixed precisions
            return self.clusters(self._own_precision(x), targets).loss

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """The exact negative log-likelihood of each target; (N,)."""
        with torch.autocast(x.device.type, enabled=False):
            return -self.clusters(self._own_precision(x), targets).output

    def log_probs(self, x: Tensor) -> Tensor:
        """The whole distribution; (N, V)."""
        with torch.autocast(x.device.type, enabled=False):
            return self.clusters.log_prob(self._own_precision(x))

    def _own_precision(self, x: Tensor) -> Tensor:
        return x.to(self.clusters.head.weight.dtype)


def log_uniform(size: int) -> Tensor:
    """log p(k) = log(log((k + 2) / (k + 1)) / log(size + 1)), near Zipf's law for a vocabulary sorted by frequency;
    (V,)."""
    rank = torch.arange(size, dtype=torch.float64, device="cpu")  # numbers are needed even under torch.device("meta")
    return torch.log(torch.log((rank + 2) / (rank + 1)) / math.log(size + 1))


def expected_draws(p: Tensor, distinct: int) -> float:
    """T such that sum_k 1 - (1 - p_k)^T = distinct, by bisection on log T; the sum grows with T."""
    low, high = 0.0, 80.0
    for _ in range(100):
        middle = (low + high) / 2
        found = -torch.expm1(math.exp(middle) * torch.log1p(-p)).sum()
        low, high = (middle, high) if found < distinct else (low, middle)
    return math.exp(high)
