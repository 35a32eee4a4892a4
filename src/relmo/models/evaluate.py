"""Scores of language models: every symbol of a text is predicted exactly once, with the state carried from beginning to
end.

For speed the text is cut into lanes that run side by side. A lane other than the first does not know the state it
should start in, so it warms up on the symbols before it and is checked afterwards: if the lane before it ended in
another state, it runs again from that state. The result is that of one pass from end to end, whatever the number of
lanes.
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

Watch = Callable[[int], object]
Stateful = Network | BiLMNetwork
Read = Callable[[np.ndarray, State], tuple[Tensor, State]]
"""Reads a text at the places (lanes, T + 1); the last of them is only predicted. -> nll (lanes, T), or (lanes, T, 2)
for two directions, and the state after it."""

WARM_UP = 256  # symbols a lane reads before its own first one
UNROLL = 256  # symbols a lane reads at a time
SAME_STATE = 1e-3  # states nearer than this, relative to 1 + their size, count as the same


@dataclass(frozen=True)
class Score:
    """How well a text is predicted. `characters` are those that the model sees, with a space after each word."""

    symbols: int
    characters: int
    unknown: int
    nll: float

    @property
    def nats(self) -> float:
        """Mean negative log-likelihood of a symbol."""
        return self.nll / self.symbols

    @property
    def perplexity(self) -> float:
        """e to the mean negative log-likelihood of a symbol."""
        return perplexity(self.nats)

    @property
    def bits_per_character(self) -> float:
        """The negative log-likelihood in bits, over the characters."""
        return self.nll / max(self.characters, 1) / math.log(2)

    def __add__(self, other: "Score") -> "Score":
        return Score(*map(add, astuple(self), astuple(other)))

    def summary(self) -> dict[str, float]:
        """The figures by name, as printed and saved."""
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
    """How well a text is predicted in each direction. `tokens` are its words and the end of each sentence (backwards:
    the beginning)."""

    tokens: int
    unknown: int
    forward_nll: float
    backward_nll: float

    @property
    def forward_perplexity(self) -> float:
        """The perplexity of each word given the words before it."""
        return perplexity(self.forward_nll / self.tokens)

    @property
    def backward_perplexity(self) -> float:
        """The perplexity of each word given the words after it."""
        return perplexity(self.backward_nll / self.tokens)

    @property
    def nats(self) -> float:
        """Mean negative log-likelihood over both directions."""
        return (self.forward_nll + self.backward_nll) / (2 * self.tokens)

    @property
    def perplexity(self) -> float:
        """Joint: e to the mean negative log-likelihood over both directions."""
        return perplexity(self.nats)

    @property
    def average_perplexity(self) -> float:
        """The mean of the two directions' perplexities."""
        return (self.forward_perplexity + self.backward_perplexity) / 2

    def __add__(self, other: "BiScore") -> "BiScore":
        return BiScore(*map(add, astuple(self), astuple(other)))

    def summary(self) -> dict[str, float]:
        """The figures by name, as printed and saved."""
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
    """e to the mean negative log-likelihood, infinite where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf


def total_nll(
    network: Network, ids: np.ndarray, *, lanes: int, device: torch.device, watch: Watch | None = None
) -> float:
    """The negative log-likelihood, in nats, of all symbols of the stream but the first. `watch` is told how many were
    scored, as it goes."""

    def read(places: np.ndarray, state: State) -> tuple[Tensor, State]:
        window = torch.from_numpy(ids[places].astype(np.int64)).to(device)
        return network.nll(window[:, :-1], window[:, 1:], state)

    return float(_totals(network, read, len(ids) - 1, lanes, device, watch))


def bilm_nll(network: BiLMNetwork, text: BiText, *, lanes: int, watch: Watch | None = None) -> tuple[float, float]:
    """The negative log-likelihood, in nats, of a text read forwards and backwards."""

    def read(places: np.ndarray, state: State) -> tuple[Tensor, State]:
        nll, state = network.nll(text.window(places), state)  # (2, T, B)
        return nll.permute(2, 1, 0), state

    forward, backward = _totals(network, read, text.steps, lanes, text.device, watch).tolist()
    return forward, backward


@torch.no_grad()
def _totals(network: Stateful, read: Read, count: int, lanes: int, device: torch.device, watch: Watch | None) -> Tensor:
    """The sum of what `read` gives over `count` steps: one number, or one a direction."""
    if isinstance(network, torch.nn.Module):
        network.eval()
    with full_precision():
        lanes = max(1, min(lanes, count // (4 * WARM_UP)))
        length = count // lanes
        starts = finals = _warm_states(network, read, length, lanes, device)
        totals: list[Tensor] = [torch.zeros(())] * lanes
        todo = torch.arange(lanes, device=device)
        while len(todo):
            nll, ends = _run_lanes(read, todo * length, length, _select(starts, todo), watch)
            for lane, total in zip(todo.tolist(), nll, strict=True):
                totals[lane] = total
            finals = _put(finals, todo, ends)
            wrong = 1 + _differ(_select(finals, slice(0, -1)), _select(starts, slice(1, None))).nonzero().flatten()
            starts = _put(starts, wrong, _select(finals, wrong - 1))
            todo = wrong
        tail = torch.tensor([lanes * length], device=device)
        rest, _ = _run_lanes(read, tail, count - lanes * length, _select(finals, slice(-1, None)))
        return torch.stack(totals).sum(dim=0) + rest.sum(dim=0)


warnings.filterwarnings("ignore", "Please use the new API settings", UserWarning)  # of torch, about `allow_tf32`


class Tf32:
    """Torch's one switch that allows recurrences on a GPU to be rounded to tf32. The first thread that wants it off
    turns it off; the last one turns it back."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self.users = 0
        self.before = True

    def off(self) -> None:
        """Turns it off for one more user."""
        with self.lock:
            if not self.users:
                self.before = torch.backends.cudnn.allow_tf32
                torch.backends.cudnn.allow_tf32 = False
            self.users += 1

    def back(self) -> None:
        """Counts one user less; the last one turns it back."""
        with self.lock:
            self.users -= 1
            if not self.users:
                torch.backends.cudnn.allow_tf32 = self.before


