"""Where the vectors of a batch of sentences are put together, chunk of time by chunk: forward from the left, backward
from the right, the layers asked for side by side or summed up.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from relmo.nn.locks import fork_safe_lock

STAGED = 8 << 20  # numbers that come from a GPU at once
STAGING = fork_safe_lock()  # held from when numbers are put into the one room for them until they have been taken out


class Results:
    """One array a sentence, on the host, written into where each piece belongs.

    lengths    of the sentences, with `edge` boundaries on either side, for which there are no vectors; (R,)
    chosen     the layers, 0 for the words' own vectors
    kept       as many layers as were chosen; or one, their mean
    """

    def __init__(self, lengths: np.ndarray, edge: int, chosen: list[int], kept: int, size: int):
        self.lengths, self.edge, self.chosen, self.half = lengths.tolist(), edge, chosen, size // 2
        self.summed = kept < len(chosen)
        self.results = [np.empty((kept, n - 2 * edge, size), dtype=np.float32) for n in self.lengths]

    def put_words(self, vectors: Tensor, words: np.ndarray, starts: np.ndarray) -> None:
        """The words' own vectors, once for each direction: rows of `vectors`, which `words` says from each start on."""
        edge = self.edge
        spans = [slice(a + edge, a + n - edge) for a, n in zip(starts.tolist(), self.lengths, strict=True)]
        found = vectors[torch.from_numpy(np.concatenate([words[span] for span in spans]))].numpy()
        start = 0
        for array in self.results:
            stop = start + array.shape[1]
            array[0, :, : self.half] = array[0, :, self.half :] = found[start:stop]
            start = stop

    def put_chunk(self, step: int, steps: int, rows: int, layers: Sequence[Tensor]) -> None:
        """Some steps of the first rows: layers (2, steps, rows, P), the backward direction's from the end."""
        half, edge = self.half, self.edge
        wanted = [layers[k - 1].numpy() for k in self.chosen if k > 0]
        first = len(self.results[0]) - len(wanted)  # the words' own vectors may stand before
        for row, length in enumerate(self.lengths[:rows]):
            low, high = max(step, edge), min(step + steps, length - edge)
            if low >= high:
                continue
            array, these = self.results[row], slice(low - step, high - step)
            ahead, back = slice(low - edge, high - edge), slice(length - edge - high, length - edge - low)
            for place, layer in enumerate(wanted, start=first):
                if self.summed:
                    array[0, ahead, :half] += layer[0, these, row]
                    array[0, back, half:] += layer[1, these, row][::-1]
                else:
                    array[place, ahead, :half] = layer[0, these, row]
                    array[place, back, half:] = layer[1, these, row][::-1]

    def arrays(self) -> list[np.ndarray]:
        """The finished results; (kept, tokens, size) each."""
        if self.summed:
            for array in self.results:
                array /= len(self.chosen)
        return self.results


class ResultsOnGPU:
    """The same for a GPU: one tensor for all sentences there, which comes to the host at the end."""

    def __init__(
        self, lengths: np.ndarray, edge: int, chosen: list[int], kept: int, size: int, *, device: torch.device
    ):
        self.lengths, self.edge, self.chosen, self.half = lengths, edge, chosen, size // 2
        self.counts = lengths - 2 * edge
        self.firsts = np.cumsum(self.counts) - self.counts  # (R,): where each sentence begins
        self.summed = kept < len(chosen)
        self.out = torch.zeros(kept, int(self.counts.sum()), size, device=device)

    def put_words(self, vectors: Tensor, words: np.ndarray, starts: np.ndarray) -> None:
        """As `Results.put_words`."""
        places = np.repeat(starts + self.edge - self.firsts, self.counts) + np.arange(self.out.shape[1])
        found = vectors[torch.from_numpy(words[places]).to(vectors.device)]
        self.out[0] = torch.cat([found, found], dim=1)

    def put_chunk(self, step: int, steps: int, rows: int, layers: Sequence[Tensor]) -> None:
        """As `Results.put_chunk`."""
        t, lengths, firsts = np.arange(step, step + steps)[:, None], self.lengths[:rows], self.firsts[:rows]
        inside = (t >= self.edge) & (t < lengths - self.edge)  # (T, B)
        ahead, back = (firsts + t - self.edge)[inside], (firsts + lengths - 1 - t - self.edge)[inside]
        places = torch.from_numpy(np.stack([np.flatnonzero(inside), ahead, back])).to(layers[0].device)
        wanted = [layers[k - 1].flatten(1, 2) for k in self.chosen if k > 0]
        for place, layer in enumerate(wanted, start=len(self.out) - len(wanted)):
            for d in range(2):
                half = self.out[0 if self.summed else place][:, d * self.half : (d + 1) * self.half]
                half.index_add_(0, places[1 + d], layer[d][places[0]])

    def arrays(self) -> list[np.ndarray]:
        """As `Results.arrays`."""
        if self.summed:
            self.out /= len(self.chosen)
        kept, _, size = self.out.shape
        room = STAGED // (kept * size)  # tokens
        ends, start, arrays = np.append(self.firsts, self.out.shape[1]), 0, []
        while start < len(self.counts):
            stop = max(start + 1, int(np.searchsorted(ends, ends[start] + room, side="right")) - 1)
            first, last = int(ends[start]), int(ends[stop])
            part = self.out[:, first:last]
            bounds = [(a - first, b - first) for a, b in pairwise(ends[start : stop + 1].tolist())]
            if last - first <= room:
                with STAGING:
                    arrays += _copies(staged(part).numpy(), bounds)
            else:
                arrays += _copies(part.cpu().numpy(), bounds)
            start = stop
        return arrays


def _copies(host: np.ndarray, bounds: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Stretches of (K, T, E), each in memory of its own."""
    return [host[:, start:stop].copy() for start, stop in bounds]


@cache
def staging() -> Tensor:
    """Memory that a GPU copies into at its full speed, the same for all threads; to take it anew every time would cost
    more than the copy."""
    return torch.empty(STAGED, pin_memory=True)


def staged(part: Tensor) -> Tensor:
    """A tensor of a GPU on the host, until the next one comes; for who holds STAGING."""
    return staging()[: part.numel()].view(part.shape).copy_(part)
