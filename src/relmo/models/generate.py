"""Text generation from language models and sequence-to-sequence models: sampled, greedy, or by beam search."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from relmo.errors import ModelError, SettingError, check_cancelled
from relmo.networks.language_model import Network
from relmo.nn.recurrence import State
from relmo.settings.fields import check_integer

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30  # float32 overflows beyond them
NARROW_SHARE = 0.75  # finished searches leave the batch when at most this share is open
Step = Callable[[Tensor, State], tuple[Tensor, State]]


@dataclass(frozen=True)
class Sampling:
    """Sampling options. top_p: Holtzman et al. 2020, The curious case of neural text degeneration."""

    temperature: float = 1.0  # divides the logits; 0 always takes the most probable symbol (greedy)
    top_k: int | None = None  # number of the most probable symbols that are sampled from
    top_p: float | None = None  # probability of those that are sampled from, the most probable ones

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, int | float) or not 0 <= self.temperature < math.inf:
            raise SettingError(f"temperature must be finite and at least 0, not {self.temperature}")
        if self.top_k is not None:
            check_integer("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SettingError(f"top_p must be above 0 and at most 1, not {self.top_p}")


@dataclass(frozen=True)
class Text:
    """Generated text with its prompt. `log_prob` and `symbols` refer to the added part; `ended`: it ended by itself."""

    text: str
    log_prob: float
    symbols: int
    ended: bool


class SampleBatch:
    """Texts sampled in parallel from one prompt, which begins with the end of a previous text.

    `step_batch` makes the network read `next_input`: the prompt, (1,) at a time, and then the last symbols (rows,).
    After the prompt, `add` or `draw` adds a symbol to each text, until all have ended or reached the limit: `done`."""

    def __init__(
        self,
        network: Network,
        prompt: Sequence[int],
        *,
        rows: int,
        limit: int,
        end: int,
        banned: Sequence[int] = (),
        sampling: Sampling = Sampling(),
        generator: torch.Generator,
        decode: Callable[[Sequence[int]], str] = str,
    ):
        self.prompt, self.decode = prompt[1:], decode
        self.added: list[list[int]] = [[] for _ in range(rows)]
        self.totals = [0.0] * rows
        self.rows, self.remaining, self.end, self.banned = rows, limit, end, banned
        self.sampling, self.generator = sampling, generator
        self.state = network.initial_state(1)
        self.log_probs: Tensor | None = None  # (rows, V) after the prompt
        self.ended = torch.zeros(rows, dtype=torch.bool, device=generator.device)
        self.done = limit <= 0
        self.next_input, *self._unread = torch.tensor(prompt, device=generator.device).split(1)

    def add(self) -> list[Text]:
        """Sample a symbol for each text, after `step_batch`; return the texts."""
        had_ended = self.ended.tolist()
        for row, (symbol, score) in enumerate(zip(*self.draw(), strict=True)):
            if not had_ended[row]:
                self.totals[row] += score
                self.added[row] += [] if symbol == self.end else [symbol]
        return [
            Text(self.decode([*self.prompt, *added]), log_prob, len(added), ended)
            for added, log_prob, ended in zip(self.added, self.totals, self.ended.tolist(), strict=True)
        ]

    @torch.no_grad()
    def draw(self) -> tuple[list[int], list[float]]:
        """Return one symbol per text and its log-probability; a text that has ended continues with `end`."""
        assert self.log_probs is not None  # the prompt has been read
        symbols = choose_symbols(mask_symbols(self.log_probs, self.banned), self.sampling, self.generator)  # (rows,)
        self.next_input = torch.where(self.ended, self.end, symbols)
        scores = self.log_probs.gather(1, self.next_input.unsqueeze(1)).squeeze(1)
        self.ended = self.ended | (self.next_input == self.end)
        self.remaining -= 1
        self.done = self.remaining <= 0 or bool(self.ended.all())
        return self.next_input.tolist(), scores.tolist()


@torch.no_grad()
def step_batch(network: Network, samples: Sequence[SampleBatch]) -> None:
    """Run the network on the next inputs of several prompts, in one batch."""
    sizes = [len(sample.next_input) for sample in samples]
    state = tuple(torch.cat(tensors) for tensors in zip(*(sample.state for sample in samples), strict=True))
    log_probs, state = network.step(torch.cat([sample.next_input for sample in samples]), state)
    states = zip(*(tensor.split(sizes) for tensor in state), strict=True) if state else [()] * len(sizes)
    for sample, sample_log_probs, sample_state in zip(samples, log_probs.split(sizes), states, strict=True):
        sample.state = tuple(sample_state)
        if sample._unread:
            sample.next_input = sample._unread.pop(0)
        elif sample.log_probs is None:  # the prompt has been read: from here on, all texts have a row
            sample.state = tuple(tensor.expand(sample.rows, *tensor.shape[1:]) for tensor in sample_state)
            sample.log_probs = sample_log_probs.expand(sample.rows, -1)
        else:
            sample.log_probs = sample_log_probs


def mask_symbols(log_probs: Tensor, banned: Sequence[int]) -> Tensor:
    """Return log-probabilities (rows, V) with these symbols at -inf."""
    return log_probs.index_fill(1, torch.tensor(banned, dtype=torch.int64, device=log_probs.device), -torch.inf)


def choose_symbols(log_probs: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Return one symbol per row, (rows,), from log-probabilities (rows, V)."""
    if sampling.temperature < MIN_TEMPERATURE:
        return log_probs.argmax(dim=1)
    try:
        return torch.multinomial(sampling_probs(log_probs, sampling), 1, generator=generator).squeeze(1)
    except RuntimeError as error:
        raise ModelError(f"the model returns no probabilities ({error}); its weights are damaged") from error


