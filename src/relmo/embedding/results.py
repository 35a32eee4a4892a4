"""Assembly of the vectors of a batch, chunk by chunk of time: forward from the left, backward from the right."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from relmo.nn.locks import fork_safe_lock

STAGING_SIZE = 8 << 20  # numbers copied from a GPU at once
STAGING_LOCK = fork_safe_lock()  # guards the staging buffer


class Results:
    """One array per sentence, on the host.

    lengths      of the sentences, including `edge` boundaries on either side, which have no vectors; (R,)
    selected     the layers, 0 for the context-independent vectors of words
    num_layers   the number of selected layers; or 1, for their mean
    """

    def __init__(self, lengths: np.ndarray, edge: int, selected: list[int], num_layers: int, size: int):
        self.lengths, self.edge, self.selected, self.half = lengths.tolist(), edge, selected, size // 2
        self.is_mean = num_layers < len(selected)
        self.results = [np.empty((num_layers, n - 2 * edge, size), dtype=np.float32) for n in self.lengths]

    def put_words(self, vectors: Tensor, words: np.ndarray, starts: np.ndarray) -> None:
        """Write the vectors of words, once for each direction: the rows `words` of `vectors`, from each start on."""
        edge = self.edge
        spans = [slice(a + edge, a + n - edge) for a, n in zip(starts.tolist(), self.lengths, strict=True)]
        rows = vectors[torch.from_numpy(np.concatenate([words[span] for span in spans]))].numpy()
        start = 0
        for array in self.results:
            stop = start + array.shape[1]
            array[0, :, : self.half] = array[0, :, self.half :] = rows[start:stop]
            start = stop

    def put_chunk(self, step: int, steps: int, rows: int, layers: Sequence[Tensor]) -> None:
        """Write some steps of the first rows: layers (2, steps, rows, P), the backward direction from the end."""
        half, edge = self.half, self.edge
        outputs = [layers[k - 1].numpy() for k in self.selected if k > 0]
        offset = len(self.results[0]) - len(outputs)  # 1 after the vectors of words
        for row, length in enumerate(self.lengths[:rows]):
            low, high = max(step, edge), min(step + steps, length - edge)
            if low >= high:
                continue
            array, chunk = self.results[row], slice(low - step, high - step)
            left, right = slice(low - edge, high - edge), slice(length - edge - high, length - edge - low)
            for index, layer in enumerate(outputs, start=offset):
                if self.is_mean:
                    array[0, left, :half] += layer[0, chunk, row]
                    array[0, right, half:] += layer[1, chunk, row][::-1]
                else:
                    array[index, left, :half] = layer[0, chunk, row]
                    array[index, right, half:] = layer[1, chunk, row][::-1]

    def arrays(self) -> list[np.ndarray]:
        """Return the finished arrays; (num_layers, tokens, size) each."""
        if self.is_mean:
            for array in self.results:
                array /= len(self.selected)
        return self.results


class ResultsOnGPU:
    """`Results` on a GPU: one tensor for all sentences, copied to the host at the end."""

    def __init__(
        self, lengths: np.ndarray, edge: int, selected: list[int], num_layers: int, size: int, *, device: torch.device
    ):
        self.lengths, self.edge, self.selected, self.half = lengths, edge, selected, size // 2
        self.counts = lengths - 2 * edge
        self.starts = np.cumsum(self.counts) - self.counts  # (R,)
        self.is_mean = num_layers < len(selected)
        self.out = torch.zeros(num_layers, int(self.counts.sum()), size, device=device)

    def put_words(self, vectors: Tensor, words: np.ndarray, starts: np.ndarray) -> None:
        """Write the vectors of words as `Results.put_words`."""
        positions = np.repeat(starts + self.edge - self.starts, self.counts) + np.arange(self.out.shape[1])
        rows = vectors[torch.from_numpy(words[positions]).to(vectors.device)]
        self.out[0] = torch.cat([rows, rows], dim=1)

    def put_chunk(self, step: int, steps: int, rows: int, layers: Sequence[Tensor]) -> None:
        """Write some steps as `Results.put_chunk`."""
        t, lengths, starts = np.arange(step, step + steps)[:, None], self.lengths[:rows], self.starts[:rows]
        inside = (t >= self.edge) & (t < lengths - self.edge)  # (T, B)
        left, right = (starts + t - self.edge)[inside], (starts + lengths - 1 - t - self.edge)[inside]
        indices = torch.from_numpy(np.stack([np.flatnonzero(inside), left, right])).to(layers[0].device)
        outputs = [layers[k - 1].flatten(1, 2) for k in self.selected if k > 0]
        for index, layer in enumerate(outputs, start=len(self.out) - len(outputs)):
            for d in range(2):
                half = self.out[0 if self.is_mean else index][:, d * self.half : (d + 1) * self.half]
                half.index_add_(0, indices[1 + d], layer[d][indices[0]])

    def arrays(self) -> list[np.ndarray]:
        """Return the finished arrays as `Results.arrays`."""
        if self.is_mean:
            self.out /= len(self.selected)
        num_layers, _, size = self.out.shape
        max_tokens = STAGING_SIZE // (num_layers * size)
        ends, start, arrays = np.append(self.starts, self.out.shape[1]), 0, []
        while start < len(self.counts):
            stop = max(start + 1, int(np.searchsorted(ends, ends[start] + max_tokens, side="right")) - 1)
            low, high = int(ends[start]), int(ends[stop])
            part = self.out[:, low:high]
            bounds = [(a - low, b - low) for a, b in pairwise(ends[start : stop + 1].tolist())]
            if high - low <= max_tokens:
                with STAGING_LOCK:
                    arrays += _copies(copy_to_staging(part).numpy(), bounds)
            else:
                arrays += _copies(part.cpu().numpy(), bounds)
            start = stop
        return arrays


def _copies(host: np.ndarray, bounds: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    return [host[:, start:stop].copy() for start, stop in bounds]


@cache
def staging_buffer() -> Tensor:
    """Return pinned memory, shared by all threads; allocating it every time would cost more than the copy."""
    return torch.empty(STAGING_SIZE, pin_memory=True)


def copy_to_staging(part: Tensor) -> Tensor:
    """Copy a tensor of a GPU to the staging buffer; the caller holds STAGING_LOCK."""
    return staging_buffer()[: part.numel()].view(part.shape).copy_(part)
