"""Language models that adapt to the text they are scored on: each part is scored before the weights or the cache see it.

    theta <- theta + decay R (theta_0 - theta) - rate g / S           dynamic evaluation, one step per segment or line
    p(w) = (1 - lambda) p_model(w) + lambda p_cache(w)                neural cache
    p_cache(w) ~ sum over the last positions i with w_i = w of exp(theta h_t . h_i)

g is the gradient of the mean loss. With statistics, S is the root of the mean squared gradients of another text, and R
is S divided by its mean over the weights, at most 1 / decay; without, both are 1. h is the input of the output layer.

    Mikolov et al. 2010, Recurrent neural network based language model (dynamic evaluation by SGD)
    Krause et al. 2018, Dynamic evaluation of neural sequence models (RMS rule, decay)
    Grave et al. 2017, Improving neural language models with a continuous cache
    van Schijndel & Linzen 2018, A neural model of adaptation in reading
"""

import copy
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relmo.errors import SettingError
from relmo.models.evaluate import Progress, full_precision
from relmo.nn.recurrence import State
from relmo.settings.options import AdaptOptions, SurprisalOptions
from relmo.text.sources import SourceText

if TYPE_CHECKING:
    from relmo.models.sequence_model import Reading, SequenceModel
    from relmo.models.surprisal import ReadLine

SEGMENTS = {"word": 5, "char": 20}  # default symbols between updates
UNROLL = 256  # symbols that are read at a time without updates
STATISTICS_LANES = 100  # of the text for the statistics, and
EPSILON = 1e-3  # added to S, as in the authors' implementation


