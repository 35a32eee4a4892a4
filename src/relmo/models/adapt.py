"""Language models that adapt to the text they are scored on. Each part is scored before weights and cache see it.

    theta <- theta + decay R (theta_0 - theta) - rate g / S           dynamic evaluation, after each segment
    p(w) = (1 - lambda) p_model(w) + lambda p_cache(w)                neural cache
    p_cache(w) ~ sum over the last positions i with w_i = w of exp(theta h_t . h_i)

g is the gradient of the mean loss, clipped in `LineAdapter`. With statistics, S is its root mean square over another
text, and R is S divided by its mean over weights, at most 1 / decay; else both are 1. h is the output layer's input.

    Krause et al. 2018, Dynamic evaluation of neural sequence models;  Mikolov et al. 2010 (without statistics)
    Grave et al. 2017, Improving neural language models with a continuous cache
    van Schijndel & Linzen 2018, A neural model of adaptation in reading
"""

import copy
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relmo.errors import SettingError
from relmo.models.evaluate import UNROLL, Progress, Watch, full_precision
from relmo.settings.options import AdaptOptions, SurprisalOptions
from relmo.text.sources import SourceText

if TYPE_CHECKING:
    from relmo.models.sequence_model import Reading, SequenceModel
    from relmo.models.surprisal import Rows

SEGMENTS = {"word": 5, "char": 20}  # default symbols between updates
STATISTICS_LANES = 100  # parallel lanes of the text for statistics, and
EPSILON = 1e-3  # added to S, as in the code of Krause et al.
MAX_GRADIENT_NORM = 0.25  # of a line, as in the code of van Schijndel & Linzen; Krause et al. do not clip
Memory = tuple[Tensor, Tensor]  # features (N, D) of a neural cache, and the symbols (N,) that they predicted


class Adapter:
    """Copy of a language model whose weights are updated by gradient descent; the model itself is not changed."""

    def __init__(self, model: "SequenceModel", rate: float, decay: float = 0.0):
        self.originals = [parameter.detach() for parameter in model.network.parameters()]
        if not self.originals:
            raise SettingError(f"adapt and cache need a neural network; a {model.label} model has no weights to adapt.")
        self.model = copy.copy(model)
        self.model.network = copy.deepcopy(model.network).eval().requires_grad_(True)
        self.parameters, self.rate, self.decay = list(self.model.network.parameters()), rate, decay
        self.scales: list[Tensor] | None = None  # 1 / S
        self.shares: list[Tensor] | float = decay  # decay R

    def take_gradients(self) -> list[Tensor]:
        """Return the gradients of all weights and clear them."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.model.network.zero_grad()
        return gradients

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights by their gradients."""
        if self.decay:
            torch._foreach_lerp_(self.parameters, self.originals, self.shares)
        if self.scales is None:
            torch._foreach_add_(self.parameters, self.take_gradients(), alpha=-self.rate)
        else:
            torch._foreach_addcmul_(self.parameters, self.take_gradients(), self.scales, value=-self.rate)

    @torch.no_grad()
    def restore(self) -> None:
        """Return to the original weights."""
        torch._foreach_copy_(self.parameters, self.originals)


def mix_cache(
    options: AdaptOptions, memory: Memory | None, nll: Tensor, x: Tensor, targets: Tensor
) -> tuple[Tensor, Memory]:
    """Return the losses (T,) of the mixture of a model, whose losses are `nll`, and a cache of the positions in memory
    and before each of the T; and the memory for the next ones. With an empty cache, the model predicts alone."""
    pairs = [(x, targets)] if memory is None else [memory, (x, targets)]
    keys, symbols = map(torch.cat, zip(*pairs, strict=True))
    columns = torch.arange(len(keys), device=x.device)
    age = columns[-len(x) :].unsqueeze(1) - columns  # (T, N)
    is_visible = (age > 0) & (age <= options.cache)
    scores = (options.cache_theta * (x @ keys.t()).float()).masked_fill(~is_visible, -torch.inf)
    hits = scores.masked_fill(symbols != targets.unsqueeze(1), -torch.inf)
    share = options.cache_lambda
    log_p = hits.logsumexp(dim=1) - scores.logsumexp(dim=1) + (math.log(share) if share else -math.inf)
    mixed = -torch.logaddexp(math.log1p(-share) - nll, log_p)
    return torch.where(is_visible.any(dim=1), mixed, nll), (keys[-options.cache :], symbols[-options.cache :])


