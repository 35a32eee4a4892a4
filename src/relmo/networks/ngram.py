"""An n-gram language model over integer ids: interpolated modified Kneser-Ney, exact, in sorted arrays.

The definition is that of Chen & Goodman (1999), "An empirical study of smoothing techniques for language modeling",
after Kneser & Ney (1995). With h a context of k - 1 tokens, and h' the same without its oldest token,

    p_k(w | h) = [c(hw) - D(c(hw))] / sum_v c(hv)  +  gamma(h) p_{k-1}(w | h')       p_0(w) = 1 / V
    gamma(h)   = sum_v D(c(hv)) / sum_v c(hv)                                        1 where h was never followed

c is the count in the text at the highest order; below it, the continuation count: how many distinct tokens were seen
right before the n-gram. What is taken off depends on the count: D(0) = 0, D(1) = D1, D(2) = D2, D(3 and more) = D3+.

- The n-grams are a trie in arrays. Order k keeps its k-grams as one sorted array of keys, `parent * V + token`, where
  `parent` is the position of the first k - 1 tokens in the array of order k - 1; order 0 is the root, position 0. So a
  look-up is a binary search per order, and the children of a context are one contiguous range.
- Each k-gram has its discounted `probability`, the first term above; each context of k - 1 tokens has its `gamma`.
- The text is one stream: its n-grams run across line ends, and nothing stands before its first token.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError, SettingError, VocabularyError
from relmo.nn.cells import State

MAX_ORDER = 20
NOTHING = -1
"""In a state: there is no token here yet. As a position in a table: the n-gram was never seen."""


class NGramTable(NamedTuple):
    """One order's n-grams. N of them, under C contexts."""

    keys: Tensor  # (N,) int64, sorted
    probability: Tensor  # (N,) float32
    gamma: Tensor  # (C,) float32


