"""Beam search: the most probable texts that a network can write, for any number of texts side by side.

Language models and sequence-to-sequence models are searched by the same function. A network is a `step`: it reads one
symbol of each row and gives the log-probabilities of the next. Rows of a state are the beams of the first search, then
those of the second, …

Each step looks at the 2K best continuations of a search's K open texts. One that ends and is among the best K leaves
the beam; the best K that do not end stay in it. So one beam is greedy: it takes the most probable symbol until that is
the end. A search is over when no open text can beat its K finished ones, since log-probabilities only fall, or at its
limit. What it has found then does not depend on the searches beside it.

    score(text) = log p(text) / ((5 + length) / 6)^alpha + beta * sum_j log(min(1, sum_t a_tj))

The length counts the end. The last term, coverage, is of finished texts of networks with attention: `bonus`. With an
alpha, an open text is compared as if it had no more symbols to come; that is a guess, and saves most of the steps.

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
FEW = 0.75  # where so many of the searches or fewer are left, the others are put aside


@dataclass(frozen=True)
class Beam:
    """A finished or cut-off text of a beam search: its ids (the end left out), their log-probability and, where that is
    something else, the score it is ranked by."""

    ids: list[int]
    log_prob: float
    ended: bool
    score: float = 0.0


@dataclass(frozen=True)
class BeamOptions:
    """How to search: how many beams, up to how many symbols, alpha."""

    beams: int
    end: int
    banned: Sequence[int] = ()
    alpha: float = 0.0


class BeamStep(NamedTuple):
    """What a step of B searches has done, for whoever watches. What is not there has a log-probability of -inf.

    symbols, parents, log_probs   (B, K): the open texts' last symbols, the numbers of the texts before that they
                                  continue, and their log-probabilities
    ending, ended                 (B, N): of texts that end now, the numbers of the texts before, and their
                                  log-probabilities with the end
    """

    symbols: Tensor
    parents: Tensor
    log_probs: Tensor
    ending: Tensor
    ended: Tensor


@dataclass
class _Texts:
    """K texts of each of B searches; those that are not there have a score of -inf."""

    ids: Tensor  # (B, K, limit)
    lengths: Tensor  # (B, K)
    log_probs: Tensor  # (B, K)
    scores: Tensor  # (B, K)
    ended: Tensor  # (B, K)

    def best(self, other: "_Texts", count: int) -> "_Texts":
        """The best of both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        both = _Texts(*(torch.cat([a, b], dim=1) for a, b in pairs))
        return both.take(both.scores.topk(count, dim=1).indices)

    def take(self, which: Tensor) -> "_Texts":
        """Those of these numbers (B, K)."""
        return _Texts(
            _chosen(self.ids, which), *(tensor.gather(1, which) for name, tensor in vars(self).items() if name != "ids")
        )

    def of(self, searches: Tensor) -> "_Texts":
        """Those of these searches (N,)."""
        return _Texts(*(tensor[searches] for tensor in vars(self).values()))

    def where(self, mask: Tensor, other: "_Texts") -> "_Texts":
        """These where the mask (B,) is true, the other's elsewhere."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Texts(*(torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs))


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
    """The best texts of each of B searches, at most K each, best first.

    log_probs, state    of the first symbol, (B, V), and what is known then, (B, …); `step` reads B * K rows
    limits              (B,): the most symbols of each search's texts
    bonus               what is added to the score of a text that ends in a state: (rows,)
    narrow              is told which searches of those before go on (N,), where many are over; from then on `step` and
                        `bonus` are given their rows alone. Without it all rows are read to the end
    watch               is told what each step has done
    """
    searches = _Searches(limits.to(log_probs.device), options)
    found: dict[int, list[Beam]] = {}
    log_probs = log_probs.repeat_interleave(options.beams, dim=0)  # (B * K, V)
    state = tuple(tensor.repeat_interleave(options.beams, dim=0) for tensor in state)
    while True:
        check_cancelled()
        done = searches.advance(log_probs, None if bonus is None else bonus(state))
        if watch is not None:
            watch(done)
        symbols, rows = done.symbols, searches.rows(done.parents)
        searches.close()
        going = searches.open.nonzero().squeeze(1)
        if not len(going) or (narrow is not None and len(going) <= FEW * len(searches.open)):
            found |= searches.results()
            if not len(going):
                return [found[number] for number in range(len(limits))]
            searches.keep(going)
            symbols, rows = (tensor[going] for tensor in (symbols, rows))
            if narrow is not None:
                narrow(going)
        log_probs, state = step(symbols.flatten(), tuple(tensor[rows.flatten()] for tensor in state))


class _Searches:
    """B searches side by side.

    numbers, limits  (B,): of each search, and the most symbols of its texts
    texts, totals    (B, K, longest), (B, K): the open texts and their log-probabilities; -inf where there is none
    finished         the best K texts so far that have ended
    open             (B,): which searches go on
    length           of the open texts
    """

    def __init__(self, limits: Tensor, options: BeamOptions):
        self.options, K = options, options.beams
        self.length, self.limits = 0, limits
        count, longest, device = len(limits), int(limits.max()), limits.device
        self.numbers = torch.arange(count, device=device)
        self.texts = torch.zeros(count, K, longest, dtype=torch.int64, device=device)
        self.totals = torch.full((count, K), -torch.inf, device=device)
        self.finished = self._of_length(self.texts, self.totals, ended=True)
        self.totals[:, 0] = 0.0  # the beams of a search begin as one
        self.open = torch.ones(count, dtype=torch.bool, device=device)
        self.banned = torch.tensor(options.banned, dtype=torch.int64, device=device)
        self.places = torch.arange(2 * K, device=device)

    def rows(self, beams: Tensor) -> Tensor:
        """The rows of texts (B, K) by their numbers in their searches."""
        return torch.arange(len(beams), device=beams.device).unsqueeze(1) * self.options.beams + beams

    def advance(self, log_probs: Tensor, bonus: Tensor | None) -> BeamStep:
        """Adds a symbol to the open texts."""
        (B, K), end = self.totals.shape, self.options.end
        log_probs[:, self.banned] = -torch.inf
        best = log_probs.topk(min(2 * K, log_probs.shape[1]), dim=1)  # of each row first, which is faster than of all
        every = self.totals.unsqueeze(2) + best.values.view(B, K, -1)
        values, which = every.flatten(1).topk(2 * K, dim=1)
        beams = which // every.shape[2]  # (B, 2K)
        symbols = best.indices.view(B, -1).gather(1, which)
        texts = _chosen(self.texts, beams)
        ends = values.masked_fill((symbols != end) | (self.places >= K), -torch.inf)
        more = 0.0 if bonus is None else bonus.view(B, K).gather(1, beams)
        ended = self._of_length(texts, ends, ended=True, more=more)
        self.finished = self.finished.best(ended, K).where(self.open, self.finished)
        self.totals, kept = values.masked_fill(symbols == end, -torch.inf).topk(K, dim=1)
        self.texts, symbols = _chosen(texts, kept), symbols.gather(1, kept)
        self.texts[:, :, self.length] = symbols
        self.length += 1
        return BeamStep(symbols, beams.gather(1, kept), self.totals, beams, ends)

    def close(self) -> None:
        """Closes the searches whose open texts cannot win, and those at their limit, whose open texts are cut off."""
        K = self.options.beams
        cut = self._of_length(self.texts, self.totals, ended=False)
        hope = cut.scores[:, 0]
        lost = (self.finished.scores[:, -1] >= hope) | ~hope.isfinite()
        over = self.limits == self.length
        self.finished = self.finished.best(cut, K).where(self.open & over & ~lost, self.finished)
        self.open &= ~(over | lost)

    def results(self) -> dict[int, list[Beam]]:
        """What the searches that are over have found, by their numbers."""
        over = (~self.open).nonzero().squeeze(1)
        return dict(zip(self.numbers[over].tolist(), _listed(self.finished.of(over)), strict=True))

    def keep(self, which: Tensor) -> None:
        """From now on there are these searches only."""
        self.finished = self.finished.of(which)
        for name in ("numbers", "limits", "texts", "totals", "open"):
            setattr(self, name, getattr(self, name)[which])

    def _of_length(self, ids: Tensor, log_probs: Tensor, *, ended: bool, more: Tensor | float = 0.0) -> _Texts:
        """Texts as long as the open ones, with their scores; their end is counted where they have one."""
        scores = log_probs / ((5 + self.length + ended) / 6) ** self.options.alpha + more
        lengths = torch.full_like(log_probs, self.length, dtype=torch.int64)
        return _Texts(ids, lengths, log_probs, scores, torch.full_like(lengths, ended, dtype=torch.bool))


def _chosen(texts: Tensor, which: Tensor) -> Tensor:
    """Of the texts (B, K, T) of each search those of these numbers (B, N)."""
    return texts.gather(1, which.unsqueeze(2).expand(-1, -1, texts.shape[2]))


def _listed(texts: _Texts) -> list[list[Beam]]:
    """As Python values; only what is there."""
    columns = (tensor.tolist() for tensor in vars(texts).values())
    return [
        [
            Beam(ids[:length], log_prob, ended, score)
            for ids, length, log_prob, score, ended in zip(*rows, strict=True)
            if score > -float("inf")
        ]
        for rows in zip(*columns, strict=True)
    ]
