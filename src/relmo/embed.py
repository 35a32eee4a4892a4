"""The engine behind `embed`: sentences in, their vectors out, in bounded memory and in the order they came.

Choices:
- What a word gives by itself, its vector and the first LSTM layer's input gates, is computed once per distinct word and
  kept in a `WordCache`; a batch only looks it up.
- Sentences of a window of the input are sorted by length and batched; the results are put back in order. No step is
  spent on padding, but rows come in multiples of ROWS: a matrix product then gives a row the same bits however many
  rows there are, and so a sentence the same vectors whatever its batch mates.
- A batch runs in chunks of time. Forward LSTMs take a sentence's chunks from left to right, backward LSTMs from right
  to left, each going on from the state in which its chunk before ended, and each writing into the sentence's one output
  array. So a sentence of any length is exact, and takes little memory beside its result.
- The old tools' carried state is a row's state from one batch to the next, with batches in the order of the input.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.errors import SettingError
from relmo.models.bilm import BiLMNetwork
from relmo.nn.cells import State
from relmo.nn.elmo_lstm import ROWS
from relmo.text.characters import BOS, EOS, Spellings
from relmo.text.vocabulary import SentenceVocabulary

Layers = Literal["all", "top", "average"] | int
Carry = Literal["reset", "carry", "warmup"]
Tokens = Sequence[str]

CACHE_BYTES = 512 << 20  # what is kept of words
CPU_BYTES, GPU_BYTES = 8 << 20, 128 << 20  # one layer's gates in a chunk of time; small ones stay in a CPU's caches
CPU_ROWS, GPU_ROWS = 256, 1024  # sentences side by side, unless told otherwise; more were not faster on a CPU
ENCODE_BYTES = 16 << 20  # the convolutions of words that are encoded at once
WINDOW_BYTES, WINDOW_TOKENS = 64 << 20, 65536  # results that wait to be put back in order
TOKENS_PER_BATCH = 16384  # at most; fewer where this many results would not fit into a window
FLOAT = 4  # bytes


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """What is asked for: which layers, how states are used, how sentences are batched."""

    layers: Layers = "all"
    state: Carry = "reset"
    batch_size: int | None = None
    tokens_per_batch: int | None = None

    def check(self, layer_count: int) -> None:
        """Options that are unknown, impossible, or would do nothing are errors."""
        if self.layers not in ("all", "top", "average") and not (
            isinstance(self.layers, int) and 0 <= self.layers < layer_count
        ):
            raise SettingError(
                f"layers is {self.layers!r}; this model has 'all', 'top', 'average' or 0 (words) to {layer_count - 1}"
            )
        if self.state not in ("reset", "carry", "warmup"):
            raise SettingError(f"state is {self.state!r}; it can be 'reset', 'carry' or 'warmup'")
        for name, value in (("batch_size", self.batch_size), ("tokens_per_batch", self.tokens_per_batch)):
            if value is not None and value < 1:
                raise SettingError(f"{name} must be 1 or more, not {value}")
        if self.state != "reset" and self.batch_size is None:
            raise SettingError(
                f"state '{self.state}' needs a batch_size: how many sentences stand side by side, each row with its "
                "own state (the original tools took 1, AllenNLP 64)"
            )
        if self.state != "reset" and self.tokens_per_batch is not None:
            raise SettingError(f"tokens_per_batch cannot go with state '{self.state}', whose batches are of batch_size")

    def chosen(self, layer_count: int) -> list[int]:
        """The layers to look at."""
        if isinstance(self.layers, int):
            return [self.layers]
        return [layer_count - 1] if self.layers == "top" else list(range(layer_count))


@dataclass
class CutWords:
    """Words that had more bytes than the model has room for: how many, and one of them."""

    room: int
    count: int = 0
    example: str = ""

    def look(self, word: str, times: int) -> None:
        """Counts a word if it is cut."""
        if 4 * len(word) > self.room and len(word.encode("utf-8", "ignore")) > self.room:
            self.count += times
            self.example = self.example or word

    def message(self) -> str:
        """In words."""
        example = self.example if len(self.example) <= 80 else f"{self.example[:80]}…"
        words = "1 word was" if self.count == 1 else f"{self.count:,} words were"
        return f"{words} cut to the {self.room} bytes that the model reads of a word, for example {example!r}"


class WordCache:
    """What depends on a word alone, for the words used last: its vector and the first LSTM layer's input gates.

    Words are known by a key: the string where the model reads characters, the vocabulary's id where it reads words.
    The weights are looked at for change at every use, and all is forgotten if there was any.
    """

    def __init__(self, network: BiLMNetwork, max_characters: int, limit: int = CACHE_BYTES):
        self.network = network
        self.max_characters = max_characters
        self.first = network.lstm.stack[0]
        floats = self.first.weight_ih.shape[2] + 8 * self.first.hidden_size
        self._take(max(ROWS, limit // (FLOAT * floats)))

    def _take(self, capacity: int) -> None:
        like = self.first.bias
        self.capacity = capacity
        self.places: OrderedDict[Hashable, int] = OrderedDict()  # the least recently used first
        self.vectors = like.new_empty(capacity, self.first.weight_ih.shape[2])  # (S, P)
        self.gates = like.new_empty(2, capacity, 4 * self.first.hidden_size)  # (2, S, 4H)
        self.seen = self._weights()

    def _weights(self) -> list[tuple[int, int]]:
        """Changes whenever a weight is written to or replaced."""
        modules = (self.network.encoder, self.first)
        return [(weight.data_ptr(), weight._version) for module in modules for weight in module.parameters()]

    def find(self, keys: Sequence[Hashable]) -> list[int]:
        """The places of distinct words, encoding those that are not there."""
        if len(keys) > self.capacity or self.seen != self._weights():
            self._take(max(self.capacity, len(keys)))
        missing = []
        for key in keys:
            if key in self.places:
                self.places.move_to_end(key)
            else:
                missing.append(key)
        try:
            self._add(missing)
        except BaseException:
            self.places.clear()  # an interruption must not leave words whose numbers were never written
            raise
        return [self.places[key] for key in keys]

    def _add(self, keys: list[Hashable]) -> None:
        free = list(range(len(self.places), min(self.capacity, len(self.places) + len(keys))))
        free += [self.places.popitem(last=False)[1] for _ in range(len(keys) - len(free))]
        self.places.update(zip(keys, free, strict=True))
        for part, ids in self._spelled(keys):
            places = torch.tensor([free[i] for i in part], device=self.vectors.device)
            vectors = self.network.encoder(ids.to(self.vectors.device))  # (N, P), N a multiple of ROWS
            gates = self.first.input_gates(vectors.expand(2, *vectors.shape))
            self.vectors[places] = vectors[: len(part)]
            self.gates[:, places] = gates[:, : len(part)]

    def _spelled(self, keys: list[Hashable]) -> Iterator[tuple[list[int], Tensor]]:
        """Groups of words of about the same length: which they are, and the ids that the encoder reads, filled up to a
        multiple of ROWS."""
        cnn = getattr(self.network.encoder, "cnn", None)
        if cnn is None:
            order, columns, width = list(range(len(keys))), np.ones(len(keys)), self.vectors.shape[1]
        else:
            spellings = Spellings([str(key) for key in keys], self.max_characters)
            order = np.argsort(spellings.lengths, kind="stable").tolist()
            columns, width = spellings.lengths + 2 + cnn.widest, cnn.output_size
        start = 0
        while start < len(order):
            room = ENCODE_BYTES // (FLOAT * width)
            stop = start + ROWS
            while stop < len(order) and (stop + ROWS - start) * columns[order[min(stop + ROWS, len(order)) - 1]] < room:
                stop += ROWS
            part = order[start:stop]
            filled = np.array(part + part[:1] * (-len(part) % ROWS))
            if cnn is None:
                ids = np.array(keys)[filled]
            else:
                ids = spellings.ids(filled, margin=cnn.widest)
            yield part, torch.from_numpy(ids)
            start = stop


class Batch(NamedTuple):
    """Sentences side by side, the longest first.

    order       which of the given sentences each row is; (R,)
    lengths     with the boundaries, then zeros up to a multiple of ROWS; (R',)
    starts      where each row begins in `words`; (R',)
    results     where each row begins in the results, which have no boundaries; (R',)
    keys        the distinct words
    words       which of `keys`, sentence after sentence with their boundaries
    """

    order: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    results: np.ndarray
    keys: list[Hashable]
    words: np.ndarray


class Embedder:
    """Sentences to vectors with one network."""

    def __init__(
        self,
        network: BiLMNetwork,
        *,
        max_characters: int,
        vocabulary: SentenceVocabulary | None = None,
        cache_bytes: int = CACHE_BYTES,
        chunk_bytes: int | None = None,
    ):
        self.network = network
        self.max_characters = max_characters
        self.vocabulary = vocabulary if not hasattr(network.encoder, "cnn") else None
        self.cache = WordCache(network, max_characters, cache_bytes)
        on_cpu = self.cache.vectors.device.type == "cpu"
        chunk_bytes = chunk_bytes or (CPU_BYTES if on_cpu else GPU_BYTES)
        self.chunk_rows = max(1, chunk_bytes // (FLOAT * 8 * self.cache.first.hidden_size))
        self.most_rows = max(ROWS, min(CPU_ROWS if on_cpu else GPU_ROWS, self.chunk_rows // ROWS * ROWS))
        self.states: State | None = None

    def reset_states(self) -> None:
        """The next sentences with carried state start from zero."""
        self.states = None

    def stream(
        self, sentences: Iterable[Tokens], options: EmbedOptions, cut: CutWords | None = None
    ) -> Iterator[np.ndarray]:
        """The vectors of each sentence, in order; reads ahead by a window of sentences. `cut` takes count of words that
        were cut."""
        options.check(self.network.layer_count)
        cut = cut or self.cut_words()
        run = self._reset if options.state == "reset" else self._carry
        return run(sentences, options, cut)

    def cut_words(self) -> CutWords:
        """A fresh count; a model that reads words by number cuts none."""
        return CutWords(self.max_characters - 2 if self.vocabulary is None else 1 << 60)

    def _reset(self, sentences: Iterable[Tokens], options: EmbedOptions, cut: CutWords) -> Iterator[np.ndarray]:
        kept = 1 if options.layers != "all" else self.network.layer_count
        ahead = max(1, min(WINDOW_TOKENS, WINDOW_BYTES // (FLOAT * kept * self.network.size)))
        budget = options.tokens_per_batch or min(TOKENS_PER_BATCH, ahead)
        most = options.batch_size or self.most_rows
        for window in windows(sentences, max(budget, ahead)):
            results: list[np.ndarray | None] = [None] * len(window)
            for places in groups([len(sentence) + 2 for sentence in window], budget, most):
                vectors, _ = self.run([window[i] for i in places], options, cut, None)
                for place, array in zip(places, vectors, strict=True):
                    results[place] = array
            results.reverse()
            while results:
                yield results.pop()  # type: ignore[misc]

    def _carry(self, sentences: Iterable[Tokens], options: EmbedOptions, cut: CutWords) -> Iterator[np.ndarray]:
        size = options.batch_size or 1
        warm: State | None = None
        for number, batch in enumerate(windows(sentences, size, by_tokens=False)):
            if options.state == "warmup":
                if number == 0:
                    _, warm = self.run(batch, options, CutWords(cut.room), self.network.initial_state(0))
                vectors, warm = self.run(batch, options, cut, warm)
            else:
                before = self.network.initial_state(0) if self.states is None else self.states
                vectors, self.states = self.run(batch, options, cut, before)
            yield from vectors

    @torch.no_grad()
    def run(
        self, sentences: Sequence[Tokens], options: EmbedOptions, cut: CutWords, state: State | None
    ) -> tuple[list[np.ndarray], State | None]:
        """One batch. With a `state`, whose rows are those of the batch, sentences start from it (from zero where it has
        no such row) and the state with their ends in it is returned."""
        training = self.network.training  # a module that is training may share its layers
        self.network.eval()
        try:
            return self._run(sentences, options, cut, state)
        finally:
            self.network.train(training)

    def _run(
        self, sentences: Sequence[Tokens], options: EmbedOptions, cut: CutWords, state: State | None
    ) -> tuple[list[np.ndarray], State | None]:
        batch = self.lay_out(sentences, cut)
        rows, real = len(batch.lengths), len(batch.order)
        running = self.network.initial_state(rows)
        order = torch.from_numpy(batch.order).to(running[0].device)
        if state is not None:
            state = tuple(grow(tensor, real) for tensor in state)
            for tensor, before in zip(running, state, strict=True):
                tensor[:real] = before[order]
        chosen = options.chosen(self.network.layer_count)
        kept = len(chosen) if options.layers == "all" else 1
        out = torch.empty(kept, int(batch.lengths.sum()) - 2 * real, self.network.size)
        skip = chosen == [0] and state is None
        step, longest = 0, int(batch.lengths[0])
        places = np.empty(len(batch.keys), dtype=np.int64)
        while step < longest:
            going = int(np.count_nonzero(batch.lengths > step))
            wide = -(-going // ROWS) * ROWS
            steps = min(longest - step, max(1, self.chunk_rows // wide))
            self._chunk(batch, slice(step, step + steps), wide, places, running, chosen, out, skip)
            step += steps
        if state is not None:
            for tensor, after in zip(state, running, strict=True):
                tensor[order] = after[:real]
        return split(out, batch, options.layers == "all"), state

    def lay_out(self, sentences: Sequence[Tokens], cut: CutWords) -> Batch:
        """Sentences as a batch; words are looked at for being cut."""
        sizes = np.array([len(sentence) + 2 for sentence in sentences])
        order = np.argsort(-sizes, kind="stable")
        index: dict[str, int] = {}
        words = np.fromiter(
            (index.setdefault(word, len(index)) for i in order.tolist() for word in (BOS, *sentences[i], EOS)),
            dtype=np.int64,
            count=int(sizes.sum()),
        )
        for word, times in zip(index, np.bincount(words, minlength=len(index)).tolist(), strict=True):
            if not isinstance(word, str):
                raise SettingError(f"a token is {word!r}, of type {type(word).__name__}; tokens are strings")
            cut.look(word, times)
        keys: list[Hashable] = list(index)
        if self.vocabulary is not None:
            keys = list(dict.fromkeys(ids := self.vocabulary.ids(index).tolist()))
            number = {key: i for i, key in enumerate(keys)}
            words = np.array([number[i] for i in ids])[words]
        lengths = np.concatenate([sizes[order], np.zeros(-len(sizes) % ROWS, dtype=np.int64)])
        starts = np.cumsum(lengths) - lengths
        results = starts - 2 * np.minimum(np.arange(len(lengths)), len(sizes))
        return Batch(order, lengths, starts, results, keys, words)

    def _chunk(
        self,
        batch: Batch,
        part: slice,
        wide: int,
        places: np.ndarray,
        state: State,
        chosen: list[int],
        out: Tensor,
        skip: bool,
    ) -> None:
        """Some steps of a batch's first rows, both directions: `state` goes on, results go to `out`."""
        t = np.arange(part.start, part.stop)[:, None]
        lengths, starts, results = (array[:wide] for array in (batch.lengths, batch.starts, batch.results))
        inside = t < lengths  # (T, B)
        read = np.stack([starts + t, starts + lengths - 1 - t])  # (2, T, B): which word
        words = batch.words[np.where(inside, read, 0)]
        used = np.zeros(len(batch.keys), dtype=bool)
        used[words] = True
        distinct = np.flatnonzero(used)
        places[distinct] = self.cache.find([batch.keys[i] for i in distinct.tolist()])
        device = state[0].device
        slots = torch.from_numpy(places[words]).to(device).flatten(1)  # (2, TB)
        layers: list[Tensor] = []
        if not skip:
            first = state[0].new_empty(2, *words.shape[1:], self.cache.gates.shape[2])
            for d in range(2):
                torch.index_select(self.cache.gates[d], 0, slots[d], out=first[d].flatten(0, 1))
            before = tuple(tensor[:wide] for tensor in state)
            run = self.network.lstm(first, before, inside.sum(axis=1).tolist(), first_gates=first)
            for tensor, after in zip(before, run.state, strict=True):
                tensor.copy_(after)
            layers = list(run.layers)
        inner = (t >= 1) & (t < lengths - 1)  # not the boundaries; the same steps read both ways
        which = torch.from_numpy(np.flatnonzero(inner))
        targets = np.stack([results + t - 1, results + lengths - 2 - t])[:, inner]  # (2, n): where it belongs
        self._collect(layers, slots, which, torch.from_numpy(targets), chosen, out)

    def _collect(
        self, layers: list[Tensor], slots: Tensor, which: Tensor, targets: Tensor, chosen: list[int], out: Tensor
    ) -> None:
        """Puts the chosen layers of a chunk where they belong; their mean, where `out` has one layer for several."""
        size = out.shape[2] // 2
        here = which.to(slots.device)
        for d in range(2):
            halves = [
                self.cache.vectors[slots[d, here]] if k == 0 else layers[k - 1][d].flatten(0, 1)[here] for k in chosen
            ]
            if len(out) < len(halves):
                halves = [torch.stack(halves).mean(dim=0)]
            for array, half in zip(out, halves, strict=True):
                array[:, d * size : (d + 1) * size].index_copy_(0, targets[d], half.cpu())


def grow(tensor: Tensor, rows: int) -> Tensor:
    """A copy with zeros for rows that it does not have."""
    more = tensor.new_zeros(max(0, rows - len(tensor)), *tensor.shape[1:])
    return torch.cat([tensor, more])


def split(out: Tensor, batch: Batch, layered: bool) -> list[np.ndarray]:
    """The results of a batch as one array a sentence, in the order given; each owns its memory, so that keeping one
    does not keep its batch mates."""
    found: list[np.ndarray] = [np.empty(0)] * len(batch.order)
    results = out.numpy()
    for row, place in enumerate(batch.order.tolist()):
        start = batch.results[row]
        array = results[:, start : start + batch.lengths[row] - 2]
        array = array if layered else array[0]
        found[place] = array if len(batch.order) == 1 else array.copy()
    return found


def pool(vectors: np.ndarray, pooling: str) -> np.ndarray:
    """The mean or the maximum over tokens: (…, tokens, dim) -> (…, dim); zeros where there are no tokens."""
    if pooling not in ("mean", "max"):
        raise SettingError(f"pooling is {pooling!r}; it can be 'mean' or 'max'")
    if vectors.shape[-2] == 0:
        return np.zeros((*vectors.shape[:-2], vectors.shape[-1]), dtype=vectors.dtype)
    return vectors.mean(axis=-2) if pooling == "mean" else vectors.max(axis=-2)


def windows(sentences: Iterable[Tokens], size: int, *, by_tokens: bool = True) -> Iterator[list[Tokens]]:
    """Consecutive sentences, in lists of about `size` tokens, or of `size` sentences."""
    window: list[Tokens] = []
    held = 0
    for sentence in sentences:
        window.append(sentence)
        held += len(sentence) + 2 if by_tokens else 1
        if held >= size:
            yield window
            window, held = [], 0
    if window:
        yield window


def groups(lengths: Sequence[int], budget: int, most: int | None) -> Iterator[list[int]]:
    """Sentences in groups of about the same length, longest first: at most `budget` tokens (or one sentence) and `most`
    sentences in each."""
    group: list[int] = []
    held = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and (held + lengths[i] > budget or len(group) == most):
            yield group
            group, held = [], 0
        group.append(i)
        held += lengths[i]
    if group:
        yield group
