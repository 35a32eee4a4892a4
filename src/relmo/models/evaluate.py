"""Scores of language models: every symbol of a text is predicted exactly once, with the state carried throughout.

For speed the text is split into lanes that run in parallel. A lane does not know its initial state, so it warms up on
the symbols before it and is checked afterwards: if the previous lane ended in another state, it runs again from that
state. The result is that of a single pass, whatever the number of lanes.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from operator import add

import numpy as np
import torch
from torch import Tensor

from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import Network
from relmo.nn.cells import State
from relmo.nn.locks import fork_safe_lock
from relmo.training.batch import BiText

Progress = Callable[[int], object]
Stateful = Network | BiLMNetwork
Read = Callable[[np.ndarray, State], tuple[Tensor, State]]
"""Function that reads a text at positions (lanes, T + 1), the last of which are only predicted; it returns the negative
log-likelihood (lanes, T), or (lanes, T, 2) for two directions, and the final state."""

WARM_UP = 256  # symbols that a lane reads before its start
UNROLL = 256  # symbols that a lane reads at a time
SAME_STATE = 1e-3  # tolerance for equal states, relative to 1 + their size


@dataclass(frozen=True)
class Score:
    """Score of a text. `characters` are those that the model sees, with a space after each word."""

    symbols: int
    characters: int
    unknown: int
    nll: float

    @property
    def nats(self) -> float:
        """Mean negative log-likelihood per symbol."""
        return self.nll / self.symbols

    @property
    def perplexity(self) -> float:
        """Perplexity per symbol."""
        return perplexity(self.nats)

    @property
    def bits_per_character(self) -> float:
        """Negative log-likelihood in bits per character."""
        return self.nll / max(self.characters, 1) / math.log(2)

    def __add__(self, score: "Score") -> "Score":
        return Score(*map(add, astuple(self), astuple(score)))

    def summary(self) -> dict[str, float]:
        """Return the metrics by name, as printed and saved."""
        return {
            "perplexity": self.perplexity,
            "bits_per_character": self.bits_per_character,
            "nll_per_symbol": self.nats,
            "nll": self.nll,
            "symbols": self.symbols,
            "characters": self.characters,
            "unknown": self.unknown,
        }


@dataclass(frozen=True)
class BiScore:
    """Score of a text in both directions. `tokens` are words and the ends (backwards, starts) of sentences."""

    tokens: int
    unknown: int
    forward_nll: float
    backward_nll: float

    @property
    def forward_perplexity(self) -> float:
        """Perplexity of words given the words before them."""
        return perplexity(self.forward_nll / self.tokens)

    @property
    def backward_perplexity(self) -> float:
        """Perplexity of words given the words after them."""
        return perplexity(self.backward_nll / self.tokens)

    @property
    def nats(self) -> float:
        """Mean negative log-likelihood over both directions."""
        return (self.forward_nll + self.backward_nll) / (2 * self.tokens)

    @property
    def perplexity(self) -> float:
        """Perplexity over both directions together."""
        return perplexity(self.nats)

    @property
    def average_perplexity(self) -> float:
        """Mean of the perplexities of the two directions."""
        return (self.forward_perplexity + self.backward_perplexity) / 2

    def __add__(self, score: "BiScore") -> "BiScore":
        return BiScore(*map(add, astuple(self), astuple(score)))

    def summary(self) -> dict[str, float]:
        """Return the metrics by name, as printed and saved."""
        return {
            "perplexity": self.perplexity,
            "forward_perplexity": self.forward_perplexity,
            "backward_perplexity": self.backward_perplexity,
            "average_perplexity": self.average_perplexity,
            "nats": self.nats,
            "forward_nll": self.forward_nll,
            "backward_nll": self.backward_nll,
            "tokens": self.tokens,
            "unknown": self.unknown,
        }


def perplexity(nats: float) -> float:
    """Return e to the mean negative log-likelihood, infinity if that overflows."""
    return math.exp(nats) if nats < 700 else math.inf


def total_nll(
    network: Network, ids: np.ndarray, *, lanes: int, device: torch.device, progress: Progress | None = None
) -> float:
    """Return the negative log-likelihood, in nats, of all symbols of the stream but the first.

    `progress` is called with the number of symbols scored since the last call."""

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
    network: Stateful, read: Read, count: int, lanes: int, device: torch.device, progress: Progress | None
) -> Tensor:
    """Return the sum of what `read` gives over `count` steps: one number, or one per direction."""
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
        finals = starts
        totals: list[Tensor] = [torch.zeros(())] * lanes
        todo = torch.arange(lanes, device=device)
        while len(todo):
            nll, ends = _run_lanes(read, todo * length, length, _select(starts, todo), progress)
            for lane, total in zip(todo.tolist(), nll, strict=True):
                totals[lane] = total
            finals = _replace_rows(finals, todo, ends)
            todo = 1 + _differ(_select(finals, slice(0, -1)), _select(starts, slice(1, None))).nonzero().flatten()
            starts = _replace_rows(starts, todo, _select(finals, todo - 1))
        tail = torch.tensor([lanes * length], device=device)
        tail_nll, _ = _run_lanes(read, tail, count - lanes * length, _select(finals, slice(-1, None)))
        return torch.stack(totals).sum(dim=0) + tail_nll.sum(dim=0)


warnings.filterwarnings("ignore", "Please use the new API settings", UserWarning)  # of torch, about `allow_tf32`


class _Tf32Switch:
    """Users of torch's global switch for tf32: the first one turns it off, the last one restores it."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self.num_users = 0
        self.initial = True

    def turn_off(self) -> None:
        with self.lock:
            if not self.num_users:
                self.initial = torch.backends.cudnn.allow_tf32
                torch.backends.cudnn.allow_tf32 = False
            self.num_users += 1

    def restore(self) -> None:
        with self.lock:
            self.num_users -= 1
            if not self.num_users:
                torch.backends.cudnn.allow_tf32 = self.initial


