"""Output layers from features (N, D) to a distribution over V symbols, and distillation.

    full       exact
    sampled    trains against a sample of the vocabulary (Jean et al. 2015), scores exactly
    adaptive   clusters by frequency, the rarer in fewer dimensions (Grave et al. 2017)
    mixture    a weighted mean of several softmaxes (Yang et al. 2018)

Sampled and adaptive softmax need symbols sorted by decreasing frequency. Full and sampled softmax support distillation
(Hinton et al. 2015): with a teacher's distribution q of weight a the loss is (1 - a) * -log p(y) + a * sum_k q(k) *
-log p(k), y being the target. `LayerMaps` distils layers (Romero et al. 2015, FitNets).
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, embedding, linear, log_softmax

from relmo.nn.kernels import elementwise_triton

MAX_LOGITS = {"cuda": 1 << 26, "cpu": 1 << 22}  # in memory at a time; on a CPU they fit its cache
MIN_ROWS = 128  # products of fewer rows of logits are slow


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
        """Return the factor of W: x (N, D), or R x."""
        return x if self.bottleneck is None else self.bottleneck(x)

    def vectors(self, symbols: Tensor) -> Tensor:
        """Return the rows of W, or of W R, of these symbols; (…, D)."""
        rows = self.weight[symbols]
        return rows if self.bottleneck is None else rows @ self.bottleneck.weight

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (N, V) of x (N, D)."""
        return linear(self.reduced(x), self.weight, self.bias)

    def loss(self, x: Tensor, targets: Tensor, lesson: "Lesson | None" = None) -> Tensor:
        """Return the mean training loss of the targets (…,) after x (…, D)."""
        x, targets = x.flatten(0, -2), targets.flatten()
        if lesson is None and not torch.is_grad_enabled():
            return self.nll(x, targets).mean()
        teacher = None if lesson is None else lesson.logits()
        return SoftmaxLoss.apply(autocast(self.reduced(x)), self.weight, self.bias, None, None, targets, teacher)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the exact negative log-likelihood of each target; (N,)."""
        rows = max(MIN_ROWS, MAX_LOGITS["cuda" if x.is_cuda else "cpu"] // len(self.weight))
        chunks = zip(x.split(rows), targets.split(rows), strict=True)
        return torch.cat([cross_entropy(self.logits(a).float(), b, reduction="none") for a, b in chunks])

    def log_probs(self, x: Tensor) -> Tensor:
        """Return the log-probabilities of all symbols; (N, V)."""
        return log_softmax(self.logits(x).float(), dim=-1)


class SampledSoftmax(FullSoftmax):
    """Softmax trained on the target and `samples` other symbols, drawn log-uniformly without replacement.

    The logit of every symbol is lowered by the log of its expected count in the sample, so that the gradient
    approximates that of the full softmax; the target is removed from the sample. Drawing until there are `samples`
    distinct symbols is equivalent to selecting the largest of log p + Gumbel noise. The expected count of symbol k is
    1 - (1 - p_k)^T, T being the number of draws after which `samples` distinct symbols are expected.
    """

    log_p: Tensor
    log_count: Tensor

    def __init__(self, size: int, vocab_size: int, *, samples: int, bottleneck: int | None = None):
        super().__init__(size, vocab_size, bottleneck=bottleneck)
        self.samples = min(samples, vocab_size)
        log_p = log_uniform(vocab_size)
        draws = expected_draws(log_p.exp(), self.samples)
        log_count = torch.log(-torch.expm1(draws * torch.log1p(-log_p.exp())))
        self.register_buffer("log_p", log_p.float(), persistent=False)
        self.register_buffer("log_count", log_count.float(), persistent=False)

    def loss(self, x: Tensor, targets: Tensor, lesson: "Lesson | None" = None) -> Tensor:
        if not self.training:
            return super().loss(x, targets, lesson)
        x, targets = x.flatten(0, -2), targets.flatten()
        noise = -torch.log(torch.empty_like(self.log_p).exponential_())  # Gumbel
        sample = torch.topk(self.log_p + noise, self.samples, sorted=False).indices  # (S,)
        column = torch.full_like(self.log_p, -1, dtype=torch.int64)
        column[sample] = torch.arange(len(sample), device=sample.device)
        symbols, sizes = torch.cat([sample, targets]), (len(sample), len(targets))  # one lookup: one gradient
        weight, target_weight = autocast(embedding(symbols.int(), self.weight)).split(sizes)  # (S, D), (N, D)
        bias, target_bias = (self.bias - self.log_count)[symbols].split(sizes)
        teacher = None if lesson is None else lesson.logits(sample, targets, self.log_count)
        reduced, columns = autocast(self.reduced(x)), column[targets]
        return SoftmaxLoss.apply(reduced, weight, bias, target_weight, target_bias, columns, teacher)


class Lesson(NamedTuple):
    """A teacher's features (N, E) at the same positions, its output layer, and its weight in the loss."""

    x: Tensor
    softmax: FullSoftmax
    share: float

    def logits(
        self, sample: Tensor | None = None, targets: Tensor | None = None, log_count: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float]:
        """Return x, W (S, E) and b (S,) of the teacher's logits W x + b, of all symbols or of a sample (S,) less their
        log counts; the logits of the targets (N,) if these are not among them; and the share."""
        weight = autocast(self.softmax.weight)
        with torch.no_grad():
            x = autocast(self.softmax.reduced(self.x))
        if sample is None or targets is None or log_count is None:
            return x, weight, self.softmax.bias.float(), None, self.share
        bias = self.softmax.bias - log_count
        target = (x * weight[targets]).sum(dim=1, dtype=torch.float32) + bias[targets]
        return x, weight[sample], bias[sample].float(), target, self.share


