"""Beam search for the most probable texts of a network, for any number of texts in one batch.

Language models and sequence-to-sequence models use the same function. A network is a `step`: it reads one symbol of
each row and returns the log-probabilities of the next. The rows of a state are the beams of the first search, then
those of the second, …

Each step considers the 2K best continuations of a search's K open texts. One that ends and is among the best K leaves
the beam; the best K that do not end remain. With one beam the search is greedy: it takes the most probable symbol until
that is the end. A search is over when no open text can beat its K finished ones, since log-probabilities only decrease,
or at its limit. Its results do not depend on the other searches of the batch.

    score(text) = log p(text) / ((5 + length) / 6)^alpha + beta * sum_j log(min(1, sum_t a_tj))

The length includes the end. The last term, coverage, applies to finished texts of networks with attention: `bonus`.
With alpha > 0 an open text is scored as if it ended now, a heuristic that saves most of the steps.

    Sutskever et al. 2014 (beams);  Wu et al. 2016, Google's neural machine translation system (length and coverage)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from relmo.errors import check_cancelled
from relmo.nn.cells import State

Step = Callable[[Tensor, State], tuple[Tensor, State]]
NARROW_SHARE = 0.75  # finished searches leave the batch when at most this share is open


@dataclass(frozen=True)
class Beam:
    """Text found by a beam search: its ids without the end, their log-probability, whether it ended, and its score."""

    ids: list[int]
    log_prob: float
    ended: bool
    score: float = 0.0


@dataclass(frozen=True)
class BeamOptions:
    """Options of a beam search: number of beams, id of the end, ids that are never chosen, alpha."""

    beams: int
    end: int
    banned: Sequence[int] = ()
    alpha: float = 0.0


class BeamStep(NamedTuple):
    """One step of B searches, for the `watch` callback. Missing texts have a log-probability of -inf.

    symbols, parents, log_probs   (B, K): last symbols of the open texts, indices of the texts that they continue, and
                                  their log-probabilities
    ending, ended                 (B, N): indices of the texts that end now, and their log-probabilities with the end
    """

    symbols: Tensor
    parents: Tensor
    log_probs: Tensor
    ending: Tensor
    ended: Tensor


@dataclass
class _Texts:
    """K texts of each of B searches; missing ones have a score of -inf."""

    ids: Tensor  # (B, K, limit)
    lengths: Tensor  # (B, K)
    log_probs: Tensor  # (B, K)
    scores: Tensor  # (B, K)
    ended: Tensor  # (B, K)

    def merge_best(self, candidates: "_Texts", count: int) -> "_Texts":
        """Return the best `count` of both per search."""
        pairs = zip(vars(self).values(), vars(candidates).values(), strict=True)
        ids, *columns = (torch.cat([a, b], dim=1) for a, b in pairs)
        best = columns[2].topk(count, dim=1).indices  # by score
        return _Texts(_gather_texts(ids, best), *(column.gather(1, best) for column in columns))

    def select(self, searches: Tensor) -> "_Texts":
        """Return the texts of these searches (N,)."""
        return _Texts(*(tensor[searches] for tensor in vars(self).values()))

    def where(self, mask: Tensor, alternative: "_Texts") -> "_Texts":
        """Return these texts where the mask (B,) is true, the alternative elsewhere."""
        pairs = zip(vars(self).values(), vars(alternative).values(), strict=True)
        return _Texts(*(torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs))

    def to_beams(self) -> list[list[Beam]]:
        """Convert to Python values, without missing texts."""
        columns = (tensor.tolist() for tensor in vars(self).values())
        return [
            [
                Beam(ids[:length], log_prob, ended, score)
                for ids, length, log_prob, score, ended in zip(*rows, strict=True)
                if score > -float("inf")
            ]
            for rows in zip(*columns, strict=True)
        ]


def _gather_texts(texts: Tensor, indices: Tensor) -> Tensor:
    """Select texts (B, K, T) by their indices (B, N)."""
    return texts.gather(1, indices.unsqueeze(2).expand(-1, -1, texts.shape[2]))


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

    log_probs, state    log-probabilities (B, V) of the first symbol, and the state (B, …); `step` reads B * K rows
    limits              (B,): maximum number of symbols per text
    bonus               function from a state to a term (rows,) that is added to the score of a text that ends there
    narrow              callback with the indices (N,) of the searches that continue, called when many are over; from
                        then on `step` and `bonus` get their rows only. Without it all rows are read to the end
    watch               callback for each step
    """
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
        searches.close()
        is_open = searches.open.nonzero().squeeze(1)
        if not len(is_open) or (narrow is not None and len(is_open) <= NARROW_SHARE * len(searches.open)):
            beams_by_search |= searches.results()
            if not len(is_open):
                return [beams_by_search[index] for index in range(len(limits))]
            searches.narrow(is_open)
            symbols, rows = symbols[is_open], rows[is_open]
            if narrow is not None:
                narrow(is_open)
        log_probs, state = step(symbols.flatten(), tuple(tensor[rows.flatten()] for tensor in state))