TF32 = Tf32()


@contextmanager
def full_precision() -> Iterator[None]:
    """Keeps float32 exact on a GPU, too, where recurrences may be rounded to tf32: lanes could not be compared then."""
    if not torch.cuda.is_initialized():
        yield
        return
    TF32.off()
    try:
        yield
    finally:
        TF32.back()


def _warm_states(network: Stateful, read: Read, length: int, lanes: int, device: torch.device) -> State:
    """The first lane's state is exact; the others read the symbols before them, starting from zero."""
    first = network.initial_state(1)
    if lanes == 1:
        return first
    begin = torch.arange(1, lanes, device=device) * length - WARM_UP
    _, warm = _run_lanes(read, begin, WARM_UP, network.initial_state(lanes - 1))
    return tuple(torch.cat(pair) for pair in zip(first, warm, strict=True))


def _run_lanes(
    read: Read, begin: Tensor, length: int, state: State, watch: Watch | None = None
) -> tuple[Tensor, State]:
    """Reads `length` symbols from each of the positions `begin` on. -> nll of each lane, state of each lane."""
    total = torch.zeros(len(begin), 1, dtype=torch.float64, device=begin.device)
    places = begin.cpu().numpy()[:, None]
    for start in range(0, length, UNROLL):
        stop = min(start + UNROLL, length)
        nll, state = read(places + np.arange(start, stop + 1), state)
        total = total + nll.double().sum(dim=1).view(len(begin), -1)
        if watch is not None:
            watch(len(begin) * (stop - start))
    return total, state


def _differ(a: State, b: State) -> Tensor:
    """Which rows of two states are not the same; (rows,)."""
    gaps = [
        ((x.double() - y.double()).abs() / (1 + y.abs())).flatten(1).amax(dim=1)
        for x, y in zip(a, b, strict=True)
        if x.shape[1]
    ]
    return torch.stack(gaps).amax(dim=0) > SAME_STATE if gaps else a[0].new_zeros(len(a[0]), dtype=torch.bool)


def _select(state: State, rows: Tensor | slice) -> State:
    return tuple(tensor[rows] for tensor in state)


def _put(state: State, rows: Tensor, values: State) -> State:
    """The state with some of its rows replaced."""
    return tuple(
        tensor.index_copy(0, rows, value.to(tensor.dtype)) for tensor, value in zip(state, values, strict=True)
    )