def sampling_probs(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Return the probabilities (rows, V) of sampling; at temperature 0 the most probable symbol has 1."""
    if sampling.temperature < MIN_TEMPERATURE:
        return torch.zeros_like(log_probs).scatter(1, log_probs.argmax(dim=1, keepdim=True), 1.0)
    scores = log_probs / min(sampling.temperature, MAX_TEMPERATURE)
    if sampling.top_k is not None and sampling.top_k < scores.shape[1]:
        least = scores.topk(sampling.top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = scores.sort(dim=1, descending=True)
        p = ordered.softmax(dim=1)
        excluded = p.cumsum(dim=1) - p >= sampling.top_p  # the symbol that crosses p stays
        excluded[:, 0] = False  # and so does the best one if p is too small for a float32
        scores = scores.masked_fill(excluded.gather(1, order.argsort(dim=1)), -torch.inf)
    return scores.softmax(dim=1)


@dataclass(frozen=True)
class Beam:
    """Text found by a beam search: its ids without the end, their log-probability, whether it ended, and its score."""

    ids: list[int]
    log_prob: float
    ended: bool
    score: float = 0.0


@dataclass(frozen=True)
class BeamOptions:
    """Options of a beam search."""

    beams: int
    end: int
    banned: Sequence[int] = ()  # ids that are never chosen
    alpha: float = 0.0


class BeamStep(NamedTuple):
    """One step of B searches, for the `watch` callback. Missing texts have a log-probability of -inf."""

    symbols: Tensor  # (B, K): last symbols of the open texts
    parents: Tensor  # (B, K): indices of the texts that they continue
    log_probs: Tensor  # (B, K): of the open texts
    ending: Tensor  # (B, N): indices of the texts that end now
    ended: Tensor  # (B, N): log-probabilities of these with the end


@torch.no_grad()
def beam_search(
    step: Step,
    log_probs: Tensor,
    state: State,
    options: BeamOptions,
    *,
    limits: Tensor,
    bonus: Callable[[State], Tensor] | None = None,
    narrow: Callable[[Tensor], object] | None = None,
    watch: Callable[[BeamStep], object] | None = None,
) -> list[list[Beam]]:
    """Return the best texts of each of B searches, at most K each, best first.

    `step` reads one symbol of each row (the beams of the first search, then those of the second, …) and returns the
    log-probabilities of the next. Each step considers the 2K best continuations of a search's K open texts. One that
    ends and is among the best K leaves the beam; the best K that do not end remain. A search is over when no open text
    can beat its K finished ones, since log-probabilities only decrease, or at its limit.

        score(text) = log p(text) / ((5 + length) / 6)^alpha + beta * sum_j log(min(1, sum_t a_tj))

    The length includes the end. The last term, coverage, applies to finished texts of networks with attention: `bonus`.
    With alpha > 0 an open text is scored as if it ended now, a heuristic that saves most of the steps.
    Sutskever et al. 2014 (beams); Wu et al. 2016, Google's neural machine translation system (length and coverage)

    log_probs, state    log-probabilities (B, V) of the first symbol, and the state (B, …)
    limits              (B,): maximum number of symbols per text
    bonus               function from a state to a term (rows,) that is added to the score of a text that ends there
    narrow              callback with the indices (N,) of the searches that continue, called when many are over; from
                        then on `step` and `bonus` get their rows only"""
    searches = _Searches(limits.to(log_probs.device), options)
    beams_by_search: dict[int, list[Beam]] = {}
    log_probs = log_probs.repeat_interleave(options.beams, dim=0)  # (B * K, V)
    state = tuple(tensor.repeat_interleave(options.beams, dim=0) for tensor in state)
    while True:
        check_cancelled()
        beam_step = searches.advance(log_probs, None if bonus is None else bonus(state))
        if watch is not None:
            watch(beam_step)
        symbols = beam_step.symbols
        offsets = torch.arange(len(symbols), device=symbols.device).unsqueeze(1) * options.beams
        rows = offsets + beam_step.parents
        is_open = searches.open.nonzero().squeeze(1)
        if not len(is_open) or (narrow is not None and len(is_open) <= NARROW_SHARE * len(searches.open)):
            closed = (~searches.open).nonzero().squeeze(1)
            columns = (tensor[closed].tolist() for tensor in searches.finished)
            for index, *texts in zip(searches.indices[closed].tolist(), *columns, strict=True):
                beams_by_search[index] = [
                    Beam(ids[:length], log_prob, ended, score)
                    for ids, length, log_prob, score, ended in zip(*texts, strict=True)
                    if score > -math.inf
                ]
            searches.finished = _Texts(*(tensor[is_open] for tensor in searches.finished))
            for name in ("indices", "limits", "texts", "totals", "open"):
                setattr(searches, name, getattr(searches, name)[is_open])
            if not len(is_open):
                return [beams_by_search[index] for index in range(len(limits))]
            symbols, rows = symbols[is_open], rows[is_open]
            if narrow is not None:
                narrow(is_open)
        log_probs, state = step(symbols.flatten(), tuple(tensor[rows.flatten()] for tensor in state))


class _Texts(NamedTuple):
    """K texts of each of B searches; missing ones have a score of -inf."""

    ids: Tensor  # (B, K, limit)
    lengths: Tensor  # (B, K)
    log_probs: Tensor  # (B, K)
    scores: Tensor  # (B, K)
    ended: Tensor  # (B, K)


class _Searches:
    """B searches in one batch."""

    def __init__(self, limits: Tensor, options: BeamOptions):
        self.options, K = options, options.beams
        self.length, self.limits = 0, limits  # of the open texts, and (B,) the maximum for each search
        count, max_length, device = len(limits), int(limits.max()), limits.device
        self.indices = torch.arange(count, device=device)
        self.texts = torch.zeros(count, K, max_length, dtype=torch.int64, device=device)  # open texts
        self.totals = torch.full((count, K), -torch.inf, device=device)  # their log-probabilities; -inf if missing
        self.finished = self._score_texts(self.texts, self.totals, ended=True)  # the best K texts that have ended
        self.totals[:, 0] = 0.0  # the beams of a search begin as one
        self.open = torch.ones(count, dtype=torch.bool, device=device)  # mask of the searches that continue
        self.banned = torch.tensor(options.banned, dtype=torch.int64, device=device)
        self.ranks = torch.arange(2 * K, device=device)

    def advance(self, log_probs: Tensor, bonus: Tensor | None) -> BeamStep:
        """Add a symbol to the open texts, and close the searches that are over."""
        (B, K), end = self.totals.shape, self.options.end
        log_probs[:, self.banned] = -torch.inf
        best = log_probs.topk(min(2 * K, log_probs.shape[1]), dim=1)  # per row first, which is faster
        totals = self.totals.unsqueeze(2) + best.values.view(B, K, -1)
        values, flat = totals.flatten(1).topk(2 * K, dim=1)
        beams = flat // totals.shape[2]  # (B, 2K)
        symbols = best.indices.view(B, -1).gather(1, flat)
        texts = self.texts.take_along_dim(beams.unsqueeze(2), dim=1)
        ends = values.masked_fill((symbols != end) | (self.ranks >= K), -torch.inf)
        coverage = 0.0 if bonus is None else bonus.view(B, K).gather(1, beams)
        self._add_finished(self._score_texts(texts, ends, ended=True, bonus=coverage), self.open)
        self.totals, ranks = values.masked_fill(symbols == end, -torch.inf).topk(K, dim=1)
        self.texts, symbols = texts.take_along_dim(ranks.unsqueeze(2), dim=1), symbols.gather(1, ranks)
        self.texts[:, :, self.length] = symbols
        self.length += 1
        # Searches whose open texts cannot win are over; at the limit, the open texts are cut off.
        cut = self._score_texts(self.texts, self.totals, ended=False)
        best_open = cut.scores[:, 0]
        is_lost = (self.finished.scores[:, -1] >= best_open) | ~best_open.isfinite()
        at_limit = self.limits == self.length
        self._add_finished(cut, self.open & at_limit & ~is_lost)
        self.open &= ~(at_limit | is_lost)
        return BeamStep(symbols, beams.gather(1, ranks), self.totals, beams, ends)

    def _score_texts(self, ids: Tensor, log_probs: Tensor, *, ended: bool, bonus: Tensor | float = 0.0) -> _Texts:
        scores = log_probs / ((5 + self.length + ended) / 6) ** self.options.alpha + bonus
        lengths = torch.full_like(log_probs, self.length, dtype=torch.int64)
        return _Texts(ids, lengths, log_probs, scores, torch.full_like(lengths, ended, dtype=torch.bool))

    def _add_finished(self, texts: _Texts, searches: Tensor) -> None:
        """Keep the best K of the finished and these texts, in the searches of a mask (B,)."""
        merged = _Texts(*(torch.cat(pair, dim=1) for pair in zip(self.finished, texts, strict=True)))
        best = merged.scores.topk(self.options.beams, dim=1).indices
        ids = merged.ids.take_along_dim(best.unsqueeze(2), dim=1)
        updated = (ids, *(column.gather(1, best) for column in merged[1:]))
        masks = [searches.view(-1, *[1] * (tensor.dim() - 1)) for tensor in updated]
        self.finished = _Texts(*map(torch.where, masks, updated, self.finished))
