"""Examples to tensors: contiguous lanes for truncated back-propagation, padded and length-bucketed batches for
sentences.

All are a pure function of (epoch, index): the position in the data is those two numbers and nothing else, which is what
makes a run resumable to the bit.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from torch import Tensor

from relmo.errors import CorpusError
from relmo.models.language_model import Window
from relmo.models.skipgram import Groups
from relmo.settings import SkipgramModelSettings


class Lanes:
    """A stream of ids read as `batch` lanes side by side, `unroll` steps at a time.

    Lane b holds the b-th of `batch` equal pieces of the stream, so window i + 1 goes on where window i ended and the
    state can be carried. The last window of an epoch may be shorter; fewer than `batch` symbols at the stream's end are
    left out.
    """

    def __init__(self, stream: np.ndarray, *, batch: int, unroll: int, device: torch.device):
        if len(stream) - 1 < batch * unroll:
            raise CorpusError(
                f"the training part has {len(stream) - 1} symbols, fewer than one window of {batch} lanes x {unroll} "
                "steps; give more text, or lower --batch or --unroll"
            )
        self.length = (len(stream) - 1) // batch
        step = stream.strides[0]
        self.lanes = as_strided(stream, (batch, self.length + 1), (self.length * step, step), writeable=False)
        self.unroll = unroll
        self.device = device

    def __len__(self) -> int:
        return -(-self.length // self.unroll)

    def get(self, epoch: int, index: int) -> Window:
        """Window `index`; every epoch reads the same."""
        start = index * self.unroll
        piece = self.lanes[:, start : min(start + self.unroll, self.length) + 1].astype(np.int64)  # (B, T + 1)
        ids = torch.from_numpy(piece)
        if self.device.type == "cuda":  # from pinned memory the copy does not wait for the GPU
            ids = ids.pin_memory().to(self.device, non_blocking=True)
        return Window(ids[:, :-1], ids[:, 1:])


class Padded(NamedTuple):
    """Sequences of ids side by side: ids (B, T), zero past each row's end, and lengths (B,)."""

    ids: Tensor
    lengths: Tensor


def pad(sequences: Sequence[np.ndarray]) -> Padded:
    """One batch of sequences, padded with zeros to the longest."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.int64)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.as_tensor(sequence)
    return Padded(ids, lengths)


class LengthBuckets:
    """Sequences batched by length under a budget of tokens, padding counted; batches come in a new order every epoch.

    Sequences of one length are dealt anew every epoch, but the cuts between batches depend on the lengths alone, so
    every epoch has the same number of batches. A sequence longer than the budget makes a batch of its own.
    """

    def __init__(self, lengths: Sequence[int], *, tokens_per_batch: int, seed: int):
        self.lengths = np.asarray(lengths)
        self.seed = seed
        self.cuts = [0]
        for position, length in enumerate(np.sort(self.lengths)):
            if (position - self.cuts[-1] + 1) * length > tokens_per_batch and position > self.cuts[-1]:
                self.cuts.append(position)
        self.cuts.append(len(self.lengths))
        self._deal(epoch=0)

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def get(self, epoch: int, index: int) -> np.ndarray:
        """The positions of the sequences in batch `index` of this epoch."""
        if epoch != self.epoch:
            self._deal(epoch)
        bucket = self.order[index]
        return self.by_length[self.cuts[bucket] : self.cuts[bucket + 1]]

    def _deal(self, epoch: int) -> None:
        generator = np.random.default_rng((self.seed, epoch))
        dealt = generator.permutation(len(self.lengths))
        self.by_length = dealt[np.argsort(self.lengths[dealt], kind="stable")]
        self.order = generator.permutation(len(self))
        self.epoch = epoch


GROUP, SHARED = 32, 64  # skip-gram: words of a group, and the negatives they share; they change speed and noise only


class Contexts:
    """A stream of ids read for skip-gram, `batch` symbols at a time, in a new order every epoch (Mikolov et al. 2013).

    Frequent words are thinned: each occurrence of w stays with probability min(1, sqrt(t / f(w))), f(w) being w's share
    of the words and t `subsample`. Each word that stays predicts those up to r words away, r drawn from 1 to `window`,
    but none beyond the end of its text (or of its batch). Symbols with a count of 0, line ends say, are passed over.
    """

    def __init__(
        self,
        stream: np.ndarray,
        counts: np.ndarray,
        settings: SkipgramModelSettings,
        *,
        end: int,
        batch: int,
        seed: int,
        device: torch.device,
    ):
        self.stream, self.end, self.batch, self.seed, self.device = stream, end, batch, seed, device
        self.window = settings.window
        share = np.maximum(counts, 1) / counts.sum()
        self.keep = np.where(counts > 0, np.sqrt(settings.subsample / share), 0.0)  # (V,)
        noise = np.cumsum(counts**0.75)
        self.noise = noise / noise[-1]  # (V,)
        column, row = np.arange(GROUP + 2 * self.window), np.arange(GROUP)[:, None]
        self.distance = np.abs(column - self.window - row)  # (S, C)
        self._deal(epoch=0)

    def __len__(self) -> int:
        return -(-len(self.stream) // self.batch)

    def get(self, epoch: int, index: int) -> Groups:
        """Batch `index` of this epoch; all that is random in it is drawn from (seed, epoch, index)."""
        if epoch != self.epoch:
            self._deal(epoch)
        generator = np.random.default_rng((self.seed, epoch, index))
        begin = int(self.order[index]) * self.batch
        ids = self.stream[begin : begin + self.batch].astype(np.int64)
        stays = generator.random(len(ids)) < self.keep[ids]
        texts = np.cumsum(ids == self.end)[stays]  # the number of the text each word stands in
        return self._groups(ids[stays], texts, generator)

    def _groups(self, words: np.ndarray, texts: np.ndarray, generator: np.random.Generator) -> Groups:
        """Words in groups of GROUP, the last one filled up with symbols that are in no pair."""
        groups = max(1, -(-len(words) // GROUP))
        contexts, context_texts = self._around(words, groups, 0), self._around(texts, groups, -1)  # (G, C)
        inner = slice(self.window, self.window + GROUP)
        centres, centre_texts = contexts[:, inner], context_texts[:, inner, None]  # (G, S), (G, S, 1)
        reach = generator.integers(1, self.window + 1, size=centre_texts.shape) * (centre_texts >= 0)
        pairs = (self.distance > 0) & (self.distance <= reach) & (centre_texts == context_texts[:, None])  # (G, S, C)
        negatives = np.searchsorted(self.noise, generator.random((groups, SHARED)), side="right")  # (G, K)
        put = [torch.from_numpy(array.copy()).to(self.device) for array in (centres, contexts, pairs, negatives)]
        return Groups(put[0], put[1], put[2], put[3], predictions=int(pairs.sum()))

    def _around(self, values: np.ndarray, groups: int, filler: int) -> np.ndarray:
        """What stands in each group and up to `window` places before and after it; (G, C)."""
        fill = (self.window, self.window + groups * GROUP - len(values))
        padded = np.pad(values, fill, constant_values=filler)
        return sliding_window_view(padded, GROUP + 2 * self.window)[::GROUP]

    def _deal(self, epoch: int) -> None:
        self.order = np.random.default_rng((self.seed, epoch)).permutation(len(self))
        self.epoch = epoch
