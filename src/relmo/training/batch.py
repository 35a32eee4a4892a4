"""Batches for training: lanes for truncated back-propagation, sentences bucketed by length, skip-gram groups.

Every batch is a pure function of (epoch, index), which makes a run resumable bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from torch import Tensor

from relmo.errors import CorpusError
from relmo.networks.bilm import BiWindow
from relmo.networks.language_model import Window
from relmo.networks.skipgram import Groups
from relmo.settings.lm import SkipgramModelSettings
from relmo.text.characters import BOS, EOS, Spellings
from relmo.text.encode import CHUNK
from relmo.text.vocabulary import SentenceVocabulary

GOLDEN_RATIO = (5**0.5 - 1) / 2  # multiples of it modulo 1 are spread evenly
# Words sorted by length are split at these quantiles, so that each group has little padding.
GROUP_QUANTILES = (0.3, 0.55, 0.75, 0.9, 0.98)
# With fixed shapes: few groups, a few widths per group, and a minimum number of words, so that CUDA graphs are reused.
FIXED_GROUP_QUANTILES = (0.5, 0.875)
FIXED_WIDTHS, MIN_FIXED_WORDS = (16, 24, 32), 64
# Lengths of varied windows (Merity et al. 2018): a share is half as long, and all vary with this standard deviation.
# They are rounded to multiples of it and at most twice it away, so that CUDA graphs are recorded for few lengths.
HALF_SHARE, DEVIATION, MAX_DEVIATIONS = 0.05, 5, 2
GROUP_SIZE, NUM_NEGATIVES = 32, 64  # skip-gram: words per group and negatives shared by them; affect speed and noise


def map_tensors(batch: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply a function to all tensors of a batch: a tensor, or nested tuples and lists of tensors and other values."""
    if isinstance(batch, Tensor):
        return function(batch)
    if not isinstance(batch, list | tuple):
        return batch
    parts = [map_tensors(part, function) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def move_to_device(batch: Any, device: torch.device) -> Any:
    """Copy the tensors of a batch to the device without waiting for a GPU."""

    def move(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu" and device.type == "cuda":
            tensor = tensor.contiguous().pin_memory()  # only pinned memory is copied asynchronously
        return tensor.to(device, non_blocking=True)

    return map_tensors(batch, move)


class _LaneWindows:
    """A text as `world_size * batch` parallel lanes of equal length, `batch` of them per rank, in windows of `unroll`.

    Window i + 1 continues window i, so that the state can be carried. The last window may be shorter."""

    def __init__(self, num_steps: int, unit: str, *, batch: int, unroll: int, rank: int, world_size: int):
        lanes = world_size * batch
        if num_steps < lanes * unroll:
            raise CorpusError(
                f"The training text has {num_steps} {unit}, fewer than one window of {lanes} lanes x {unroll} steps. "
                "Add text, or lower --batch or --unroll."
            )
        self.length, self.unroll = num_steps // lanes, unroll
        self.starts = (rank * batch + np.arange(batch)).reshape(-1, 1) * self.length  # (B, 1)

    def __len__(self) -> int:
        return -(-self.length // self.unroll)


class Lanes(_LaneWindows):
    """A stream of ids as lanes: lane b is the b-th of equal pieces of the stream.

    With a `seed`, the lengths of the windows vary around `unroll`, drawn once; each epoch begins at another one."""

    def __init__(
        self,
        stream: np.ndarray,
        *,
        batch: int,
        unroll: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
    ):
        super().__init__(len(stream) - 1, "symbols", batch=batch, unroll=unroll, rank=rank, world_size=world_size)
        stride = stream.strides[0]
        shape, strides = (batch, self.length + 1), (self.length * stride, stride)
        self.lanes = as_strided(stream[self.starts[0, 0] :], shape, strides, writeable=False)
        self.varies, lengths = seed is not None, np.full(super().__len__(), unroll)
        if self.varies:
            generator, count = np.random.default_rng(seed), 2 * len(lengths) + 100  # more than enough
            base = np.where(generator.random(count) < HALF_SHARE, unroll // 2, unroll)
            steps = generator.normal(size=count).round().clip(-MAX_DEVIATIONS, MAX_DEVIATIONS).astype(np.int64)
            lengths = np.maximum(base + DEVIATION * steps, 1)
        bounds = np.cumsum([0, *lengths])
        self.bounds = np.append(bounds[bounds < self.length], self.length)  # of the windows of epoch 0

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def get(self, epoch: int, index: int) -> Window:
        """Return window `index`; all epochs have the same windows, unless their lengths vary."""
        start, steps = self._span(epoch, index)
        ids = torch.from_numpy(self.lanes[:, start : start + steps + 1].astype(np.int64))  # (B, T + 1)
        return Window(ids[:, :-1], ids[:, 1:])

    def lr_factor(self, epoch: int, index: int) -> float:
        """Return the factor of the learning rate for a window: its length relative to `unroll`, if lengths vary."""
        return self._span(epoch, index)[1] / self.unroll if self.varies else 1.0

    def _span(self, epoch: int, index: int) -> tuple[int, int]:
        """Return the start and the length of a window: those of epoch 0, from another window on in each epoch."""
        shift = int(epoch * GOLDEN_RATIO % 1 * len(self)) if self.varies else 0
        begin, end = self.bounds[(shift + index) % len(self) + np.arange(2)]
        return int((begin - self.bounds[shift]) % self.length), int(end - begin)


class Order(NamedTuple):
    """A permutation of the sentences, and the start position of each in the permuted text."""

    sentences: np.ndarray
    starts: np.ndarray


class BiText:
    """Sentences (see `relmo.text.encode`) as a bidirectional model reads them.

    The forward direction reads <S> w1 … wn and predicts the next token up to </S>; the backward direction reads
    </S> wn … w1 and predicts down to <S>. Both take n + 1 steps, so a sentence has the same positions in both streams.
    With `spellings`, words are read by their characters, at least `margin` columns wide; without, by their ids.

    With `fixed_shapes` (the default on a GPU, where CUDA graphs are replayed by shape) the numbers of distinct words
    and characters are rounded up with repeated words, which nothing refers to. Not safe for concurrent calls.
    """

    def __init__(
        self,
        words: np.ndarray,
        vocabulary: SentenceVocabulary,
        *,
        spellings: Spellings | None,
        margin: int = 0,
        device: torch.device,
        fixed_shapes: bool | None = None,
    ):
        self.words, self.spellings, self.margin, self.device = words, spellings, margin, device
        self.fixed_shapes = device.type == "cuda" if fixed_shapes is None else fixed_shapes
        self.steps = len(words) - 1
        chunks = range(0, len(words), CHUNK)
        self.bounds = np.concatenate([start + np.flatnonzero(words[start : start + CHUNK] < 0) for start in chunks])
        begin, end = vocabulary.index[BOS], vocabulary.index[EOS]
        self.initial_ids = np.array([begin, end]).reshape(2, 1, 1)
        self.final_ids = np.array([end, begin]).reshape(2, 1, 1)
        self.vocab_size, self.unknown = len(vocabulary), vocabulary.unknown
        self.scratch = np.empty(len(vocabulary) if spellings is None else len(spellings), dtype=np.int32)

    def window(self, positions: np.ndarray) -> BiWindow:
        """Return `read(positions)` on the device."""
        return move_to_device(self.read(positions), self.device)

    def read(self, positions: np.ndarray, order: Order | None = None) -> BiWindow:
        """Return the window at `positions` (B, T + 1) of the sentences in `order`; the last one is only predicted."""
        positions = positions % self.steps
        starts = self.bounds if order is None else order.starts
        rank = np.searchsorted(starts, positions, side="right") - 1  # of the sentence in this order
        sentence = rank if order is None else order.sentences[rank]
        step = positions - starts[rank]
        both = np.stack([self.bounds[sentence] + step, self.bounds[sentence + 1] - step])
        text = self.words[both].transpose(0, 2, 1).astype(np.int64)  # (2, T + 1, B)
        ids = np.where(text < self.vocab_size, text, self.unknown)
        inputs = (ids if self.spellings is None else text)[:, :-1]
        inputs = np.where(inputs < 0, self.initial_ids, inputs)
        targets = np.where(ids[:, 1:] < 0, self.final_ids, ids[:, 1:])
        # The distinct words, shortest first, and the index of every input among them. Each word writes its position to
        # its entry of `scratch`; one position per word survives. This is several times faster than sorting.
        flat = inputs.reshape(-1)
        places = np.arange(len(flat), dtype=np.int32)
        self.scratch[flat] = places
        words = flat[self.scratch[flat] == places]
        if self.spellings is not None:
            words = words[np.argsort(self.spellings.lengths[words], kind="stable")]
        self.scratch[words] = places[: len(words)]
        inverse = self.scratch[inputs].astype(np.int64)
        if self.fixed_shapes:
            num_padding = round_up_size(len(words)) - len(words)
            words, inverse = np.pad(words, (num_padding, 0), mode="edge"), inverse + num_padding
        if self.spellings is None:
            return BiWindow(*map(torch.from_numpy, (words, inverse, targets)))
        widths, quantiles = (FIXED_WIDTHS, FIXED_GROUP_QUANTILES) if self.fixed_shapes else ((), GROUP_QUANTILES)
        groups = np.split(words, sorted({int(len(words) * quantile) for quantile in quantiles} - {0}))
        characters = [self.spellings.ids(group, margin=self.margin, widths=widths) for group in groups]
        return BiWindow([torch.from_numpy(ids) for ids in characters], *map(torch.from_numpy, (inverse, targets)))

    def shuffle(self, generator: np.random.Generator, stretch: int = 1) -> Order:
        """Draw an order of the sentences in which runs of `stretch` consecutive sentences stay together."""
        count = len(self.bounds) - 1
        shift = int(generator.integers(stretch)) if stretch > 1 else 0  # the initial run is shorter by this
        runs = generator.permutation(-(-(count + shift) // stretch)).reshape(-1, 1)
        sentences = (runs * stretch - shift + np.arange(stretch)).ravel()
        sentences = sentences[(sentences >= 0) & (sentences < count)]
        lengths = np.diff(self.bounds)[sentences]
        return Order(sentences, np.cumsum(lengths) - lengths)


def round_up_size(count: int) -> int:
    """Round up to 1, 1.25, 1.5 or 1.75 times a power of two, at least MIN_FIXED_WORDS."""
    quarter = max(MIN_FIXED_WORDS, 1 << (count - 1).bit_length()) // 8
    return max(MIN_FIXED_WORDS, -(-count // quarter) * quarter)


class BiLanes(_LaneWindows):
    """A `BiText` as lanes.

    With a `seed` the sentences are shuffled every epoch, runs of `stretch` sentences together. Without, the text is
    read in order as a ring, and each epoch starts elsewhere, so that lanes and windows are cut at other positions.
    """

    def __init__(
        self,
        text: BiText,
        *,
        batch: int,
        unroll: int,
        seed: int | None = None,
        stretch: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ):
        unit = "words and sentence ends"
        super().__init__(text.steps, unit, batch=batch, unroll=unroll, rank=rank, world_size=world_size)
        self.text, self.seed, self.stretch = text, seed, stretch
        self.epoch, self.offset = -1, 0
        self.order: Order | None = None

    def get(self, epoch: int, index: int) -> BiWindow:
        """Return window `index` of this epoch."""
        if self.seed is None:
            self.offset = int(epoch * GOLDEN_RATIO * self.text.steps)
        elif epoch != self.epoch:
            self.order = self.text.shuffle(np.random.default_rng((self.seed, epoch)), self.stretch)
        self.epoch = epoch
        start = self.starts + index * self.unroll
        steps = min(self.unroll, self.length - index * self.unroll)
        return self.text.read(self.offset + start + np.arange(steps + 1), self.order)


class LengthBuckets:
    """Sequences batched by length, at most `tokens_per_batch` tokens (padding included) and `max_size` sequences each.

    Sequences of equal length are shuffled every epoch, and so are the batches. The bounds of the batches depend on the
    lengths alone, so all epochs have the same number of batches. A sequence longer than the budget is its own batch.
    `collate` makes a batch of the indices of its sequences; by default the batch is these indices.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        tokens_per_batch: int,
        seed: int,
        max_size: int | None = None,
        collate: Callable[[np.ndarray], Any] = np.asarray,
    ):
        self.lengths, self.seed, self.collate, self.bounds = np.asarray(lengths), seed, collate, [0]
        for position, length in enumerate(np.sort(self.lengths)):
            count = position - self.bounds[-1]
            if count and ((count + 1) * length > tokens_per_batch or count == max_size):
                self.bounds.append(position)
        self.bounds.append(len(self.lengths))
        self.epoch = -1

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def get(self, epoch: int, index: int) -> Any:
        """Return batch `index` of this epoch."""
        if epoch != self.epoch:
            generator = np.random.default_rng((self.seed, epoch))
            permutation = generator.permutation(len(self.lengths))
            self.by_length = permutation[np.argsort(self.lengths[permutation], kind="stable")]
            self.order, self.epoch = generator.permutation(len(self)), epoch
        bucket = self.order[index]
        return self.collate(self.by_length[self.bounds[bucket] : self.bounds[bucket + 1]])


class Contexts:
    """A stream of ids read for skip-gram, `batch` symbols at a time, shuffled every epoch (Mikolov et al. 2013).

    Frequent words are subsampled: an occurrence of w is used with probability min(1, sqrt(t / f(w))), where f(w) is the
    relative frequency of w and t is `subsample`. Each word predicts those up to r words away, r drawn from 1 to
    `window`, within its text and its batch. Symbols with a count of 0, such as line ends, are skipped.
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
    ):
        self.stream, self.end, self.batch, self.seed = stream, end, batch, seed
        self.window = settings.window
        frequency = np.maximum(counts, 1) / counts.sum()
        self.keep_probability = np.where(counts > 0, np.sqrt(settings.subsample / frequency), 0.0)  # (V,)
        noise = np.cumsum(counts**0.75)
        self.noise = noise / noise[-1]  # (V,)
        column, row = np.arange(GROUP_SIZE + 2 * self.window), np.arange(GROUP_SIZE)[:, None]
        self.distance = np.abs(column - self.window - row)  # (S, C)
        self.epoch = -1

    def __len__(self) -> int:
        return -(-len(self.stream) // self.batch)

    def get(self, epoch: int, index: int) -> Groups:
        """Return batch `index` of this epoch; its random numbers are drawn from (seed, epoch, index)."""
        if epoch != self.epoch:
            self.order, self.epoch = np.random.default_rng((self.seed, epoch)).permutation(len(self)), epoch
        generator = np.random.default_rng((self.seed, epoch, index))
        start = int(self.order[index]) * self.batch
        ids = self.stream[start : start + self.batch].astype(np.int64)
        mask = generator.random(len(ids)) < self.keep_probability[ids]
        words, texts = ids[mask], np.cumsum(ids == self.end)[mask]  # texts: the number of each word's text
        groups = max(1, -(-len(words) // GROUP_SIZE))
        contexts, context_texts = self._split(words, groups, 0), self._split(texts, groups, -1)  # (G, C)
        centre = slice(self.window, self.window + GROUP_SIZE)
        centres, centre_texts = contexts[:, centre], context_texts[:, centre, None]  # (G, S), (G, S, 1)
        reach = generator.integers(1, self.window + 1, size=centre_texts.shape) * (centre_texts >= 0)
        pairs = (self.distance > 0) & (self.distance <= reach) & (centre_texts == context_texts[:, None])  # (G, S, C)
        negatives = np.searchsorted(self.noise, generator.random((groups, NUM_NEGATIVES)), side="right")  # (G, K)
        arrays = [torch.from_numpy(array.copy()) for array in (centres, contexts, pairs, negatives)]
        return Groups(arrays[0], arrays[1], arrays[2], arrays[3], predictions=int(pairs.sum()))

    def _split(self, symbols: np.ndarray, groups: int, filler: int) -> np.ndarray:
        """Split into groups with `window` symbols on both sides, padded with `filler`, which is in no pair; (G, C)."""
        padding = (self.window, self.window + groups * GROUP_SIZE - len(symbols))
        padded = np.pad(symbols, padding, constant_values=filler)
        return sliding_window_view(padded, GROUP_SIZE + 2 * self.window)[::GROUP_SIZE]