class NGramLM(nn.Module):
    """Interpolated modified Kneser-Ney. Made by `fit`; as constructed, with no table filled, it is uniform."""

    def __init__(self, *, vocab_size: int, order: int, sizes: Sequence[int] | None = None) -> None:
        """`sizes`: how many distinct k-grams there are for k = 1 ... order, so that saved tables can be loaded."""
        super().__init__()
        if not 1 <= order <= MAX_ORDER:
            raise SettingError(f"order is {order}; an n-gram model takes an order from 1 to {MAX_ORDER}")
        sizes = [0] * order if sizes is None else list(sizes)
        if len(sizes) != order:
            raise SettingError(f"sizes has {len(sizes)} numbers; a model of order {order} has {order} tables")
        self.vocab_size, self.order = vocab_size, order
        for k, size, contexts in zip(range(1, order + 1), sizes, [1, *sizes], strict=False):
            self.register_buffer(f"keys_{k}", torch.zeros(size, dtype=torch.int64))
            self.register_buffer(f"probability_{k}", torch.zeros(size, dtype=torch.float32))
            self.register_buffer(f"gamma_{k}", torch.ones(contexts, dtype=torch.float32))

    @property
    def sizes(self) -> list[int]:
        """The number of distinct k-grams for k = 1 ... order."""
        return [len(self._table(k).keys) for k in range(1, self.order + 1)]

    @property
    def is_sound(self) -> bool:
        """Whether loaded tables are possible: keys in rising order, probabilities and weights from 0 to 1."""
        tables = [self._table(k) for k in range(1, self.order + 1)]
        shares = [share for table in tables for share in (table.probability, table.gamma)]
        return all(bool((table.keys.diff() > 0).all()) for table in tables) and all(
            bool(((share >= 0) & (share <= 1)).all()) for share in shares
        )

    @classmethod
    def fit(cls, stream: np.ndarray, *, vocab_size: int, order: int) -> "NGramLM":
        """The model of one contiguous text, a 1-D array (or memory map) of ids in [0, vocab_size)."""
        model = cls(vocab_size=vocab_size, order=order)
        _check_stream(stream, vocab_size)
        contexts = 1
        for k, (keys, counts) in enumerate(_count_ngrams(stream, vocab_size=vocab_size, order=order), start=1):
            probability, gamma = _discount(counts, keys // vocab_size, contexts=contexts)
            for name, array in (("keys", keys), ("probability", probability), ("gamma", gamma)):
                setattr(model, f"{name}_{k}", torch.from_numpy(array))
            contexts = len(keys)
        return model

    def initial_state(self, batch: int) -> State:
        """The last order - 1 ids of every lane, before any token: (B, order - 1), all NOTHING."""
        return (torch.full((batch, self.order - 1), NOTHING, device=self._table(1).keys.device),)

    def nll(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """-ln p of `targets` (B, T), each given the input at its place and all before: (B, T) in nats, new state."""
        history = self._extend(state, inputs)  # (B, order - 1 + T)
        self._check_ids(targets)
        p = torch.full(targets.shape, 1 / self.vocab_size, dtype=torch.float64, device=targets.device)  # (B, T)
        for k, nodes in enumerate(self._contexts(history), start=1):
            table, context = self._table(k), nodes[:, self.order - 1 :]  # (B, T)
            p = _at(table.gamma, context, 1.0) * p + _at(table.probability, self._find(k, context, targets), 0.0)
        return -p.log().float(), (history[:, inputs.shape[1] :],)

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """The last token of every lane (B,) -> ln p of every next token (B, V), new state."""
        history = self._extend(state, ids[:, None])  # (B, order)
        p = torch.full((len(ids), self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=ids.device)
        for k, nodes in enumerate(self._contexts(history), start=1):
            table, context = self._table(k), nodes[:, -1]  # (B,)
            lane, child = self._followers(k, context)
            p *= _at(table.gamma, context, 1.0)[:, None]
            p[lane, table.keys[child] % self.vocab_size] += table.probability[child]
        return p.log().float(), (history[:, 1:],)

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """At each place of `inputs` (B, T) the last `order` ids, which tell the distribution: (B, T, order), new
        state."""
        history = self._extend(state, inputs)  # (B, order - 1 + T)
        return history.unfold(1, self.order, 1), (history[:, inputs.shape[1] :],)

    def log_probs(self, features: Tensor) -> Tensor:
        """ln p of every next token: (N, order) ids -> (N, V)."""
        return self.step(features[:, -1], (features[:, :-1],))[0]

    def _table(self, k: int) -> NGramTable:
        return NGramTable(*(self.get_buffer(f"{name}_{k}") for name in NGramTable._fields))

    def _extend(self, state: State, ids: Tensor) -> Tensor:
        """The ids (B, T) behind those of the state: (B, order - 1 + T)."""
        self._check_ids(ids)
        return torch.cat([state[0], ids], dim=1)

    def _check_ids(self, ids: Tensor) -> None:
        """An id beyond the vocabulary would be read as a child of the next context: refuse it."""
        if ids.numel() and int(ids.max()) >= self.vocab_size:
            raise VocabularyError(
                f"id {int(ids.max())} is not in the model's vocabulary of {self.vocab_size}; "
                "encode the text with the vocabulary the model was fitted with"
            )

    def _contexts(self, history: Tensor) -> list[Tensor]:
        """For k = 0 ... order - 1, the k-gram that ends at each place of `history`: positions or NOTHING, (B, S)."""
        nodes = [torch.zeros_like(history)]
        for k in range(1, self.order):
            before = nn.functional.pad(nodes[-1][:, :-1], (1, 0), value=0 if k == 1 else NOTHING)
            nodes.append(self._find(k, before, history))
        return nodes

    def _find(self, k: int, parent: Tensor, token: Tensor) -> Tensor:
        """The position of the k-gram (parent, token) in its table, or NOTHING; all of one shape."""
        keys = self._table(k).keys
        key = torch.where((parent < 0) | (token < 0), NOTHING, parent * self.vocab_size + token)
        place = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
        return torch.where(_at(keys, place, NOTHING) == key, place, NOTHING)

    def _followers(self, k: int, context: Tensor) -> tuple[Tensor, Tensor]:
        """Every k-gram that begins with its lane's `context` (B,): its lane and its position in the table, (M,)."""
        bounds = torch.stack([context, context + 1]) * self.vocab_size  # NOTHING gives the empty range
        first, last = torch.searchsorted(self._table(k).keys, bounds)
        length = last - first
        lane = torch.arange(len(context), device=context.device).repeat_interleave(length)
        offset = first - (length.cumsum(0) - length)
        return lane, torch.arange(len(lane), device=context.device) + offset[lane]


def _count_ngrams(stream: np.ndarray, *, vocab_size: int, order: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The sorted keys and the counts of each order 1 ... order: raw at the highest, continuation counts below.

    A k-gram that starts at i has as its prefix the (k-1)-gram at i and as its suffix the (k-1)-gram at i + 1. So a
    (k-1)-gram's continuation count is the number of distinct k-grams with it as their suffix, each read off where it
    first stands.
    """
    keys = np.zeros(1, dtype=np.int64)
    nodes = np.zeros(len(stream) + 1, dtype=np.int64)  # the position in its table of the (k-1)-gram that starts at i
    for k in range(1, order + 1):
        shorter = keys
        key = nodes[:-1] * vocab_size
        key += stream[k - 1 :]
        keys, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        if k > 1:
            yield shorter, np.bincount(nodes[first + 1], minlength=len(shorter))
        nodes = inverse
    yield keys, counts


def _discount(counts: np.ndarray, parents: np.ndarray, *, contexts: int) -> tuple[np.ndarray, np.ndarray]:
    """Of one order: each n-gram's discounted probability, and the weight gamma each context leaves to the order below.

    counts, parents (N,) -> probability (N,), gamma (contexts,), both float32. A context with no count leaves it all.
    """
    taken = discounts(counts)[np.minimum(counts, 3)]  # D(c), (N,)
    total = np.bincount(parents, weights=counts, minlength=contexts)  # sum_v c(hv), (contexts,)
    total_taken = np.bincount(parents, weights=taken, minlength=contexts)
    gamma = np.divide(total_taken, total, out=np.ones(contexts), where=total > 0)
    probability = (counts - taken) / np.maximum(total, 1)[parents]
    return probability.astype(np.float32), gamma.astype(np.float32)


def discounts(counts: np.ndarray) -> np.ndarray:
    """[0, D1, D2, D3+] of one order, with n_c the number of its n-grams whose count is c.

        D_c = c - (c + 1) Y n_{c+1} / n_c       Y = n_1 / (n_1 + 2 n_2)

    Where that cannot be estimated, or is not between 0 and c (small texts), c / 2: so every counted n-gram keeps
    something, and every context leaves something.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    y = n[1] / max(n[1] + 2 * n[2], 1)
    estimates = [c - (c + 1) * y * n[c + 1] / n[c] if n[c] else 0.0 for c in (1, 2, 3)]
    return np.array([0.0, *(d if 0 < d < c else c / 2 for c, d in enumerate(estimates, start=1))])


def _at(table: Tensor, place: Tensor, default: float) -> Tensor:
    """table[place], and `default` where the place is NOTHING."""
    if not len(table):
        return torch.full_like(place, default, dtype=table.dtype)
    return torch.where(place < 0, default, table[place])


def _check_stream(stream: np.ndarray, vocab_size: int) -> None:
    if not len(stream):
        raise CorpusError("the text is empty; an n-gram model counts at least one token")
    low, high = int(stream.min()), int(stream.max())
    if low < 0 or high >= vocab_size:
        raise VocabularyError(f"the text has ids from {low} to {high}; the vocabulary has 0 to {vocab_size - 1}")
    if len(stream) * vocab_size >= 2**63:
        raise CorpusError(f"{len(stream)} tokens of a vocabulary of {vocab_size} do not fit 64-bit keys; use less text")
