"""Examples to tensors: contiguous lanes for truncated back-propagation, batches of about one length for sentences.

All are a pure function of (epoch, index): the position in the data is those two numbers and nothing else, which is what
makes a run resumable to the bit. They are made on the host; `on_device` takes them to a GPU.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from torch import Tensor

from relmo.errors import CorpusError
from relmo.networks.bilm import BiWindow
from relmo.networks.language_model import Window
from relmo.networks.skipgram import Groups
from relmo.settings.skipgram import SkipgramModelSettings
from relmo.text.characters import BOS, EOS, Spellings
from relmo.text.encode import CHUNK
from relmo.text.vocabulary import SentenceVocabulary

GOLDEN = (5**0.5 - 1) / 2  # its multiples, taken round a ring, keep away from each other
CUTS = (0.3, 0.55, 0.75, 0.9, 0.98)  # of words sorted by length, where they are cut into groups with few columns each
FIXED_CUTS = (0.5, 0.875)  # the same where shapes are to take few values: in between the groups need another width
WIDTHS, FEWEST = (16, 24, 32), 64  # and then, of a group's columns and of all words


def on_device(batch: Any, device: torch.device) -> Any:
    """A batch (tensors, or tuples and lists of them) with its tensors on the device; nothing waits for a GPU."""
    if isinstance(batch, Tensor):
        if batch.device.type == "cpu" and device.type == "cuda":
            batch = batch.contiguous().pin_memory()  # from there it is copied while the host goes on
        return batch.to(device, non_blocking=True)
    if isinstance(batch, list):
        return [on_device(part, device) for part in batch]
    if isinstance(batch, tuple):
        parts = [on_device(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch


class Lanes:
    """A stream of ids read as `batch` lanes side by side, `unroll` steps at a time.

    Lane b holds the b-th of `batch` equal pieces of the stream, so window i + 1 goes on where window i ended and the
    state can be carried. The last window of an epoch may be shorter; fewer than `batch` symbols at the stream's end are
    left out. With `size` processes there are `size * batch` lanes, of which the one of number `rank` reads `batch`.
    """

    def __init__(self, stream: np.ndarray, *, batch: int, unroll: int, rank: int = 0, size: int = 1):
        lanes = size * batch
        if len(stream) - 1 < lanes * unroll:
            raise CorpusError(
                f"the training part has {len(stream) - 1} symbols, fewer than one window of {lanes} lanes x {unroll} "
                "steps; give more text, or lower --batch or --unroll"
            )
        self.length = (len(stream) - 1) // lanes
        step = stream.strides[0]
        everyone = as_strided(stream, (lanes, self.length + 1), (self.length * step, step), writeable=False)
        self.lanes = everyone[rank * batch : (rank + 1) * batch]
        self.unroll = unroll

    def __len__(self) -> int:
        return -(-self.length // self.unroll)

    def get(self, epoch: int, index: int) -> Window:
        """Window `index`; every epoch reads the same."""
        start = index * self.unroll
        piece = self.lanes[:, start : min(start + self.unroll, self.length) + 1].astype(np.int64)  # (B, T + 1)
        ids = torch.from_numpy(piece)
        return Window(ids[:, :-1], ids[:, 1:])


class BiText:
    """Sentences (see `relmo.text.sentences`) as a bidirectional model reads them.

    Forwards a sentence is read <S> w1 … wn, each predicting the next up to </S>; backwards </S> wn … w1, down to <S>.
    Both make n + 1 steps, so a sentence takes the same places in both streams and only its words change places. With
    `spellings` words are read by their characters, `margin` wide at most; without, by their ids.

    With `fixed_shapes` (the default on a GPU, which can then replay what it did for such a window before) the number of
    distinct words and of their characters are rounded up: repeated words, which nothing refers to, come first.
    Windows are made in one thread at a time.
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
        self.cuts = FIXED_CUTS if self.fixed_shapes else CUTS
        self.steps = len(words) - 1
        chunks = range(0, len(words), CHUNK)
        self.bounds = np.concatenate([start + np.flatnonzero(words[start : start + CHUNK] < 0) for start in chunks])
        begin, end = vocabulary.index[BOS], vocabulary.index[EOS]
        self.first = np.array([begin, end]).reshape(2, 1, 1)
        self.last = np.array([end, begin]).reshape(2, 1, 1)
        self.vocab_size, self.unknown = len(vocabulary), vocabulary.unknown
        self.scratch = np.empty(len(vocabulary) if spellings is None else len(spellings), dtype=np.int32)

    def window(self, places: np.ndarray) -> BiWindow:
        """`read`, on the device."""
        return on_device(self.read(places), self.device)

    def read(self, places: np.ndarray, order: "Order | None" = None) -> BiWindow:
        """What is read at `places` (B, T + 1), the last of which is predicted only, where the sentences stand in this
        order or in their own; the text's end is its beginning."""
        places = places % self.steps
        starts = self.bounds if order is None else order.starts
        turn = np.searchsorted(starts, places, side="right") - 1  # which sentence it is in this order
        sentence = turn if order is None else order.sentences[turn]
        inside = places - starts[turn]
        both = np.stack([self.bounds[sentence] + inside, self.bounds[sentence + 1] - inside])
        text = self.words[both].transpose(0, 2, 1).astype(np.int64)  # (2, T + 1, B)
        ids = np.where(text < self.vocab_size, text, self.unknown)
        inputs = (ids if self.spellings is None else text)[:, :-1]
        inputs = np.where(inputs < 0, self.first, inputs)
        targets = np.where(ids[:, 1:] < 0, self.last, ids[:, 1:])
        words, inverse = self._distinct(inputs)
        if self.fixed_shapes:
            more = few_values(len(words)) - len(words)
            words, inverse = np.pad(words, (more, 0), mode="edge"), inverse + more
        if self.spellings is None:
            return BiWindow(*map(torch.from_numpy, (words, inverse, targets)))
        widths = WIDTHS if self.fixed_shapes else ()
        groups = np.split(words, sorted({int(len(words) * cut) for cut in self.cuts} - {0}))
        spelled = [self.spellings.ids(group, margin=self.margin, widths=widths) for group in groups]
        return BiWindow([torch.from_numpy(ids) for ids in spelled], *map(torch.from_numpy, (inverse, targets)))

    def _distinct(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct ones of these words, the shorter first, and where each of the words is among them.

        Each word leaves its position at its own place of `scratch`; of equal words one position remains there. That is
        several times faster than sorting."""
        flat = inputs.reshape(-1)
        positions = np.arange(len(flat), dtype=np.int32)
        self.scratch[flat] = positions
        words = flat[self.scratch[flat] == positions]
        if self.spellings is not None:
            words = words[np.argsort(self.spellings.lengths[words], kind="stable")]
        self.scratch[words] = positions[: len(words)]
        return words, self.scratch[inputs].astype(np.int64)

    def shuffled(self, generator: np.random.Generator, stretch: int = 1) -> "Order":
        """The sentences in an order drawn at random, `stretch` of them together as they stand in the text."""
        count = len(self.bounds) - 1
        early = int(generator.integers(stretch)) if stretch > 1 else 0  # by how many the first stretch is shorter
        stretches = generator.permutation(-(-(count + early) // stretch)).reshape(-1, 1)
        sentences = (stretches * stretch - early + np.arange(stretch)).ravel()
        sentences = sentences[(sentences >= 0) & (sentences < count)]
        lengths = np.diff(self.bounds)[sentences]
        return Order(sentences, np.cumsum(lengths) - lengths)


def few_values(count: int) -> int:
    """The next of 1, 1.25, 1.5 and 1.75 times a power of two, 64 at least."""
    quarter = max(FEWEST, 1 << (count - 1).bit_length()) // 8
    return max(FEWEST, -(-count // quarter) * quarter)


class Order(NamedTuple):
    """Sentences in another order than their own: which come one after the other, and where each begins."""

    sentences: np.ndarray
    starts: np.ndarray


class BiLanes:
    """A `BiText` read as lanes side by side, `unroll` steps at a time, as `Lanes` does.

    Of the `size * batch` lanes of all processes, the one of number `rank` reads `batch`. With a `seed` the sentences
    stand in a new order every epoch, `stretch` of them together. Without, they stay in their own, and each epoch begins
    at another place of the text, read as a ring, so that it is cut into lanes and windows elsewhere.
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
        size: int = 1,
    ):
        if text.steps < size * batch * unroll:
            raise CorpusError(
                f"the training part has {text.steps} words and sentence ends, fewer than one window of {size * batch} "
                f"lanes x {unroll} steps; give more text, or lower --batch or --unroll"
            )
        self.text = text
        self.length = text.steps // (size * batch)
        self.begins = (rank * batch + np.arange(batch)).reshape(-1, 1) * self.length  # (B, 1)
        self.unroll, self.seed, self.stretch = unroll, seed, stretch
        self._deal(epoch=0)

    def __len__(self) -> int:
        return -(-self.length // self.unroll)

    def get(self, epoch: int, index: int) -> BiWindow:
        """Window `index` of this epoch."""
        if epoch != self.epoch:
            self._deal(epoch)
        start = self.begins + index * self.unroll
        steps = min(self.unroll, self.length - index * self.unroll)
        return self.text.read(self.offset + start + np.arange(steps + 1), self.order)

    def _deal(self, epoch: int) -> None:
        self.epoch, self.offset = epoch, 0
        self.order: Order | None = None
        if self.seed is None:
            self.offset = int(epoch * GOLDEN * self.text.steps)
        else:
            self.order = self.text.shuffled(np.random.default_rng((self.seed, epoch)), self.stretch)


class LengthBuckets:
    """Sequences batched by length under a budget of tokens, padding counted, and at most so many where that is said;
    batches come in a new order every epoch.

    Sequences of one length are dealt anew every epoch, but the cuts between batches depend on the lengths alone, so
    every epoch has the same number of batches. A sequence longer than the budget makes a batch of its own.
    """

    def __init__(self, lengths: Sequence[int], *, tokens_per_batch: int, seed: int, most: int | None = None):
        self.lengths = np.asarray(lengths)
        self.seed = seed
        self.cuts = [0]
        for position, length in enumerate(np.sort(self.lengths)):
            count = position - self.cuts[-1]
            if count and ((count + 1) * length > tokens_per_batch or count == most):
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
    ):
        self.stream, self.end, self.batch, self.seed = stream, end, batch, seed
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
        arrays = [torch.from_numpy(array.copy()) for array in (centres, contexts, pairs, negatives)]
        return Groups(arrays[0], arrays[1], arrays[2], arrays[3], predictions=int(pairs.sum()))

    def _around(self, values: np.ndarray, groups: int, filler: int) -> np.ndarray:
        """What stands in each group and up to `window` places before and after it; (G, C)."""
        fill = (self.window, self.window + groups * GROUP - len(values))
        padded = np.pad(values, fill, constant_values=filler)
        return sliding_window_view(padded, GROUP + 2 * self.window)[::GROUP]

    def _deal(self, epoch: int) -> None:
        self.order = np.random.default_rng((self.seed, epoch)).permutation(len(self))
        self.epoch = epoch