class AdaptedWeights:
    """Copy of a language model whose weights are updated by gradient descent; the model itself is not changed."""

    def __init__(self, model: "SequenceModel", rate: float, decay: float = 0.0):
        self.originals = [parameter.detach() for parameter in model.network.parameters()]
        if not self.originals:
            raise SettingError(f"adapt and cache need a neural network; a {model.label} model has no weights to adapt.")
        self.model = copy.copy(model)
        self.model.network = copy.deepcopy(model.network).eval().requires_grad_(True)
        self.parameters = list(self.model.network.parameters())
        self.rate, self.decay = rate, decay
        self.set_statistics(None)

    def set_statistics(self, rms: Sequence[Tensor] | None) -> None:
        """Set S, the root mean square of the gradients of each weight, or the rule without statistics."""
        factors: list[tuple[Any, Any]] = [(None, None)] * len(self.parameters)
        if rms is not None:
            mean = torch.stack([tensor.mean() for tensor in rms]).mean()
            shares = [(tensor / mean).mul_(self.decay).clamp_(max=1) for tensor in rms]
            factors = [(1 / (tensor + EPSILON), share) for tensor, share in zip(rms, shares, strict=True)]
        self.factors = factors

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights by their gradients."""
        entries = zip(self.parameters, self.originals, self.factors, strict=True)
        rows = [(p, p.grad, original, *factors) for p, original, factors in entries if p.grad is not None]
        weights, gradients, originals, scales, shares = zip(*rows, strict=True)
        if self.decay:
            torch._foreach_lerp_(weights, originals, self.decay if shares[0] is None else shares)
        if scales[0] is None:
            torch._foreach_add_(weights, gradients, alpha=-self.rate)
        else:
            torch._foreach_addcmul_(weights, gradients, scales, value=-self.rate)
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Delete the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def restore(self) -> None:
        """Return to the original weights."""
        torch._foreach_copy_(self.parameters, self.originals)


class NeuralCache:
    """Features and symbols of the last positions."""

    def __init__(self, size: int, theta: float, share: float):
        self.size, self.theta = size, theta
        self.log_shares = math.log1p(-share), math.log(share) if share else -math.inf
        self.memory: tuple[Tensor, Tensor] | None = None

    def mix(self, nll: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        """Return the losses (T,) of the mixture with a model whose losses are `nll`, and store the features x (T, D).

        A position sees those before it. While the cache is empty, the model predicts alone."""
        memory = (x, targets)
        if self.memory is not None:
            memory = (torch.cat([self.memory[0], x]), torch.cat([self.memory[1], targets]))
        keys, symbols = memory
        columns = torch.arange(len(keys), device=x.device)
        age = columns[-len(x) :].unsqueeze(1) - columns  # (T, N)
        is_visible = (age > 0) & (age <= self.size)
        scores = (self.theta * (x @ keys.t()).float()).masked_fill(~is_visible, -torch.inf)
        hits = scores.masked_fill(symbols != targets.unsqueeze(1), -torch.inf)
        log_p = hits.logsumexp(dim=1) - scores.logsumexp(dim=1)
        mixed = -torch.logaddexp(self.log_shares[0] - nll, self.log_shares[1] + log_p)
        self.memory = keys[-self.size :], symbols[-self.size :]
        return torch.where(is_visible.any(dim=1), mixed, nll)


class Adaptation:
    """Scores of texts by dynamic evaluation, a neural cache, or both. `watch` is called while statistics are computed,
    with the symbols read since the last call and the total."""

    def __init__(self, model: "SequenceModel", options: AdaptOptions, watch: Any = None):
        options.check()
        if options.adapt is None and not options.cache:
            raise SettingError("There is nothing to adapt: set adapt, a learning rate, or cache, a size.")
        self.options = options
        self.weights = AdaptedWeights(model, options.adapt or 0.0, options.adapt_decay)
        self.segment = options.segment or SEGMENTS[model.unit]
        self.statistics: list[list[Tensor] | None] = [None] * len(model.directions)
        if options.adapt_statistics is not None:
            with tempfile.TemporaryDirectory() as scratch, full_precision():
                readings, _ = self.weights.model.open_file(options.adapt_statistics, Path(scratch))
                total = sum(reading.num_steps for reading in readings)
                progress = None if watch is None else lambda count: watch(count, total)
                self.statistics = [self._gradient_rms(reading, progress) for reading in readings]

    def _gradient_rms(self, reading: "Reading", progress: Progress | None) -> list[Tensor]:
        """Return the root mean square of the gradients of each weight over the segments of a text, read in lanes."""
        lanes = max(1, min(STATISTICS_LANES, reading.num_steps // self.segment))
        length = reading.num_steps // lanes
        starts = np.arange(lanes)[:, None] * length
        squares = [torch.zeros_like(parameter) for parameter in self.weights.parameters]
        begins = range(0, length, self.segment)
        state: State | None = None
        for begin in begins:
            steps = starts + np.arange(begin, min(begin + self.segment, length))
            with torch.enable_grad():
                nll, _, _, state = read_segment(reading, steps, state)
                nll.mean().backward()
            for square, parameter in zip(squares, self.weights.parameters, strict=True):
                if parameter.grad is not None:
                    square.addcmul_(parameter.grad, parameter.grad)
            self.weights.clear_gradients()
            if progress is not None:
                progress(steps.size)
        return [square.div_(len(begins)).sqrt_() for square in squares]

    def total_nll(self, readings: Sequence["Reading"], progress: Progress | None = None) -> list[float]:
        """Return the negative log-likelihood of each direction over a text, in nats, starting from the original
        weights and an empty cache."""
        with full_precision():
            return [self._nll(reading, progress) for reading in readings]

    def _nll(self, reading: "Reading", progress: Progress | None) -> float:
        options, adapts = self.options, self.options.adapt is not None
        reading = copy.copy(reading)
        reading.model = self.weights.model
        self.weights.set_statistics(self.statistics[reading.direction])
        cache = NeuralCache(options.cache, options.cache_theta, options.cache_lambda) if options.cache else None
        total = torch.zeros((), dtype=torch.float64, device=reading.model.device)  # a GPU is waited for at the end only
        size = self.segment if adapts else UNROLL
        state: State | None = None
        for begin in range(0, reading.num_steps, size):
            steps = np.arange(begin, min(begin + size, reading.num_steps))
            with torch.set_grad_enabled(adapts):
                nll, x, targets, state = read_segment(reading, steps[None], state)
            scores = nll.detach() if cache is None else cache.mix(nll.detach(), x.detach(), targets)
            total += scores.sum(dtype=torch.float64)
            if adapts:
                nll.mean().backward()
                self.weights.step()
            if progress is not None:
                progress(len(steps))
        self.weights.restore()
        return float(total)


def read_segment(reading: "Reading", steps: np.ndarray, state: State | None) -> tuple[Tensor, Tensor, Tensor, State]:
    """Read steps (B, T); return losses (B T,), features (B T, D), targets (B T,), and the state without its history."""
    x, targets, state = reading.read(steps, state)
    x, targets = x.flatten(0, 1), targets.flatten()
    return reading.model.softmax.nll(x, targets), x, targets, tuple(tensor.detach() for tensor in state)


class LineAdapter:
    """Copy of a language model that adapts to the lines of a text: after each line, or after each of its words.

    bounds  steps of the present line at which updates are made; `score_windows` calls the adapter with the losses up
            to a step, and gradients are truncated there"""

    def __init__(self, model: "SequenceModel", options: SurprisalOptions):
        self.weights = AdaptedWeights(model, options.adapt or 0.0)
        self.reset = options.reset
        self.bounds: list[int] = []
        self.text_starts: dict[int, SourceText] = {}  # by their `id`: several lines can have one number

    def watch(self, sources: Iterable[SourceText]) -> Iterator[SourceText]:
        """Yield lines and note those that begin a text: after an empty line, or with another id."""
        previous: SourceText | None = None
        for source in sources:
            if previous is not None and (source.name != previous.name or not previous.text.strip()):
                self.text_starts[id(source)] = source
            yield source
            previous = source

    def score_lines(
        self, rows: Sequence[Sequence["ReadLine"]], options: SurprisalOptions, carry: Any
    ) -> tuple[np.ndarray, Any]:
        """Score one line as the model does, and adapt to it."""
        ((line,),) = rows
        if self.text_starts.pop(id(line.source), None) is not None and self.reset == "text":
            self.weights.restore()
        self.bounds = [0, len(line.symbols) + len(line.ends)]
        if self.reset == "sentence":
            owners = line.owners[:: -1 if options.direction == "backward" else 1]
            changes = np.flatnonzero(np.diff(np.append(owners, [-1] * len(line.ends)))) + 1
            self.bounds[1:1] = changes.tolist()
        with torch.enable_grad():
            scores, carry = self.weights.model.score_lines(rows, options, carry, self)
        if self.reset == "sentence":
            self.weights.restore()
        return scores, carry

    def __call__(self, losses: Tensor, stop: int) -> None:
        """Add the gradient of the losses up to a step; at a bound, update the weights."""
        index = int(np.searchsorted(self.bounds, stop))
        (losses.sum() / (self.bounds[index] - self.bounds[index - 1])).backward()
        if self.bounds[index] == stop:
            self.weights.step()
