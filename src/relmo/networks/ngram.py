"""N-gram language model over ids: interpolated modified Kneser-Ney, exact, in sorted arrays.

The definition is that of Chen & Goodman (1999), "An empirical study of smoothing techniques for language modeling",
after Kneser & Ney (1995). With h a context of k - 1 tokens, and h' the same without its oldest token,

    p_k(w | h) = [c(hw) - D(c(hw))] / sum_v c(hv)  +  gamma(h) p_{k-1}(w | h')       p_0(w) = 1 / V
    gamma(h)   = sum_v D(c(hv)) / sum_v c(hv)                                        1 where h was never followed

c is the count in the text at the highest order; below it, the continuation count: how many distinct tokens were seen
right before the n-gram. The discount depends on the count: D(0) = 0, D(1) = D1, D(2) = D2, D(3 and more) = D3+.

- The n-grams are a trie in arrays. Order k keeps its k-grams as one sorted array of keys, `parent * V + token`, where
  `parent` is the position of the first k - 1 tokens in the array of order k - 1; order 0 is the root, position 0. So a
  look-up is a binary search per order, and the children of a context are one contiguous range.
- Each k-gram has a discounted `probability`, the first term above; each context of k - 1 tokens has a `gamma`.
- The text is one stream: n-grams cross line ends, and no token precedes the first one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError, SettingError
from relmo.nn.recurrence import State
from relmo.settings.fields import Progress

MAX_ORDER = 20
MISSING = -1  # in a state: no token yet; as a position in a table: an unseen n-gram


class NGramTable(NamedTuple):
    """Table of the N n-grams of one order, with C contexts."""

    keys: Tensor  # (N,) int64, sorted
    probability: Tensor  # (N,) float32
    gamma: Tensor  # (C,) float32


class NGramLM(nn.Module):
    """Interpolated modified Kneser-Ney model, estimated by `fit`; without tables it is uniform."""

    def __init__(self, *, vocab_size: int, order: int, sizes: Sequence[int] | None = None) -> None:
        """Allocate tables; `sizes` are the numbers of distinct k-grams for k = 1 ... order, for saved tables."""
        super().__init__()
        if not 1 <= order <= MAX_ORDER:
            raise SettingError(f"order must be from 1 to {MAX_ORDER}, not {order}")
        sizes = [0] * order if sizes is None else list(sizes)
        if len(sizes) != order:
            raise SettingError(f"sizes must have {order} numbers for a model of order {order}, not {len(sizes)}")
        self.vocab_size, self.order = vocab_size, order
        for k, size, contexts in zip(range(1, order + 1), sizes, [1, *sizes], strict=False):
            self.register_buffer(f"keys_{k}", torch.zeros(size, dtype=torch.int64))
            self.register_buffer(f"probability_{k}", torch.zeros(size, dtype=torch.float32))
            self.register_buffer(f"gamma_{k}", torch.ones(contexts, dtype=torch.float32))

    @property
    def sizes(self) -> list[int]:
        """Numbers of distinct k-grams for k = 1 ... order."""
        return [len(self._table(k).keys) for k in range(1, self.order + 1)]

    @property
    def is_sound(self) -> bool:
        """Whether loaded tables are valid: increasing keys, probabilities and weights from 0 to 1."""
        tables = [self._table(k) for k in range(1, self.order + 1)]
        weights = [weight for table in tables for weight in (table.probability, table.gamma)]
        return all(bool((table.keys.diff() > 0).all()) for table in tables) and all(
            bool(((weight >= 0) & (weight <= 1)).all()) for weight in weights
        )

    @classmethod
    def fit(
        cls,
        stream: np.ndarray,
        *,
        vocab_size: int,
        order: int,
        once_up_to: int = MAX_ORDER,
        progress: Progress | None = None,
    ) -> "NGramLM":
        """Estimate the model of one contiguous text, a 1-D array (or memory map) of ids in [0, vocab_size).

        Of orders above `once_up_to`, n-grams that occur once are left out: their probability goes to the shorter
        context. Discounts are estimated before."""
        model = cls(vocab_size=vocab_size, order=order)
        if not len(stream):
            raise CorpusError("the text is empty; an n-gram model needs at least one token")
        if len(stream) * vocab_size >= 2**63:
            raise CorpusError(
                f"{len(stream)} tokens of a vocabulary of {vocab_size} do not fit 64-bit keys; use less text"
            )
        starts = np.arange(len(stream))  # of the (k - 1)-grams that are not left out
        nodes = np.zeros(len(stream), dtype=np.int64)  # their positions in the table of order k - 1
        contexts = 1
        for k in range(1, order + 1):
            count = np.searchsorted(starts, len(stream) - k + 1)
            starts, nodes = starts[:count], nodes[:count]
            key = nodes * vocab_size
            key += stream[starts + k - 1]
            keys, inverse, occurrences = np.unique(key, return_inverse=True, return_counts=True)
            counts = occurrences
            if k < order:  # the continuation count, of the distinct tokens before each k-gram
                has_previous = starts > 0
                key = inverse[has_previous] * vocab_size
                key += stream[starts[has_previous] - 1]
                key.sort()  # several times faster than np.unique
                counts = np.bincount(key[np.diff(key, prepend=-1) > 0] // vocab_size, minlength=len(keys))
            parents, discount = keys // vocab_size, estimate_discounts(counts)[np.minimum(counts, 3)]  # D(c), (N,)
            retained = (occurrences > 1) | (k <= once_up_to)
            total = np.bincount(parents, weights=counts, minlength=contexts)  # sum_v c(hv), (contexts,)
            freed = np.bincount(parents, weights=np.where(retained, discount, counts), minlength=contexts)
            gamma = np.divide(freed, total, out=np.ones(contexts), where=total > 0).astype(np.float32)
            probability = ((counts - discount) / np.maximum(total, 1)[parents])[retained].astype(np.float32)
            for name, array in (("keys", keys[retained]), ("probability", probability), ("gamma", gamma)):
                setattr(model, f"{name}_{k}", torch.from_numpy(array))
            remains = retained[inverse]
            starts, nodes = starts[remains], (np.cumsum(retained) - 1)[inverse[remains]]
            contexts = int(np.count_nonzero(retained))
            if progress is not None:
                progress(k / order)
        return model

    def initial_state(self, batch: int) -> State:
        """Return the last order - 1 ids of every lane before a text, (B, order - 1), all MISSING."""
        return (torch.full((batch, self.order - 1), MISSING, device=self._table(1).keys.device),)

    def nll(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """Return -ln p of `targets` (B, T), each given the input at its position and all before, and the new state."""
        history = self._extend(state, inputs)  # (B, order - 1 + T)
        p = torch.full(targets.shape, 1 / self.vocab_size, dtype=torch.float64, device=targets.device)  # (B, T)
        for k, nodes in enumerate(self._contexts(history), start=1):
            table, context = self._table(k), nodes[:, self.order - 1 :]  # (B, T)
            p = _look_up(table.gamma, context, 1.0) * p + _look_up(
                table.probability, self._find(k, context, targets), 0.0
            )
        return -p.log().float(), (history[:, inputs.shape[1] :],)

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Return ln p of every next token (B, V) after the last token of every lane (B,), and the new state."""
        history = self._extend(state, ids[:, None])  # (B, order)
        p = torch.full((len(ids), self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=ids.device)
        for k, nodes in enumerate(self._contexts(history), start=1):
            table, context = self._table(k), nodes[:, -1]  # (B,)
            bounds = torch.stack([context, context + 1]) * self.vocab_size  # MISSING gives the empty range
            start, end = torch.searchsorted(table.keys, bounds)
            length = end - start  # (B,): number of k-grams that begin with the context of each lane
            lane = torch.arange(len(context), device=context.device).repeat_interleave(length)  # (M,)
            offset = start - (length.cumsum(0) - length)
            child = torch.arange(len(lane), device=context.device) + offset[lane]  # (M,): their positions in the table
            p *= _look_up(table.gamma, context, 1.0)[:, None]
            p[lane, table.keys[child] % self.vocab_size] += table.probability[child]
        return p.log().float(), (history[:, 1:],)

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the last `order` ids at each position of `inputs` (B, T), (B, T, order), and the new state."""
        history = self._extend(state, inputs)  # (B, order - 1 + T)
        return history.unfold(1, self.order, 1), (history[:, inputs.shape[1] :],)

    def log_probs(self, features: Tensor) -> Tensor:
        """Return ln p of every next token, (N, order) ids -> (N, V)."""
        return self.step(features[:, -1], (features[:, :-1],))[0]

    def _table(self, k: int) -> NGramTable:
        return NGramTable(*(self.get_buffer(f"{name}_{k}") for name in NGramTable._fields))

    def _extend(self, state: State, ids: Tensor) -> Tensor:
        """Append ids (B, T) to the history, (B, order - 1 + T)."""
        return torch.cat([state[0], ids], dim=1)

    def _contexts(self, history: Tensor) -> list[Tensor]:
        """Return, for k = 0 ... order - 1, the position of the k-gram that ends at each place of `history`, (B, S)."""
        nodes = [torch.zeros_like(history)]
        for k in range(1, self.order):
            before = nn.functional.pad(nodes[-1][:, :-1], (1, 0), value=0 if k == 1 else MISSING)
            nodes.append(self._find(k, before, history))
        return nodes

    def _find(self, k: int, parent: Tensor, token: Tensor) -> Tensor:
        """Return the position of the k-gram (parent, token) in its table, or MISSING; all of one shape."""
        keys = self._table(k).keys
        key = torch.where((parent < 0) | (token < 0), MISSING, parent * self.vocab_size + token)
        position = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
        return torch.where(_look_up(keys, position, MISSING) == key, position, MISSING)


def estimate_discounts(counts: np.ndarray) -> np.ndarray:
    """Return [0, D1, D2, D3+] of one order, with n_c the number of its n-grams whose count is c.

        D_c = c - (c + 1) Y n_{c+1} / n_c       Y = n_1 / (n_1 + 2 n_2)

    If that cannot be estimated, or is not between 0 and c (small texts), it is c / 2: so every n-gram keeps some of its
    count, and every context has a positive gamma.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    y = n[1] / max(n[1] + 2 * n[2], 1)
    estimates = [c - (c + 1) * y * n[c + 1] / n[c] if n[c] else 0.0 for c in (1, 2, 3)]
    return np.array([0.0, *(d if 0 < d < c else c / 2 for c, d in enumerate(estimates, start=1))])


def _look_up(table: Tensor, position: Tensor, default: float) -> Tensor:
    """Return table[position], or `default` where the position is MISSING."""
    if not len(table):
        return torch.full_like(position, default, dtype=table.dtype)
    return torch.where(position < 0, default, table[position])