class SoftmaxLoss(torch.autograd.Function):
    """mean(log sum_s e^z_s - z_target), z = W x + b for x (N, D), W (S, D), b (S,).

    `column` (N,) is the symbol that is each row's target. With `target_weight` (N, D) and `target_bias` (N,) the target
    is an additional symbol with these weights; then the symbol `column` is excluded (-1: none is).

    With a teacher, the gradient by z is p - (1 - a) * [y] - a * q = (p - [y]) - a * (q - [y]), and the loss is lower by
    a * sum_k (q - [y])_k z_k. Gradients are computed in the forward pass, some rows of logits at a time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        target_weight, target_bias, column, teacher = rest
        rows = max(MIN_ROWS, MAX_LOGITS["cuda" if x.is_cuda else "cpu"] // len(weight))
        shares = elementwise_triton.softmax_shares if elementwise_triton.supports_softmax(x) else softmax_shares
        total = x.new_zeros((), dtype=torch.float32)
        dx, dw = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        db, d_target = torch.zeros_like(bias, dtype=torch.float32), torch.empty_like(column, dtype=torch.float32)
        cast_weight, bias32 = weight.to(x.dtype), bias.float()
        buffer = x.new_empty(min(rows, len(x)), len(weight))  # reused: new memory costs as much as a product
        z_target: Tensor | None = None  # (N,)
        if target_weight is not None:
            z_target = (x * target_weight).sum(dim=1, dtype=torch.float32) + target_bias
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), rows):
                part = slice(start, start + rows)
                share = torch.mm(x[part], cast_weight.t(), out=buffer[: len(x) - start])
                target = None if z_target is None else z_target[part]
                if teacher is not None:
                    teacher_x, teacher_weight, teacher_bias, teacher_target, alpha = teacher
                    q = torch.mm(teacher_x[part], teacher_weight.t())  # becomes q - [y]
                    teacher_target = None if teacher_target is None else teacher_target[part]
                    _, d_teacher, teacher_sums = shares(q, teacher_bias, teacher_target, column[part])
                    inner = (q * share).sum(dtype=torch.float32)
                    inner = inner + torch.mv(q, bias32.to(q.dtype)).sum(dtype=torch.float32)
                    total -= alpha * (inner if target is None else inner + (d_teacher * target).sum())
                nll, d_target[part], sums = shares(share, bias32, target, column[part])
                total += nll.sum()
                if teacher is not None:
                    share.sub_(q, alpha=alpha)
                    d_target[part] -= alpha * d_teacher
                    sums = sums - alpha * teacher_sums
                torch.mm(share, cast_weight, out=dx[part])
                if x.dtype == dw.dtype:
                    dw.addmm_(share.t(), x[part])
                else:
                    dw += torch.mm(share.t(), x[part])
                db += sums
        d_target_weight = None
        if target_weight is not None:
            d_cast = d_target.to(x.dtype).unsqueeze(1)
            dx.addcmul_(d_cast, target_weight)
            d_target_weight = d_cast * x
        d_target_bias = None if target_bias is None else d_target.to(target_bias.dtype)
        ctx.save_for_backward(dx, dw.to(weight.dtype), db.to(bias.dtype), d_target_weight, d_target_bias)
        return total / len(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        d = d / len(ctx.saved_tensors[0])
        return *(None if g is None else g * d.to(g.dtype) for g in ctx.saved_tensors), None, None


def softmax_shares(
    logits: Tensor, bias: Tensor, target: Tensor | None, column: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses (n,) of some rows of W x (n, S), and the gradients of their sum by the target's z (n,) and the
    bias (S,); that by z overwrites the logits. `elementwise_triton` has the same for a GPU."""
    z = logits.float().add_(bias)
    index = column.clamp(min=0).unsqueeze(1)
    selected = z.gather(1, index)
    z_target = selected.squeeze(1) if target is None else target.float()
    z.scatter_(1, index, selected.masked_fill(column.unsqueeze(1) >= 0, -torch.inf))
    top = torch.maximum(z.amax(dim=1), z_target)  # (n,): subtracted first, so that no exponential overflows
    share = z.sub_(top.unsqueeze(1)).exp_()
    target_share = (z_target - top).exp_()
    partition = share.sum(dim=1) + target_share
    d_target = target_share / partition - 1
    share.div_(partition.unsqueeze(1))
    if target is None:
        share.scatter_(1, index, d_target.unsqueeze(1))
    if share is not logits:
        logits.copy_(share)
    return torch.log(partition) + top - z_target, d_target, share.sum(dim=0)


