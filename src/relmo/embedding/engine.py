"""Engine of `embed`: vectors of sentences, in bounded memory and in input order.

Choices:
- A word's vector and the first LSTM layer's input gates depend on the word alone. They are computed once per distinct
  word of a window of the input and cached in a `WordCache`; the LSTMs only look them up.
- A sentence that starts from zero needs no steps on its boundaries: the state after the first one is a constant of the
  model, and the output at the last one is not needed.
- Sentences of a window are sorted by length and batched; results are returned in order. No step is spent on padding,
  and a sentence's bits do not depend on the other sentences of its batch.
- A batch runs in chunks of time. Forward LSTMs process the chunks from left to right, backward LSTMs from right to
  left, each from the final state of its previous chunk, and write into the sentence's array. So a sentence of any
  length is exact, and takes little memory besides its result.
- Carried state, as in the original tools, is a row's state from one batch to the next, with batches in input order and
  with steps on the boundaries.
- Threads take turns: a lock is held while a window, or a batch with carried state, is computed, and never while the
  caller has the results. So cache entries of a window stay until the window is done.
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
from relmo.settings.options import EmbedOptions
from relmo.text.characters import BOS, EOS
from relmo.text.dictionaries import Dictionaries
from relmo.text.vocabulary import SentenceVocabulary

Tokens = Sequence[str]

CPU_ROWS, GPU_ROWS = 256, 1024  # default sentences per batch; more were not faster on a CPU
CHUNK_BYTES = 8 << 20  # outputs of the LSTMs in a chunk of time in compiled code; in torch, the gates of a layer:
CPU_GATES_BYTES, GPU_GATES_BYTES = 8 << 20, 2 << 30  # small ones fit a CPU's caches; at most a 16th of a GPU's memory
CPU_WINDOW_BYTES, GPU_WINDOW_BYTES = 24 << 20, 256 << 20  # results of a window, within these numbers of tokens:
WINDOW_TOKENS = (12_288, 65_536)  # minimum and maximum
TOKENS_PER_BATCH = 16_384
FLOAT = 4  # bytes


@dataclass
class CutWords:
    """Count of words with more bytes (or characters) than the model reads, and an example."""

    room: int
    count: int = 0
    example: str = ""
    unit: Literal["bytes", "characters"] = "bytes"

    def add(self, word: str, times: int) -> None:
        """Count a word if it is cut."""
        if 4 * len(word) <= self.room:
            return
        if (len(word) if self.unit == "characters" else len(word.encode("utf-8", "ignore"))) > self.room:
            self.count += times
            self.example = self.example or word

    def message(self) -> str:
        """Return a message for the user."""
        example = self.example if len(self.example) <= 80 else f"{self.example[:80]}…"
        words = "1 word was" if self.count == 1 else f"{self.count:,} words were"
        return f"{words} cut to the {self.room} {self.unit} that the model reads of a word, for example {example!r}"


class SentenceWindow(NamedTuple):
    """Consecutive sentences as the LSTMs read them, by the cache slots of their words.

    words      slots of all sentences; (N,)
    starts     start of each sentence in `words`; (S,)
    lengths    (S,)
    edge       number of boundaries on either side of a sentence, 0 or 1
    precision  precision of the LSTMs' products
    """

    words: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    edge: int
    precision: Precision


class Embedder:
    """Vectors of sentences by one network, from any thread, with products of the LSTMs in `precision`."""

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
        max_bytes = chunk_bytes or (CHUNK_BYTES if compiled else CPU_GATES_BYTES)
        if on_gpu and chunk_bytes is None:
            memory = torch.cuda.get_device_properties(self.cache.gates.device).total_memory
            max_bytes = min(GPU_GATES_BYTES, memory // 16)
        self.window_bytes = GPU_WINDOW_BYTES if on_gpu else CPU_WINDOW_BYTES
        gates, outputs = 2 * self.cache.gates.shape[2], network.size * len(network.lstm.layers)  # per token
        self.eager_tokens = max(1, max_bytes // (FLOAT * max(gates, outputs)))
        self.chunk_tokens = max(1, max_bytes // (FLOAT * outputs)) if compiled else self.eager_tokens
        self.max_rows = max(ROWS, min(GPU_ROWS if on_gpu else CPU_ROWS, self.chunk_tokens))
        self.lock = fork_safe_lock()
        """Guards the cache and the states."""
        self.states: State | None = None
        self._boundary: tuple[int, Precision, State, Tensor] | None = None

    def reset_states(self) -> None:
        """Start the next sentences with carried state from zero."""
        with self.lock:
            self.states = None

    def forget_words(self) -> None:
        """Release the memory of cached words."""
        with self.lock, self._inference():
            self.cache.clear()

    def stream(
        self,
        sentences: Iterable[Tokens],
        options: EmbedOptions,
        cut: CutWords | None = None,
        precision: Precision | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield the vectors of each sentence in order, reading ahead by a window of sentences.

        Invalid options are an error at once. `cut` counts truncated words. `precision` is by default the current one.
        """
        options.check_for(self.network.layer_count)
        cut = cut or self.cut_words()
        run = self._reset if options.state == "reset" else self._carry
        return run(sentences, options, cut, precision or self.precision)

    def cut_words(self) -> CutWords:
        """Return a new counter of truncated words; a model that reads words by id truncates none."""
        room = self.max_characters - 2 if self.vocabulary is None else 1 << 60
        return CutWords(room, unit="bytes" if self.cache.dictionaries is None else "characters")

    def _reset(
        self, sentences: Iterable[Tokens], options: EmbedOptions, cut: CutWords, precision: Precision
    ) -> Iterator[np.ndarray]:
        num_layers = self.network.layer_count if options.layers == "all" else 1
        min_tokens, max_tokens = WINDOW_TOKENS
        window_tokens = self.window_bytes // (FLOAT * num_layers * self.network.size)
        window_tokens = max(min_tokens, min(max_tokens, window_tokens))
        budget = options.tokens_per_batch or min(TOKENS_PER_BATCH, window_tokens)
        rows = options.batch_size or self.max_rows
        for chunk in windows(sentences, max(budget, window_tokens)):
            results: list[np.ndarray | None] = [None] * len(chunk)
            with self.lock, self._inference():
                initial, _ = self._after_boundary(precision)
                window = self._make_window(chunk, cut, precision, edge=0)
                for batch in groups(window.lengths, budget, rows):
                    state = tuple(tensor.expand(len(batch), *tensor.shape[1:]) for tensor in initial)
                    for index, array in zip(batch.tolist(), self._run(window, batch, options, state), strict=True):
                        results[index] = array
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
                    window = self._make_window(batch, CutWords(cut.room), precision, edge=1)
                    _, warm = self._run_carried(window, options, None)
                window = self._make_window(batch, cut, precision, edge=1)
                if options.state == "warmup":
                    vectors, warm = self._run_carried(window, options, warm)
                else:
                    vectors, self.states = self._run_carried(window, options, self.states)
            yield from vectors

    def _run_carried(
        self, window: SentenceWindow, options: EmbedOptions, state: State | None
    ) -> tuple[list[np.ndarray], State]:
        """Run one batch, each row from its row of the state, or from zero without one; return vectors and new state."""
        count = len(window.lengths)
        state = self.network.initial_state(0) if state is None else state
        # A copy, with zeros for additional rows.
        state = tuple(torch.cat([t, t.new_zeros(max(0, count - len(t)), *t.shape[1:])]) for t in state)
        (order,) = groups(window.lengths, 1 << 60, count)
        rows = torch.from_numpy(order).to(state[0].device)
        running = tuple(tensor[rows] for tensor in state)
        results: list[np.ndarray] = [np.empty(0)] * count
        for index, array in zip(order.tolist(), self._run(window, order, options, running), strict=True):
            results[index] = array
        for tensor, after in zip(state, running, strict=True):
            tensor[rows] = after
        return results, state

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Disable gradients and autocast in this thread.

        torch's inference mode is not used: code outside of it could not write into the cache any more. There is no
        dropout to disable, as neither the encoder nor `infer` has any.
        """
        kind = self.cache.vectors.device.type
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(kind, enabled=False):
            yield

    def _make_window(
        self, sentences: Sequence[Tokens], cut: CutWords, precision: Precision, *, edge: int
    ) -> SentenceWindow:
        """Return a window of sentences, with their words in the cache, and count truncated words."""
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
                raise SettingError(f"Tokens must be strings, not {word!r} of type {type(word).__name__}.")
            cut.add(word, times)
        slots = self._slots(list(index))
        return SentenceWindow(slots[words], np.cumsum(lengths) - lengths, lengths, edge, precision)

    def _slots(self, words: list[str]) -> np.ndarray:
        if self.vocabulary is None:
            if self.cache.dictionaries is not None or max(map(len, words), default=0) <= self.max_characters:
                return self.cache.find(words)
            index: dict[str, int] = {}
            indices = [index.setdefault(self._readable_part(word), len(index)) for word in words]
            return self.cache.find(list(index))[indices]
        keys, inverse = np.unique(self.vocabulary.ids(words), return_inverse=True)
        return self.cache.find(keys.tolist())[inverse]

    def _readable_part(self, word: str) -> str:
        """Return the beginning of a word that the network reads, so that the cache does not hold on to long words."""
        if len(word) <= self.max_characters:
            return word
        # 4 bytes more than the network reads, as the last character may be cut
        return word.encode("utf-8", "ignore")[: self.max_characters + 4].decode("utf-8", "ignore")

    def first_state(self) -> State:
        """Return the state after the first boundary of a sentence that starts from zero, one row."""
        with self.lock, self._inference():
            return self._after_boundary(self.precision)[0]

    def first_outputs(self, precision: Precision) -> Tensor:
        """Return the top layer at that boundary, forwards at <S>, backwards at </S>; (2, P)."""
        with self.lock, self._inference():
            return self._after_boundary(precision)[1]

    def _after_boundary(self, precision: Precision) -> tuple[State, Tensor]:
        epoch = self.cache.refresh()
        if self._boundary is None or self._boundary[:2] != (epoch, precision):
            ends = self._slots([BOS, EOS])
            self.cache.find_gates([ends[:1], ends[1:]], precision)
            rows = np.repeat(self.cache.gate_rows[[0, 1], ends], ROWS).reshape(2, 1, ROWS)
            words = torch.from_numpy(rows).to(self.cache.gates.device)
            run = self.network.lstm.infer(self.cache.gates, words, precision=precision)
            state = tuple(tensor[:1] for tensor in run.state)
            self._boundary = (epoch, precision, state, run.layers[-1][:, 0, 0].clone())
        return self._boundary[2], self._boundary[3]

    def _run(self, window: SentenceWindow, order: np.ndarray, options: EmbedOptions, state: State) -> list[np.ndarray]:
        """Run one batch of sentences of a window, longest first; return their vectors in that order.

        If the window has boundaries, the state is overwritten by that at the sentences' ends, to be carried.
        """
        selected = options.select_layers(self.network.layer_count)
        starts, lengths = window.starts[order], window.lengths[order]
        num_layers = len(selected) if options.layers == "all" else 1
        arguments, device = (lengths, window.edge, selected, num_layers, self.network.size), self.cache.gates.device
        results = ResultsOnGPU(*arguments, device=device) if device.type == "cuda" else Results(*arguments)
        if selected[0] == 0:
            results.put_words(self.cache.vectors, window.words, starts)
        if selected != [0] or window.edge:
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
        step, max_length = 0, int(lengths.max(initial=0))
        while step < max_length:
            rows = int(np.count_nonzero(lengths > step))
            slots, mask = self._read_chunk(window, step, starts[:rows], lengths[:rows])
            gate_rows = np.stack([rows_by_slot[slots[d]] for d, rows_by_slot in enumerate(self.cache.gate_rows)])
            words = torch.from_numpy(gate_rows).to(self.cache.gates.device)
            before = tuple(tensor[:rows] for tensor in state)
            sizes = mask.sum(axis=1).tolist()
            run = self.network.lstm.infer(self.cache.gates, words, before, sizes, precision=window.precision)
            results.put_chunk(step, len(sizes), rows, run.layers)
            if window.edge:
                for tensor, after in zip(state, run.state, strict=True):
                    tensor[:rows] = after
            else:
                state = run.state
            step += len(sizes)

    def _read_chunk(
        self, window: SentenceWindow, step: int, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the slots (2, T, B) that both directions read from a step on, and their mask (T, B).

        The chunk is as long as the memory for outputs and gates permits; the gates of its words are then in the cache.
        """
        rows = len(lengths) if self.cache.compiled else -(-len(lengths) // ROWS) * ROWS
        # With few rows the gates of upper layers are computed for all steps of a chunk too.
        max_tokens = self.eager_tokens if rows <= infer_cpu.MAX_EAGER_ROWS else self.chunk_tokens
        steps = min(int(lengths[0]) - step, max(1, max_tokens // rows))
        t = np.arange(step, step + steps)[:, None]
        mask = t < lengths  # (T, B)
        positions = np.stack([starts + t, starts + lengths - 1 - t])
        slots = window.words[np.where(mask, positions, starts)]
        while max(map(len, distinct := [np.unique(side) for side in slots])) > self.cache.gates.shape[1] and steps > 1:
            steps //= 2
            slots, mask = slots[:, :steps], mask[:steps]
        self.cache.find_gates(distinct, window.precision)
        return slots, mask


def pool(vectors: np.ndarray, pooling: str) -> np.ndarray:
    """Return the mean or maximum over tokens (…, dim) of (…, tokens, dim); zeros without tokens."""
    if pooling not in ("mean", "max"):
        raise SettingError(f"Unknown pooling {pooling!r}; choose 'mean' or 'max'.")
    if vectors.shape[-2] == 0:
        return np.zeros((*vectors.shape[:-2], vectors.shape[-1]), dtype=vectors.dtype)
    return vectors.mean(axis=-2) if pooling == "mean" else vectors.max(axis=-2)


def windows(sentences: Iterable[Tokens], size: int, *, by_tokens: bool = True) -> Iterator[list[Tokens]]:
    """Yield lists of consecutive sentences of about `size` tokens, or of `size` sentences."""
    window: list[Tokens] = []
    total = 0
    for sentence in sentences:
        window.append(sentence)
        total += len(sentence) + 2 if by_tokens else 1
        if total >= size:
            yield window
            window, total = [], 0
    if window:
        yield window


def groups(lengths: np.ndarray, budget: int, max_size: int) -> Iterator[np.ndarray]:
    """Yield groups of sentences of similar length, longest first: at most `budget` tokens (or one sentence) each."""
    order = np.argsort(-lengths, kind="stable")
    totals = np.concatenate([[0], np.cumsum(lengths[order])])
    start = 0
    while start < len(order):
        stop = int(np.searchsorted(totals, totals[start] + budget, side="right")) - 1
        stop = min(max(stop, start + 1), start + max_size)
        yield order[start:stop]
        start = stop
