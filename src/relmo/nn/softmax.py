"""Output layers: from features (N, D) to a distribution over V symbols.

Each has the same three methods: `loss(x, targets)`, the mean training loss; `nll(x, targets)`, the exact negative
log-likelihood of each target (N,); and `log_probs(x)`, the whole distribution (N, V).

    full       exact
    sampled    trains against a sample of the vocabulary (Jean et al. 2015), scores exactly
    adaptive   clusters by frequency, the rarer in fewer dimensions (Grave et al. 2017)

Sampled and adaptive softmax need symbols sorted by falling frequency.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear, log_softmax

LOGITS_AT_ONCE = 1 << 26  # how many logits scoring holds in memory at a time


class FullSoftmax(nn.Module):
    """p(y | x) = softmax(W x + b)."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, size))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        nn.init.normal_(self.weight, std=1 / math.sqrt(size))

    def logits(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, V)."""
        return linear(x, self.weight, self.bias)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean training loss of the targets (N,)."""
        return cross_entropy(self.logits(x).float(), targets)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """The exact negative log-likelihood of each target; (N,)."""
        rows = max(1, LOGITS_AT_ONCE // len(self.weight))
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

    def __init__(self, size: int, vocab_size: int, *, samples: int):
        super().__init__(size, vocab_size)
        self.samples = min(samples, vocab_size)
        log_p = log_uniform(vocab_size)
        draws = expected_draws(log_p.exp(), self.samples)
        log_count = torch.log(-torch.expm1(draws * torch.log1p(-log_p.exp())))
        self.log_p: Tensor
        self.log_count: Tensor
        self.register_buffer("log_p", log_p.float(), persistent=False)
        self.register_buffer("log_count", log_count.float(), persistent=False)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        if not self.training:
            return super().loss(x, targets)
        noise = -torch.log(torch.empty_like(self.log_p).exponential_())  # Gumbel
        sample = torch.topk(self.log_p + noise, self.samples, sorted=False).indices  # (S,)
        true = (x * embedding(targets, self.weight)).sum(-1) + self.bias[targets] - self.log_count[targets]  # (N,)
        shift = self.bias[sample] - self.log_count[sample]
        place = torch.full_like(self.log_p, -1, dtype=torch.int64)
        place[sample] = torch.arange(len(sample), device=sample.device)
        return SampledLoss.apply(x, embedding(sample, self.weight), shift, true, place[targets])


class SampledLoss(torch.autograd.Function):
    """mean(log(e^true + sum_s e^other_s) - true), other = W x + b for x (N, D), W (S, D), b (S,), true (N,); without
    the sampled symbol `place` (N,) of each row, -1 for none.

    The gradients are computed on the way forward, some rows at a time, so that the N x S logits are never all there.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, true: Tensor, place: Tensor) -> Tensor:
        rows = max(1, LOGITS_AT_ONCE // len(weight))
        scale = 1 / len(x)
        total = true.new_zeros((), dtype=torch.float32)
        dx, d_true = torch.empty_like(x), torch.empty_like(true)
        dw, db = torch.zeros_like(weight, dtype=torch.float32), torch.zeros_like(bias, dtype=torch.float32)
        low, shift = weight.to(x.dtype), bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            for begin in range(0, len(x), rows):
                part = slice(begin, begin + rows)
                logits = torch.mm(x[part], low.t()).add_(shift)
                drop_places(logits, place[part])
                logits, own = logits.float(), true[part].float()
                top = torch.maximum(logits.amax(dim=1), own)  # (n,): taken out first, so that no exponential overflows
                share = logits.sub_(top.unsqueeze(1)).exp_()
                own_share = (own - top).exp_()
                whole = share.sum(dim=1) + own_share
                total += (torch.log(whole) + top - own).sum()
                d_true[part] = (own_share / whole - 1) * scale
                share *= (scale / whole).unsqueeze(1)
                db += share.sum(dim=0)
                share = share.to(x.dtype)
                torch.mm(share, low, out=dx[part])
                dw += share.t() @ x[part]
        ctx.save_for_backward(dx, dw.to(weight.dtype), db.to(bias.dtype), d_true)
        return total * scale

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        return *(gradient * d.to(gradient.dtype) for gradient in ctx.saved_tensors), None


def drop_places(logits: Tensor, place: Tensor) -> None:
    """-inf at column `place` (N,) of each row of logits (N, S), where it is not -1."""
    column = place.clamp(min=0).unsqueeze(1)
    kept = logits.gather(1, column).masked_fill_(place.unsqueeze(1) >= 0, -torch.inf)
    logits.scatter_(1, column, kept)


class AdaptiveSoftmax(nn.Module):
    """torch's adaptive softmax; each cluster of rarer symbols has a quarter of the dimensions of the one before, or as
    much more as leaves the last one at least four."""

    def __init__(self, size: int, vocab_size: int, *, cutoffs: Sequence[int] = ()):
        super().__init__()
        cutoffs = list(cutoffs) or [cut for cut in (2000, 10000, 50000, 200000) if cut < vocab_size]
        cutoffs = cutoffs or [max(1, vocab_size // 4)]
        shrink = min(4.0, max(1.0, (size / 4) ** (1 / len(cutoffs))))
        self.clusters = nn.AdaptiveLogSoftmaxWithLoss(size, vocab_size, cutoffs, div_value=shrink)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean training loss of the targets (N,)."""
        with torch.autocast(x.device.type, enabled=False):  # torch's module mixes precisions up
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