def autocast(x: Tensor) -> Tensor:
    """Convert x to the type of products under autocast."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


class AdaptiveSoftmax(nn.Module):
    """torch's adaptive softmax, each cluster with a quarter of the dimensions of the one before it, at least four."""

    def __init__(self, size: int, vocab_size: int, *, cutoffs: Sequence[int] = ()):
        super().__init__()
        cutoffs = list(cutoffs) or [cutoff for cutoff in (2000, 10000, 50000, 200000) if cutoff < vocab_size]
        cutoffs = cutoffs or [max(1, vocab_size // 4)]
        shrink = min(4.0, max(1.0, (size / 4) ** (1 / len(cutoffs))))
        self.clusters = nn.AdaptiveLogSoftmaxWithLoss(size, vocab_size, cutoffs, div_value=shrink)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean training loss of the targets (…,) after x (…, D)."""
        x, targets = x.flatten(0, -2), targets.flatten()
        with torch.autocast(x.device.type, enabled=False):  # torch's module fails on mixed types
            return self.clusters(x.to(self.clusters.head.weight.dtype), targets).loss

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the exact negative log-likelihood of each target; (N,)."""
        with torch.autocast(x.device.type, enabled=False):
            return -self.clusters(x.to(self.clusters.head.weight.dtype), targets).output

    def log_probs(self, x: Tensor) -> Tensor:
        """Return the log-probabilities of all symbols; (N, V)."""
        with torch.autocast(x.device.type, enabled=False):
            return self.clusters.log_prob(x.to(self.clusters.head.weight.dtype))


class MixtureSoftmax(nn.Module):
    """p(y | x) = sum_k pi_k(x) softmax(W h_k(x) + b),   pi(x) = softmax(P x),   h_k(x) = tanh(R_k x + r_k)

    Its logits are no linear function of x, so their rank is not limited by the size of h. `dropout` is that of the
    h_k in training, as of a sequence (B, T, K E).

    Yang et al. 2018, Breaking the softmax bottleneck: a high-rank RNN language model
    """

    def __init__(
        self, size: int, vocab_size: int, *, components: int, bottleneck: int, dropout: nn.Module | None = None
    ):
        super().__init__()
        self.output = FullSoftmax(bottleneck, vocab_size)
        self.latent = nn.Linear(size, components * bottleneck)
        self.prior = nn.Linear(size, components, bias=False)
        self.dropout = dropout or nn.Identity()

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean training loss of the targets (B, T) after x (B, T, D)."""
        if not torch.is_grad_enabled():
            return self.nll(x.flatten(0, -2), targets.flatten()).mean()
        h, log_prior = self._components(x)
        return MixtureLoss.apply(autocast(h), log_prior, self.output.weight, self.output.bias, targets.flatten())

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the exact negative log-likelihood of each target; (N,)."""
        h, log_prior = self._components(x)
        nll = self.output.nll(h.flatten(0, 1), targets.repeat_interleave(h.shape[1])).view(log_prior.shape)
        return -torch.logsumexp(log_prior - nll, dim=1)

    def log_probs(self, x: Tensor) -> Tensor:
        """Return the log-probabilities of all symbols; (N, V)."""
        h, log_prior = self._components(x)
        parts = zip(h.unbind(1), log_prior.split(1, dim=1), strict=True)
        return reduce(torch.logaddexp, (self.output.log_probs(part) + prior for part, prior in parts))

    def _components(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return h (N, K, E) and log pi (N, K) for x (N, D), or x (B, T, D) with dropout in training."""
        h, log_prior = torch.tanh(self.latent(x)), log_softmax(self.prior(x).float(), dim=-1)
        h = self.dropout(h) if x.dim() == 3 else h
        return h.reshape(-1, log_prior.shape[-1], self.output.weight.shape[1]), log_prior.flatten(0, -2)


class MixtureLoss(torch.autograd.Function):
    """Mean of -log sum_k pi_k p_k(y), p_k = softmax(W h_k + b), for h (N, K, E), log pi (N, K), W (V, E), b (V,).

    The gradient by log p_k is that of a softmax, weighted by the component's share of p(y); shares and gradients are
    computed in the forward pass, some rows of logits at a time.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, log_prior: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        components = h.shape[1]
        rows = max(MIN_ROWS, MAX_LOGITS["cuda" if h.is_cuda else "cpu"] // len(weight)) // components or 1
        loss_of = elementwise_triton.softmax_shares if elementwise_triton.supports_softmax(h) else softmax_shares
        total = h.new_zeros((), dtype=torch.float32)
        dh, d_prior = torch.empty_like(h), torch.empty_like(log_prior)
        dw, db = torch.zeros_like(weight, dtype=torch.float32), torch.zeros_like(bias, dtype=torch.float32)
        cast_weight, bias32 = weight.to(h.dtype), bias.float()
        buffer = h.new_empty(min(rows, len(h)) * components, len(weight))
        with torch.autocast(h.device.type, enabled=False):
            for start in range(0, len(h), rows):
                part = slice(start, start + rows)
                flat = h[part].flatten(0, 1)
                z = torch.mm(flat, cast_weight.t(), out=buffer[: len(flat)])
                nll, *_ = loss_of(z, bias32, None, targets[part].repeat_interleave(components))
                joint = log_prior[part] - nll.view(-1, components)
                total -= torch.logsumexp(joint, dim=1).sum()
                share = torch.softmax(joint, dim=1)
                d_prior[part] = -share
                share = share.view(-1, 1).to(h.dtype)
                dh[part] = (torch.mm(z, cast_weight) * share).view(-1, *h.shape[1:])
                dw += torch.mm(z.t(), flat * share)
                db += torch.mv(z.t(), share.squeeze(1))
        ctx.save_for_backward(dh, d_prior, dw.to(weight.dtype), db.to(bias.dtype))
        return total / len(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        d = d / len(ctx.saved_tensors[0])
        return *(g * d.to(g.dtype) for g in ctx.saved_tensors), None


class LayerMaps(nn.Module):
    """Matrices M from the student's outputs h to the teacher's g, one for each layer and direction."""

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


def log_uniform(size: int) -> Tensor:
    """Return log p(k) = log(log((k + 2) / (k + 1)) / log(size + 1)), close to Zipf's law, of all ranks; (V,)."""
    rank = torch.arange(size, dtype=torch.float64, device="cpu")  # needed even under torch.device("meta")
    return torch.log(torch.log((rank + 2) / (rank + 1)) / math.log(size + 1))


def expected_draws(p: Tensor, distinct: int) -> float:
    """Return T such that sum_k 1 - (1 - p_k)^T = distinct, by bisection on log T; the sum grows with T."""
    low, high = 0.0, 80.0
    for _ in range(100):
        middle = (low + high) / 2
        expected = -torch.expm1(math.exp(middle) * torch.log1p(-p)).sum()
        low, high = (middle, high) if expected < distinct else (low, middle)
    return math.exp(high)
