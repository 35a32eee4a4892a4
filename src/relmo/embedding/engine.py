"""The engine behind `embed`: sentences in, their vectors out, in bounded memory and in the order they came.

Choices:
- What a word gives by itself, its vector and the first LSTM layer's input gates, is computed once per distinct word of
  a window of the input, and kept in a `WordCache`; the LSTMs only look it up.
- A sentence that starts from zero needs no steps on its boundaries: the state after the first one is a constant of the
  model, and what the last one gives is not asked for.
- Sentences of a window are sorted by length and batched; the results are put back in order. No step is spent on
  padding, and a sentence's bits do not depend on its batch mates.
- A batch runs in chunks of time. Forward LSTMs take a sentence's chunks from left to right, backward LSTMs from right
  to left, each going on from the state in which its chunk before ended, and each writing into the sentence's own
  array. So a sentence of any length is exact, and takes little memory beside its result.
- The old tools' carried state is a row's state from one batch to the next, with batches in the order of the input, and
  with steps on the boundaries.
- Threads take turns: a lock is held while a window, or a batch with carried state, is computed, and never while the
  caller has the results. So what the cache has found for a window stays until the window is done.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.embedding.results import Results, ResultsOnGPU
from relmo.embedding.word_cache import VECTORS, WordCache
from relmo.errors import SettingError
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.cells import State
from relmo.nn.elmo_lstm import ROWS, Precision
from relmo.nn.kernels import infer_cpu
from relmo.nn.locks import fork_safe_lock
from relmo.settings.embedding import EmbedOptions
from relmo.text.characters import BOS, EOS
from relmo.text.dictionaries import Dictionaries
from relmo.text.vocabulary import SentenceVocabulary

Tokens = Sequence[str]

CPU_ROWS, GPU_ROWS = 256, 1024  # sentences side by side, unless told otherwise; more were not faster on a CPU
CHUNK_BYTES = 8 << 20  # what the LSTMs put out in a chunk of time; by torch's operations, one layer's gates:
CPU_GATES_BYTES, GPU_GATES_BYTES = 8 << 20, 2 << 30  # small ones stay in a CPU's caches; on a GPU a 16th of it at most
CPU_WINDOW_BYTES, GPU_WINDOW_BYTES = 24 << 20, 256 << 20  # results that wait to be put back in order; but for
WINDOW_TOKENS = (12_288, 65_536)  # at least and at most
TOKENS_PER_BATCH = 16_384
FLOAT = 4  # bytes


@dataclass
class CutWords:
    """Words that had more bytes (or characters) than the model has room for: how many, and one of them."""

    room: int
    count: int = 0
    example: str = ""
    unit: Literal["bytes", "characters"] = "bytes"

    def look(self, word: str, times: int) -> None:
        """Counts a word if it is cut."""
        if 4 * len(word) <= self.room:
            return
        if (len(word) if self.unit == "characters" else len(word.encode("utf-8", "ignore"))) > self.room:
            self.count += times
            self.example = self.example or word

    def message(self) -> str:
        """In words."""
        example = self.example if len(self.example) <= 80 else f"{self.example[:80]}…"
        words = "1 word was" if self.count == 1 else f"{self.count:,} words were"
        return f"{words} cut to the {self.room} {self.unit} that the model reads of a word, for example {example!r}"


class SentenceWindow(NamedTuple):
    """Consecutive sentences as the LSTMs read them, with or without their boundaries, each by its words' slots.

    words      sentence after sentence; (N,)
    starts     where each begins in `words`; (S,)
    lengths    (S,)
    edge       how many boundaries a sentence has on either side, 0 or 1
    precision  of the LSTMs' products
    """

    words: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    edge: int
    precision: Precision


class Embedder:
    """Sentences to vectors with one network, from any thread. The products of the LSTMs are done in `precision`."""

    def __init__(
        self,
        network: BiLMNetwork,
        *,
        max_characters: int,
        vocabulary: SentenceVocabulary | None = None,
        dictionaries: Dictionaries | None = None,
        precision: Precision = "float32",
        cached_vectors: int = VECTORS,
        cached_gates: int | None = None,
        chunk_bytes: int | None = None,
    ):
        self.network = network
        self.max_characters = max_characters
        self.vocabulary = vocabulary if not hasattr(network.encoder, "cnn") else None
        self.precision = precision
        with torch.inference_mode(False):
            self.cache = WordCache(
                network, max_characters, dictionaries=dictionaries, vectors=cached_vectors, gates=cached_gates
            )
        on_gpu, compiled = self.cache.gates.is_cuda, self.cache.compiled
        room = chunk_bytes or (CHUNK_BYTES if compiled else CPU_GATES_BYTES)
        if on_gpu and chunk_bytes is None:
            room = min(GPU_GATES_BYTES, torch.cuda.get_device_properties(self.cache.gates.device).total_memory // 16)
        self.window_bytes = GPU_WINDOW_BYTES if on_gpu else CPU_WINDOW_BYTES
        gates, outputs = 2 * self.cache.gates.shape[2], network.size * len(network.lstm.layers)  # of a token
        self.few_tokens = max(1, room // (FLOAT * max(gates, outputs)))
        self.chunk_tokens = max(1, room // (FLOAT * outputs)) if compiled else self.few_tokens
        self.most_rows = max(ROWS, min(GPU_ROWS if on_gpu else CPU_ROWS, self.chunk_tokens))
        self.lock = fork_safe_lock()
        """Held by the one thread that uses the cache and the states."""
        self.states: State | None = None
        self._first: tuple[int, Precision, State, Tensor] | None = None

    def reset_states(self) -> None:
        """The next sentences with carried state start from zero."""
        with self.lock:
            self.states = None

    def forget_words(self) -> None:
        """Gives the memory back that is taken by words."""
        with self.lock, self._inference():
            self.cache.forget()

    def stream(
        self,
        sentences: Iterable[Tokens],
        options: EmbedOptions,
        cut: CutWords | None = None,
        precision: Precision | None = None,
    ) -> Iterator[np.ndarray]:
        """The vectors of each sentence, in order; reads ahead by a window of sentences. Options that make no sense are
        an error at once. `cut` takes count of words that were cut. The precision is that of now, unless another is
        given, whatever it is changed to meanwhile."""
        options.check(self.network.layer_count)
        cut = cut or self.cut_words()
        run = self._reset if options.state == "reset" else self._carry
        return run(sentences, options, cut, precision or self.precision)

    def cut_words(self) -> CutWords:
        """A fresh count; a model that reads words by number cuts none."""
        room = self.max_characters - 2 if self.vocabulary is None else 1 << 60
        return CutWords(room, unit="bytes" if self.cache.dictionaries is None else "characters")

    def _reset(
        self, sentences: Iterable[Tokens], options: EmbedOptions, cut: CutWords, precision: Precision
    ) -> Iterator[np.ndarray]:
        kept = self.network.layer_count if options.layers == "all" else 1
        least, most = WINDOW_TOKENS
        ahead = max(least, min(most, self.window_bytes // (FLOAT * kept * self.network.size)))
        budget = options.tokens_per_batch or min(TOKENS_PER_BATCH, ahead)
        rows = options.batch_size or self.most_rows
        for given in windows(sentences, max(budget, ahead)):
            results: list[np.ndarray | None] = [None] * len(given)
            with self.lock, self._inference():
                first, _ = self._after_boundary(precision)
                window = self._lay_out(given, cut, precision, edge=0)
                for batch in groups(window.lengths, budget, rows):
                    state = tuple(tensor.expand(len(batch), *tensor.shape[1:]) for tensor in first)
                    for place, array in zip(batch.tolist(), self._run(window, batch, options, state), strict=True):
                        results[place] = array
            results.reverse()
            while results:
                yield results.pop()  # type: ignore[misc]

    def _carry(
        self, sentences: Iterable[Tokens], options: EmbedOptions, cut: CutWords, precision: Precision
    ) -> Iterator[np.ndarray]:
        size = options.batch_size or 1
        warm: State | None = None
        for number, batch in enumerate(windows(sentences, size, by_tokens=False)):
            with self.lock, self._inference():
                if number == 0 and options.state == "warmup":
                    _, warm = self._run_on(self._lay_out(batch, CutWords(cut.room), precision, edge=1), options, None)
                window = self._lay_out(batch, cut, precision, edge=1)
                if options.state == "warmup":
                    vectors, warm = self._run_on(window, options, warm)
                else:
                    vectors, self.states = self._run_on(window, options, self.states)
            yield from vectors

    def _run_on(
        self, window: SentenceWindow, options: EmbedOptions, state: State | None
    ) -> tuple[list[np.ndarray], State]:
        """One batch in the order it is given, each row from its own state, from zero where there is no such row. -> the
        vectors, and a new state with the rows' ends in it: the one given stays as it is."""
        count = len(window.lengths)
        state = self.network.initial_state(0) if state is None else state
        state = tuple(_grow(tensor, count) for tensor in state)
        (order,) = groups(window.lengths, 1 << 60, count)
        rows = torch.from_numpy(order).to(state[0].device)
        running = tuple(tensor[rows] for tensor in state)
        results: list[np.ndarray] = [np.empty(0)] * count
        for place, array in zip(order.tolist(), self._run(window, order, options, running), strict=True):
            results[place] = array
        for tensor, after in zip(state, running, strict=True):
            tensor[rows] = after
        return results, state

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """No gradients, no precision but what was asked for, in this thread; as it was afterwards. It is not torch's
        inference mode: nobody outside of that could write into the cache any more. There is no dropout to switch off,
        as neither the encoder nor `infer` has any."""
        kind = self.cache.vectors.device.type
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(kind, enabled=False):
            yield

    def _lay_out(
        self, sentences: Sequence[Tokens], cut: CutWords, precision: Precision, *, edge: int
    ) -> SentenceWindow:
        """Sentences as a window, with the words they need in the cache; words are looked at for being cut."""
        ends = ((BOS,), (EOS,)) if edge else ((), ())
        lengths = np.array([len(sentence) + 2 * edge for sentence in sentences], dtype=np.int64)
        index: dict[str, int] = {}
        words = np.fromiter(
            (index.setdefault(word, len(index)) for s in sentences for part in (ends[0], s, ends[1]) for word in part),
            dtype=np.int64,
            count=int(lengths.sum()),
        )
        for word, times in zip(index, np.bincount(words, minlength=len(index)).tolist(), strict=True):
            if not isinstance(word, str):
                raise SettingError(f"a token is {word!r}, of type {type(word).__name__}; tokens are strings")
            cut.look(word, times)
        slots = self._slots(list(index))
        return SentenceWindow(slots[words], np.cumsum(lengths) - lengths, lengths, edge, precision)

    def _slots(self, words: list[str]) -> np.ndarray:
        """Where the cache has these distinct words."""
        if self.vocabulary is None:
            if self.cache.dictionaries is not None or max(map(len, words), default=0) <= self.max_characters:
                return self.cache.find(words)
            index: dict[str, int] = {}
            places = [index.setdefault(self._readable_part(word), len(index)) for word in words]
            return self.cache.find(list(index))[places]
        keys, which = np.unique(self.vocabulary.ids(words), return_inverse=True)
        return self.cache.find(keys.tolist())[which]

    def _readable_part(self, word: str) -> str:
        """Return the beginning of a word that the network reads, so that the cache does not hold on to long words."""
        if len(word) <= self.max_characters:
            return word
        # 4 bytes more than the network reads, as the last character may be cut
        return word.encode("utf-8", "ignore")[: self.max_characters + 4].decode("utf-8", "ignore")

    def first_state(self) -> State:
        """The state of a sentence that starts from zero, after its first boundary: a constant of the model, a row."""
        with self.lock, self._inference():
            return self._after_boundary(self.precision)[0]

    def first_outputs(self, precision: Precision) -> Tensor:
        """What the top layer gives at that boundary, with which a sentence's first word is predicted: forwards at <S>,
        backwards at </S>; (2, P)."""
        with self.lock, self._inference():
            return self._after_boundary(precision)[1]

    def _after_boundary(self, precision: Precision) -> tuple[State, Tensor]:
        epoch = self.cache.refresh()
        if self._first is None or self._first[:2] != (epoch, precision):
            ends = self._slots([BOS, EOS])
            self.cache.find_gates([ends[:1], ends[1:]], precision)
            places = np.repeat(self.cache.place_of[[0, 1], ends], ROWS).reshape(2, 1, ROWS)
            words = torch.from_numpy(places).to(self.cache.gates.device)
            run = self.network.lstm.infer(self.cache.gates, words, precision=precision)
            state = tuple(tensor[:1] for tensor in run.state)
            self._first = (epoch, precision, state, run.layers[-1][:, 0, 0].clone())
        return self._first[2], self._first[3]

    def _run(self, window: SentenceWindow, order: np.ndarray, options: EmbedOptions, state: State) -> list[np.ndarray]:
        """One batch, these sentences of a window, longest first, from this state; their vectors in that order. Where
        the window has boundaries, for states to be carried, the state becomes that of the sentences' ends."""
        chosen = options.chosen(self.network.layer_count)
        starts, lengths = window.starts[order], window.lengths[order]
        kept = len(chosen) if options.layers == "all" else 1
        asked, device = (lengths, window.edge, chosen, kept, self.network.size), self.cache.gates.device
        results = ResultsOnGPU(*asked, device=device) if device.type == "cuda" else Results(*asked)
        if chosen[0] == 0:
            results.put_words(self.cache.vectors, window.words, starts)
        if chosen != [0] or window.edge:
            self._run_layers(window, starts, lengths, results, state)
        arrays = results.arrays()
        return arrays if options.layers == "all" else [array[0] for array in arrays]

    def _run_layers(
        self,
        window: SentenceWindow,
        starts: np.ndarray,
        lengths: np.ndarray,
        results: "Results | ResultsOnGPU",
        state: State,
    ) -> None:
        """The LSTMs over a batch, in chunks of time; what they give goes into the results."""
        step, longest = 0, int(lengths.max(initial=0))
        while step < longest:
            rows = int(np.count_nonzero(lengths > step))
            slots, inside = self._chunk(window, step, starts[:rows], lengths[:rows])
            places = np.stack([of[slots[d]] for d, of in enumerate(self.cache.place_of)])
            words = torch.from_numpy(places).to(self.cache.gates.device)
            before = tuple(tensor[:rows] for tensor in state)
            sizes = inside.sum(axis=1).tolist()
            run = self.network.lstm.infer(self.cache.gates, words, before, sizes, precision=window.precision)
            results.put_chunk(step, len(sizes), rows, run.layers)
            if window.edge:
                for tensor, after in zip(state, run.state, strict=True):
                    tensor[:rows] = after
            else:
                state = run.state
            step += len(sizes)

    def _chunk(
        self, window: SentenceWindow, step: int, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What both directions read from a step on, as far as room for outputs and for gates goes, with the gates of
        all these words in the cache. -> slots (2, T, B), and where there are any (T, B)."""
        rows = len(lengths) if self.cache.compiled else -(-len(lengths) // ROWS) * ROWS
        few = rows <= infer_cpu.FEW  # then upper layers' gates, too, are made for all steps of a chunk
        steps = min(int(lengths[0]) - step, max(1, (self.few_tokens if few else self.chunk_tokens) // rows))
        t = np.arange(step, step + steps)[:, None]
        inside = t < lengths  # (T, B)
        read = np.stack([starts + t, starts + lengths - 1 - t])
        slots = window.words[np.where(inside, read, starts)]
        while max(map(len, distinct := [np.unique(side) for side in slots])) > self.cache.gates.shape[1] and steps > 1:
            steps //= 2
            slots, inside = slots[:, :steps], inside[:steps]
        self.cache.find_gates(distinct, window.precision)
        return slots, inside


def _grow(tensor: Tensor, rows: int) -> Tensor:
    """A copy with zeros for rows that it does not have."""
    more = tensor.new_zeros(max(0, rows - len(tensor)), *tensor.shape[1:])
    return torch.cat([tensor, more])


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


def groups(lengths: np.ndarray, budget: int, most: int) -> Iterator[np.ndarray]:
    """Sentences in groups of about the same length, longest first: at most `budget` tokens (or one sentence) and `most`
    sentences in each."""
    order = np.argsort(-lengths, kind="stable")
    totals = np.concatenate([[0], np.cumsum(lengths[order])])
    start = 0
    while start < len(order):
        stop = int(np.searchsorted(totals, totals[start] + budget, side="right")) - 1
        stop = min(max(stop, start + 1), start + most)
        yield order[start:stop]
        start = stop
