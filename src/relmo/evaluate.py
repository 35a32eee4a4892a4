"""Scores of language models: every symbol of a text predicted exactly once, the state carried from its beginning to its
end.

To be fast the text is cut into lanes that run side by side. A lane other than the first does not know the state it
should start in, so it warms up on the symbols before it, and is checked afterwards: where the lane before ends in
another state than this one began with, it runs again from the right one. The result is that of one pass from end to
end, whatever the number of lanes.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relmo.models.language_model import Network
from relmo.nn.cells import State

Watch = Callable[[int], object]

WARM_UP = 256  # symbols a lane reads before its own first one
UNROLL = 256  # symbols a lane reads at a time
SAME_STATE = 1e-3  # states nearer than this, relative to 1 + their size, count as the same


@dataclass(frozen=True)
class Score:
    """How well a text is predicted. Characters are those the model sees, a space after each word."""

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
        return math.exp(self.nats) if self.nats < 700 else math.inf

    @property
    def bits_per_character(self) -> float:
        """The negative log-likelihood in bits, over the characters."""
        return self.nll / max(self.characters, 1) / math.log(2)

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.symbols + other.symbols,
            self.characters + other.characters,
            self.unknown + other.unknown,
            self.nll + other.nll,
        )

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


@torch.no_grad()
def total_nll(
    network: Network, ids: np.ndarray, *, lanes: int, device: torch.device, watch: Watch | None = None
) -> float:
    """The negative log-likelihood, in nats, of all symbols of the stream but the first; `watch` is told of symbols as
    they are scored."""
    if isinstance(network, torch.nn.Module):
        network.eval()
    with full_precision():
        return _total_nll(network, ids, lanes, device, watch)


def _total_nll(network: Network, ids: np.ndarray, lanes: int, device: torch.device, watch: Watch | None) -> float:
    lanes = max(1, min(lanes, (len(ids) - 1) // (4 * WARM_UP)))
    length = (len(ids) - 1) // lanes
    starts = warm_states(network, ids, length, lanes, device)
    totals, finals = torch.zeros(lanes, dtype=torch.float64, device=device), starts
    todo = torch.arange(lanes, device=device)
    while len(todo):
        nll, ends = run_lanes(network, ids, todo * length, length, select(starts, todo), watch)
        totals[todo] = nll
        finals = put(finals, todo, ends)
        wrong = 1 + differ(select(finals, slice(0, -1)), select(starts, slice(1, None))).nonzero().flatten()
        starts = put(starts, wrong, select(finals, wrong - 1))
        todo = wrong
    tail = torch.tensor([lanes * length], device=device)
    rest, _ = run_lanes(network, ids, tail, len(ids) - 1 - lanes * length, select(finals, slice(-1, None)))
    return float(totals.sum() + rest.sum())


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 as it is, on a GPU too, where recurrences are otherwise rounded to tf32: lanes could not be compared."""
    before = torch.backends.cudnn.allow_tf32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # newer torch has another name for the switch
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before


def warm_states(network: Network, ids: np.ndarray, length: int, lanes: int, device: torch.device) -> State:
    """The first lane's state is exact; the others read the symbols before them, from no state."""
    first = network.initial_state(1)
    if lanes == 1:
        return first
    begin = torch.arange(1, lanes, device=device) * length - WARM_UP
    _, warm = run_lanes(network, ids, begin, WARM_UP, network.initial_state(lanes - 1))
    return tuple(torch.cat(pair) for pair in zip(first, warm, strict=True))


def run_lanes(
    network: Network, ids: np.ndarray, begin: Tensor, length: int, state: State, watch: Watch | None = None
) -> tuple[Tensor, State]:
    """Reads `length` symbols from each of the positions `begin` on. -> nll of each lane, state of each lane."""
    total = torch.zeros(len(begin), dtype=torch.float64, device=begin.device)
    places = begin.cpu().numpy()
    for start in range(0, length, UNROLL):
        stop = min(start + UNROLL, length)
        piece = np.stack([ids[place + start : place + stop + 1] for place in places]).astype(np.int64)  # (lanes, T + 1)
        window = torch.from_numpy(piece).to(begin.device)
        nll, state = network.nll(window[:, :-1], window[:, 1:], state)
        total += nll.double().sum(dim=1)
        if watch is not None:
            watch(nll.numel())
    return total, state


def differ(a: State, b: State) -> Tensor:
    """Which rows of two states are not the same; (rows,)."""
    gaps = [
        ((x.double() - y.double()).abs() / (1 + y.abs())).amax(dim=1) for x, y in zip(a, b, strict=True) if x.shape[1]
    ]
    return torch.stack(gaps).amax(dim=0) > SAME_STATE if gaps else a[0].new_zeros(len(a[0]), dtype=torch.bool)


def select(state: State, rows: Tensor | slice) -> State:
    """Some rows of a state."""
    return tuple(tensor[rows] for tensor in state)


def put(state: State, rows: Tensor, values: State) -> State:
    """The state with some of its rows replaced."""
    return tuple(
        tensor.index_copy(0, rows, value.to(tensor.dtype)) for tensor, value in zip(state, values, strict=True)
    )
