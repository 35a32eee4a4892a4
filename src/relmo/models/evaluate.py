"""Scores of language models: every symbol of a text is predicted exactly once, with the state carried throughout."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import Network
from relmo.nn import fork_safe_lock
from relmo.nn.recurrence import State
from relmo.training.batch import BiText

Progress = Callable[[int], object]  # called with the number of symbols scored since the last call
Watch = Callable[[int, int], object]  # also with the total
Read = Callable[[np.ndarray, State], tuple[Tensor, State]]
"""From positions (lanes, T + 1), the last one predicted only, and a state to the nll (lanes, T[, 2]) and a state."""

WARM_UP = 256  # symbols that a lane reads before its start
UNROLL = 256  # symbols that a lane reads at a time
DERIVED: Any = field(init=False, compare=False, repr=False)
SAME_STATE = 1e-3  # tolerance for equal states, relative to 1 + their size
SAME_SCORE = 1e-4  # tolerance, in nats per symbol of a piece, for states whose difference does not matter
PARTS = 8  # of a piece; their scores are compared one by one, so that differences do not cancel out


@dataclass(frozen=True)
class TextScore:
    """Base class of scores: sums over a text, which can be added, and the metrics that follow from them. `adapted` is
    the score of a copy of the model that adapts to the text, if there is one."""

    adapted: Self | None = field(default=None, kw_only=True)

    def __add__(self, score: Self) -> Self:
        names = [entry.name for entry in fields(self) if entry.init and getattr(self, entry.name) is not None]
        return type(self)(**{name: getattr(self, name) + getattr(score, name) for name in names})


@dataclass(frozen=True)
class Score(TextScore):
    """Score of a text. `characters` are those that the model sees, with a space after each word; `nats` is the mean
    negative log-likelihood per symbol."""

    symbols: int
    characters: int
    unknown: int
    nll: float
    nats: float = DERIVED
    perplexity: float = DERIVED
    bits_per_character: float = DERIVED

    def __post_init__(self) -> None:
        nats = self.nll / self.symbols
        bits = self.nll / max(self.characters, 1) / math.log(2)
        vars(self).update(nats=nats, perplexity=perplexity(nats), bits_per_character=bits)

    def summary(self) -> dict[str, Any]:
        """Return the metrics by name, as printed and saved."""
        names = ("perplexity", "bits_per_character", "nats", "nll", "symbols", "characters", "unknown")
        metrics = {"nll_per_symbol" if name == "nats" else name: getattr(self, name) for name in names}
        return metrics if self.adapted is None else metrics | {"adapted": self.adapted.summary()}


@dataclass(frozen=True)
class BiScore(TextScore):
    """Score of a text in both directions. `tokens` are words and the ends (backwards, starts) of sentences.

    `nats`, the mean negative log-likelihood, and `perplexity` are those of both directions together;
    `average_perplexity` is the mean of the perplexities of the two directions."""

    tokens: int
    unknown: int
    forward_nll: float
    backward_nll: float
    nats: float = DERIVED
    perplexity: float = DERIVED
    forward_perplexity: float = DERIVED
    backward_perplexity: float = DERIVED
    average_perplexity: float = DERIVED

    def __post_init__(self) -> None:
        nats = (self.forward_nll + self.backward_nll) / (2 * self.tokens)
        forward, backward = (perplexity(nll / self.tokens) for nll in (self.forward_nll, self.backward_nll))
        vars(self).update(nats=nats, perplexity=perplexity(nats), average_perplexity=(forward + backward) / 2)
        vars(self).update(forward_perplexity=forward, backward_perplexity=backward)

    def summary(self) -> dict[str, Any]:
        """Return the metrics by name, as printed and saved."""
        perplexities = ("perplexity", "forward_perplexity", "backward_perplexity", "average_perplexity")
        names = (*perplexities, "nats", "forward_nll", "backward_nll", "tokens", "unknown")
        metrics = {name: getattr(self, name) for name in names}
        return metrics if self.adapted is None else metrics | {"adapted": self.adapted.summary()}


def perplexity(nats: float) -> float:
    """Return e to the mean negative log-likelihood, infinity if that overflows."""
    return math.exp(nats) if nats < 700 else math.inf


def total_nll(
    network: Network, ids: np.ndarray, *, lanes: int, device: torch.device, progress: Progress | None = None
) -> float:
    """Return the negative log-likelihood, in nats, of all symbols of the stream but the first."""

    def read(positions: np.ndarray, state: State) -> tuple[Tensor, State]:
        window = torch.from_numpy(ids[positions].astype(np.int64)).to(device)
        return network.nll(window[:, :-1], window[:, 1:], state)

    return float(_totals(network, read, len(ids) - 1, lanes, device, progress))


def bilm_nll(
    network: BiLMNetwork, text: BiText, *, lanes: int, progress: Progress | None = None
) -> tuple[float, float]:
    """Return the negative log-likelihood, in nats, of a text read forwards and backwards."""

    def read(positions: np.ndarray, state: State) -> tuple[Tensor, State]:
        nll, state = network.nll(text.window(positions), state)  # (2, T, B)
        return nll.permute(2, 1, 0), state

    forward, backward = _totals(network, read, text.steps, lanes, text.device, progress).tolist()
    return forward, backward


@torch.no_grad()
def _totals(
    network: Network | BiLMNetwork, read: Read, count: int, lanes: int, device: torch.device, progress: Progress | None
) -> Tensor:
    """Return the sum of what `read` gives over `count` steps: one number, or one per direction.

    Lanes run in parallel. A lane warms up on the symbols before it; if the previous lane turns out to have ended in
    another state, it runs again from that state until its score agrees. So the result is that of a single pass."""
    if isinstance(network, torch.nn.Module):
        network.eval()
    with full_precision():
        lanes = max(1, min(lanes, count // (4 * WARM_UP)))
        length = count // lanes
        starts = network.initial_state(1)  # exact for the first lane; the others warm up from zero
        if lanes > 1:
            positions = torch.arange(1, lanes, device=device) * length - WARM_UP
            _, warm = _run_lanes(read, positions, WARM_UP, network.initial_state(lanes - 1))
            starts = tuple(torch.cat(pair) for pair in zip(starts, warm, strict=True))
        pieces, finals = _run_lanes(read, torch.arange(lanes, device=device) * length, length, starts, progress)
        while len(todo := _find_gaps(finals, starts)):
            starts = _replace_rows(starts, todo, tuple(final[todo - 1] for final in finals))
            state = tuple(tensor[todo] for tensor in starts)
            for number, old in enumerate(pieces):
                start = number * UNROLL
                stop = min(start + UNROLL, length)
                window = (todo * length).cpu().numpy()[:, None] + np.arange(start, stop + 1)
                nll, state = read(window, state)
                new = _sum_parts(nll)
                differs = (new - old[todo]).abs().sum(dim=1).amax(dim=1) > SAME_SCORE * (stop - start)
                old[todo] = new
                todo, state = todo[differs], tuple(tensor[differs] for tensor in state)
                if not len(todo):
                    break
            finals = _replace_rows(finals, todo, state)
        tail = torch.tensor([lanes * length], device=device)
        tail_pieces, _ = _run_lanes(read, tail, count - lanes * length, tuple(x[-1:] for x in finals))
        sums = (piece.sum(dim=(0, 1)) for piece in pieces + tail_pieces)
        return sum(sums, torch.zeros(1, dtype=torch.float64, device=device))


def _find_gaps(finals: State, starts: State) -> Tensor:
    """Return the lanes whose state at their start is not that at the end of the lane before."""
    pairs = [(final[:-1], start[1:]) for final, start in zip(finals, starts, strict=True) if final.shape[1]]
    if not pairs:
        return torch.arange(0)
    gaps = [((x.double() - y.double()).abs() / (1 + y.abs())).flatten(1).amax(dim=1) for x, y in pairs]
    return 1 + (torch.stack(gaps).amax(dim=0) > SAME_STATE).nonzero().flatten()


def _replace_rows(state: State, rows: Tensor, values: State) -> State:
    """Return a state with other values in some rows."""
    pairs = zip(state, values, strict=True)
    return tuple(tensor.index_copy(0, rows, value.to(tensor.dtype)) for tensor, value in pairs)


warnings.filterwarnings("ignore", "Please use the new API settings", UserWarning)  # of torch, about `allow_tf32`


class _Tf32:
    """Users of torch's global switch for tf32: the first one turns it off, the last one restores it."""

    lock = fork_safe_lock()
    num_users = 0
    initial = True


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable tf32 for recurrences on a GPU; with its rounding, the states of lanes could not be compared."""
    if not torch.cuda.is_initialized():
        yield
        return
    with _Tf32.lock:
        if not _Tf32.num_users:
            _Tf32.initial = torch.backends.cudnn.allow_tf32
            torch.backends.cudnn.allow_tf32 = False
        _Tf32.num_users += 1
    try:
        yield
    finally:
        with _Tf32.lock:
            _Tf32.num_users -= 1
            if not _Tf32.num_users:
                torch.backends.cudnn.allow_tf32 = _Tf32.initial


def _run_lanes(
    read: Read, starts: Tensor, length: int, state: State, progress: Progress | None = None
) -> tuple[list[Tensor], State]:
    """Read `length` symbols from each of the positions `starts`, UNROLL at a time; return the score of each of these
    pieces, as `_sum_parts` does, and the state of each lane."""
    pieces: list[Tensor] = []
    positions = starts.cpu().numpy()[:, None]
    for start in range(0, length, UNROLL):
        stop = min(start + UNROLL, length)
        nll, state = read(positions + np.arange(start, stop + 1), state)
        pieces.append(_sum_parts(nll))
        if progress is not None:
            progress(len(starts) * (stop - start))
    return pieces, state


def _sum_parts(nll: Tensor) -> Tensor:
    """Return the sums (lanes, parts, k) of up to PARTS parts of a piece (lanes, T[, k])."""
    return torch.stack([part.sum(dim=1).view(len(nll), -1) for part in nll.double().chunk(PARTS, dim=1)], dim=1)