_TF32 = _Tf32Switch()


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable tf32 for recurrences on a GPU; with its rounding, the states of lanes could not be compared."""
    if not torch.cuda.is_initialized():
        yield
        return
    _TF32.turn_off()
    try:
        yield
    finally:
        _TF32.restore()


def _run_lanes(
    read: Read, starts: Tensor, length: int, state: State, progress: Progress | None = None
) -> tuple[Tensor, State]:
    """Read `length` symbols from each of the positions `starts`; return the total and the state of each lane."""
    total = torch.zeros(len(starts), 1, dtype=torch.float64, device=starts.device)
    positions = starts.cpu().numpy()[:, None]
    for start in range(0, length, UNROLL):
        stop = min(start + UNROLL, length)
        nll, state = read(positions + np.arange(start, stop + 1), state)
        total = total + nll.double().sum(dim=1).view(len(starts), -1)
        if progress is not None:
            progress(len(starts) * (stop - start))
    return total, state


def _differ(a: State, b: State) -> Tensor:
    """Return a mask (rows,) of the rows in which two states differ."""
    gaps = [
        ((x.double() - y.double()).abs() / (1 + y.abs())).flatten(1).amax(dim=1)
        for x, y in zip(a, b, strict=True)
        if x.shape[1]
    ]
    return torch.stack(gaps).amax(dim=0) > SAME_STATE if gaps else a[0].new_zeros(len(a[0]), dtype=torch.bool)


def _select(state: State, rows: Tensor | slice) -> State:
    return tuple(tensor[rows] for tensor in state)


def _replace_rows(state: State, rows: Tensor, values: State) -> State:
    pairs = zip(state, values, strict=True)
    return tuple(tensor.index_copy(0, rows, value.to(tensor.dtype)) for tensor, value in pairs)