class _Searches:
    """B searches in one batch.

    indices, limits  (B,): index of each search, and maximum length of its texts
    texts, totals    (B, K, limit), (B, K): open texts and their log-probabilities; -inf if missing
    finished         the best K texts that have ended
    open             (B,): mask of the searches that continue
    length           of the open texts
    """

    def __init__(self, limits: Tensor, options: BeamOptions):
        self.options, K = options, options.beams
        self.length, self.limits = 0, limits
        count, max_length, device = len(limits), int(limits.max()), limits.device
        self.indices = torch.arange(count, device=device)
        self.texts = torch.zeros(count, K, max_length, dtype=torch.int64, device=device)
        self.totals = torch.full((count, K), -torch.inf, device=device)
        self.finished = self._score_texts(self.texts, self.totals, ended=True)
        self.totals[:, 0] = 0.0  # the beams of a search begin as one
        self.open = torch.ones(count, dtype=torch.bool, device=device)
        self.banned = torch.tensor(options.banned, dtype=torch.int64, device=device)
        self.ranks = torch.arange(2 * K, device=device)

    def advance(self, log_probs: Tensor, bonus: Tensor | None) -> BeamStep:
        """Add a symbol to the open texts."""
        (B, K), end = self.totals.shape, self.options.end
        log_probs[:, self.banned] = -torch.inf
        best = log_probs.topk(min(2 * K, log_probs.shape[1]), dim=1)  # per row first, which is faster
        totals = self.totals.unsqueeze(2) + best.values.view(B, K, -1)
        values, flat = totals.flatten(1).topk(2 * K, dim=1)
        beams = flat // totals.shape[2]  # (B, 2K)
        symbols = best.indices.view(B, -1).gather(1, flat)
        texts = _gather_texts(self.texts, beams)
        ends = values.masked_fill((symbols != end) | (self.ranks >= K), -torch.inf)
        coverage = 0.0 if bonus is None else bonus.view(B, K).gather(1, beams)
        ended = self._score_texts(texts, ends, ended=True, bonus=coverage)
        self.finished = self.finished.merge_best(ended, K).where(self.open, self.finished)
        self.totals, ranks = values.masked_fill(symbols == end, -torch.inf).topk(K, dim=1)
        self.texts, symbols = _gather_texts(texts, ranks), symbols.gather(1, ranks)
        self.texts[:, :, self.length] = symbols
        self.length += 1
        return BeamStep(symbols, beams.gather(1, ranks), self.totals, beams, ends)

    def close(self) -> None:
        """Close searches whose open texts cannot win, and those at their limit, whose open texts are cut off."""
        cut = self._score_texts(self.texts, self.totals, ended=False)
        best_open = cut.scores[:, 0]
        is_lost = (self.finished.scores[:, -1] >= best_open) | ~best_open.isfinite()
        at_limit = self.limits == self.length
        merged = self.finished.merge_best(cut, self.options.beams)
        self.finished = merged.where(self.open & at_limit & ~is_lost, self.finished)
        self.open &= ~(at_limit | is_lost)

    def results(self) -> dict[int, list[Beam]]:
        """Return the texts of closed searches by index."""
        closed = (~self.open).nonzero().squeeze(1)
        return dict(zip(self.indices[closed].tolist(), self.finished.select(closed).to_beams(), strict=True))

    def narrow(self, searches: Tensor) -> None:
        """Drop all but these searches."""
        self.finished = self.finished.select(searches)
        for name in ("indices", "limits", "texts", "totals", "open"):
            setattr(self, name, getattr(self, name)[searches])

    def _score_texts(self, ids: Tensor, log_probs: Tensor, *, ended: bool, bonus: Tensor | float = 0.0) -> _Texts:
        scores = log_probs / ((5 + self.length + ended) / 6) ** self.options.alpha + bonus
        lengths = torch.full_like(log_probs, self.length, dtype=torch.int64)
        return _Texts(ids, lengths, log_probs, scores, torch.full_like(lengths, ended, dtype=torch.bool))
