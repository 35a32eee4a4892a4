"""Examples to tensors: contiguous lanes for truncated back-propagation, padded and length-bucketed batches for sentences.

Both are a pure function of (epoch, index): the position in the data is those two numbers and nothing else, which is what makes a
run resumable to the bit.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from relmo.errors import CorpusError
from relmo.models.language_model import Window


class Lanes:
    """A stream of ids read as `batch` lanes side by side, `unroll` steps at a time.

    Lane b holds the b-th of `batch` equal pieces of the stream, so window i + 1 goes on where window i ended and the state can
    be carried. The last window of an epoch may be shorter; fewer than `batch` symbols at the stream's end are left out.
    """

    def __init__(self, stream: np.ndarray, *, batch: int, unroll: int, device: torch.device):
        if len(stream) - 1 < batch * unroll:
            raise CorpusError(
                f"the training part has {len(stream) - 1} symbols, fewer than one window of {batch} lanes x {unroll} steps; "
                "give more text, or lower --batch or --unroll"
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
        ids = torch.from_numpy(piece).to(self.device, non_blocking=True)
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

    Sequences of one length are dealt anew every epoch, but the cuts between batches depend on the lengths alone, so every epoch
    has the same number of batches. A sequence longer than the budget makes a batch of its own.
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