class Adaptation(Adapter):
    """Scores of texts by dynamic evaluation, a neural cache, or both; `options` are those of `AdaptOptions`.

    `watch` is called with the symbols of the text for statistics read since the last call and their total."""

    def __init__(self, model: "SequenceModel", watch: Watch | None = None, **options: Any):
        self.options = AdaptOptions(**options)
        self.options.check()
        super().__init__(model, self.options.adapt or 0.0, self.options.adapt_decay)
        self.segment = UNROLL if self.options.adapt is None else self.options.segment or SEGMENTS[model.unit]
        if self.options.adapt_statistics is not None:
            with tempfile.TemporaryDirectory() as scratch, full_precision():
                readings = self.model.open_file(self.options.adapt_statistics, Path(scratch))[0]
                total = sum(reading.num_steps for reading in readings)
                self._measure_gradients(readings, None if watch is None else lambda count: watch(count, total))

    def _measure_gradients(self, readings: Sequence["Reading"], progress: Progress | None) -> None:
        """Set S to the root mean square over the segments of a text that is read in lanes, summed over directions."""
        squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        lanes = max(1, min(STATISTICS_LANES, readings[0].num_steps // self.segment))
        num_segments = -(-(readings[0].num_steps // lanes) // self.segment)
        for reading in readings:
            for nll, _, _ in self._segments(reading, progress, lanes):
                nll.mean().backward()
                gradients = self.take_gradients()
                torch._foreach_addcmul_(squares, gradients, gradients)
        rms = [square.div_(num_segments).sqrt_() for square in squares]
        mean = torch.stack([tensor.mean() for tensor in rms]).mean()
        self.scales = [1 / (tensor + EPSILON) for tensor in rms]
        self.shares = [(tensor / mean).mul_(self.decay).clamp_(max=1) for tensor in rms]

    def _segments(
        self, reading: "Reading", progress: Progress | None, lanes: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Read a text in segments; yield losses (B T,), features (B T, D) and targets (B T,) of each."""
        length, state = reading.num_steps // lanes, None
        for begin in range(0, length, self.segment):
            stop = min(begin + self.segment, length)
            steps = np.arange(lanes)[:, None] * length + np.arange(begin, stop)
            x, targets, final = reading.read(steps, state)
            x, targets, state = x.flatten(0, 1), targets.flatten(), tuple(tensor.detach() for tensor in final)
            yield self.model.softmax.nll(x, targets), x, targets
            if progress is not None:
                progress(steps.size)

    @full_precision()
    def total_nll(self, readings: Sequence["Reading"], progress: Progress | None = None) -> list[float]:
        """Return the negative log-likelihood, in nats, of readings of the model, each from the original weights and an
        empty cache. A GPU is waited for at the end of each only."""
        options, adapts, totals = self.options, self.options.adapt is not None, []
        for reading in map(copy.copy, readings):
            reading.model = self.model
            memory: Memory | None = None
            total = torch.zeros((), dtype=torch.float64, device=self.model.device)
            with torch.set_grad_enabled(adapts):
                for nll, x, targets in self._segments(reading, progress):
                    scores = nll.detach()
                    if options.cache:
                        scores, memory = mix_cache(options, memory, scores, x.detach(), targets)
                    total += scores.sum(dtype=torch.float64)
                    if adapts:
                        nll.mean().backward()
                        self.step()
            self.restore()
            totals.append(float(total))
        return totals


class LineAdapter(Adapter):
    """Copy of a language model that adapts to the lines of a text: after each line, or after each of its words.

    bounds  steps of the present line at which updates are made, and gradients truncated; `score_windows` calls
            `on_losses` with the losses up to a step"""

    bounds: Sequence[int] = ()
    previous: SourceText | None = None

    @torch.enable_grad()
    def score_lines(self, rows: "Rows", options: SurprisalOptions, carry: Any) -> tuple[np.ndarray, Any]:
        """Return scores of a single line, and the state, as the model does, and adapt to the line."""
        ((line,),) = rows
        old, source, self.previous = self.previous, line.source, line.source
        if options.reset == "text" and old is not None:
            is_after_gap = source.name is None and source.line > old.line + 1  # biLMs skip empty lines
            if source.name != old.name or not old.text.strip() or is_after_gap:
                self.restore()
        owners = np.append(line.owners[:: -1 if options.direction == "backward" else 1], [-1] * len(line.ends))
        changes = np.flatnonzero(np.diff(owners)) + 1 if options.reset == "sentence" else ()
        self.bounds = [0, *changes, len(owners)]
        scores = self.model.score_lines(rows, options, carry, self)
        if options.reset == "sentence":
            self.restore()
        return scores

    def on_losses(self, losses: Tensor, stop: int) -> None:
        """Add the gradient of the losses up to a step; at a bound, clip its norm and update the weights."""
        index = int(np.searchsorted(self.bounds, stop))
        (losses.sum() / (self.bounds[index] - self.bounds[index - 1])).backward()
        if self.bounds[index] == stop:
            torch.nn.utils.clip_grad_norm_(self.parameters, MAX_GRADIENT_NORM)
            self.step()
