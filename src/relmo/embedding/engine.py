"""Engine of `embed`: vectors of sentences, in bounded memory and in input order.

- A word's vector and the first recurrent layer's input gates depend on the word alone. They are computed once per
  distinct word of a window of the input and cached in a `WordCache`; the layers only look them up.
- A sentence that starts from zero needs no steps on its boundaries: the state after the first one is a constant of the
  model, and the output at the last one is not needed. Carried state, as in the original tools, is a row's state from
  one batch to the next, with batches in input order and with steps on the boundaries.
- Sentences of a window are sorted by length and batched. A sentence's bits do not depend on the others of its batch.
- A batch runs in chunks of time, forward from the left and backward from the right, each from the final state of its
  previous chunk. So a sentence of any length is exact, and takes little memory besides its result.
- Threads take turns: a lock is held while a window, or a batch with carried state, is computed, and never while the
  caller has the results.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.embedding.word_cache import VECTORS, WordCache
from relmo.errors import SettingError
from relmo.networks.bilm import BiLMNetwork
from relmo.nn import fork_safe_lock
from relmo.nn.kernels import lstm_cpu
from relmo.nn.recurrence import State
from relmo.nn.recurrence.elmo_lstm import ROWS, Precision
from relmo.settings.options import EmbedOptions
from relmo.text.characters import BOS, EOS, Dictionaries
from relmo.text.vocabulary import SentenceVocabulary

Tokens = Sequence[str]

CPU_ROWS, GPU_ROWS = 256, 1024  # default sentences per batch; more were not faster on a CPU
CHUNK_BYTES = 8 << 20  # outputs of the LSTMs in a chunk of time in compiled code; in torch, the gates of a layer:
CPU_GATES_BYTES, GPU_GATES_BYTES = 8 << 20, 2 << 30  # small ones fit a CPU's caches; at most a 16th of a GPU's memory
CPU_WINDOW_BYTES, GPU_WINDOW_BYTES = 24 << 20, 256 << 20  # results of a window, within these numbers of tokens:
WINDOW_TOKENS = (12_288, 65_536)  # minimum and maximum
STATE_BYTES = 256 << 20  # states of the rows of a batch, which may be matrices
TOKENS_PER_BATCH = 16_384
FLOAT = 4  # bytes
STAGING_SIZE = 8 << 20  # numbers copied from a GPU at once
STAGING_LOCK = fork_safe_lock()  # guards the staging buffer


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
    """Consecutive sentences as the LSTMs read them."""

    words: np.ndarray  # (N,): cache slots of the words of all sentences
    starts: np.ndarray  # (S,): start of each sentence in `words`
    lengths: np.ndarray  # (S,)
    edge: int  # number of boundaries on either side of a sentence, 0 or 1
    precision: Precision  # of the LSTMs' products


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
        self.network, self.max_characters = network, max_characters
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
        state_bytes = FLOAT * sum(tensor.numel() for tensor in network.initial_state(1))
        limits = GPU_ROWS if on_gpu else CPU_ROWS, self.chunk_tokens, STATE_BYTES // state_bytes
        self.max_rows = max(ROWS, min(limits))
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
        """Yield the vectors of each sentence in order, reading ahead by a window; `cut` counts truncated words."""
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
        state: State | None = None
        is_warmup = options.state == "warmup"
        for number, batch in enumerate(windows(sentences, options.batch_size or 1, by_tokens=False)):
            with self.lock, self._inference():
                window, count = self._make_window(batch, cut, precision, edge=1), len(batch)
                (order,) = groups(window.lengths, 1 << 60, count)
                state = state if is_warmup else self.states
                results: list[np.ndarray] = [np.empty(0)] * count
                for _ in range(2 if number == 0 and is_warmup else 1):
                    state = self.network.initial_state(0) if state is None else state
                    # A copy, with initial states for additional rows.
                    initial = self.network.initial_state(max(0, count - len(state[0])))
                    state = tuple(torch.cat(pair) for pair in zip(state, initial, strict=True))
                    rows = torch.from_numpy(order).to(state[0].device)
                    running = tuple(tensor[rows] for tensor in state)
                    for index, array in zip(order.tolist(), self._run(window, order, options, running), strict=True):
                        results[index] = array
                    for tensor, after in zip(state, running, strict=True):
                        tensor[rows] = after
                if not is_warmup:
                    self.states = state
            yield from results

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Disable gradients and autocast in this thread; in inference mode nobody else could write into the cache."""
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
            # Only the part that the network reads, so that the cache does not hold on to long words: 4 bytes more than
            # it reads, as the last character may be cut.
            size, index = self.max_characters, dict[str, int]()
            parts = [
                word if len(word) <= size else word.encode("utf-8", "ignore")[: size + 4].decode("utf-8", "ignore")
                for word in words
            ]
            indices = [index.setdefault(part, len(index)) for part in parts]
            return self.cache.find(list(index))[indices]
        keys, inverse = np.unique(self.vocabulary.ids(words), return_inverse=True)
        return self.cache.find(keys.tolist())[inverse]

    def after_boundary(self, precision: Precision | None = None) -> tuple[State, Tensor]:
        """Return the state, one row, and the top layer (2, P) after the first boundary of a sentence, from zero."""
        with self.lock, self._inference():
            return self._after_boundary(precision or self.precision)

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
        """Return the vectors of one batch of a window, longest first; with boundaries the state is overwritten."""
        selected = options.select_layers(self.network.layer_count)
        starts, lengths = window.starts[order], window.lengths[order]
        num_layers = len(selected) if options.layers == "all" else 1
        arguments, device = (lengths, window.edge, selected, num_layers, self.network.size), self.cache.gates.device
        results = ResultsOnGPU(*arguments, device=device) if device.type == "cuda" else Results(*arguments)
        if selected[0] == 0:
            results.put_words(self.cache.vectors, window.words, starts)
        step, max_length = 0, int(lengths.max(initial=0)) if selected != [0] or window.edge else 0
        while step < max_length:
            rows = int(np.count_nonzero(lengths > step))
            # A chunk is as long as the memory for outputs and gates permits; with few rows the gates of upper layers
            # are computed for all of its steps too.
            padded = rows if self.cache.compiled else -(-rows // ROWS) * ROWS
            max_tokens = self.eager_tokens if padded <= lstm_cpu.MAX_EAGER_ROWS else self.chunk_tokens
            steps = min(max_length - step, max(1, max_tokens // padded))
            t, first, size = np.arange(step, step + steps)[:, None], starts[:rows], lengths[:rows]
            mask = t < size  # (T, B)
            positions = np.stack([first + t, first + size - 1 - t])
            slots = window.words[np.where(mask, positions, first)]  # (2, T, B): read by each direction
            distinct = [np.unique(side) for side in slots]
            while steps > 1 and max(map(len, distinct)) > self.cache.gates.shape[1]:
                steps //= 2
                slots, mask = slots[:, :steps], mask[:steps]
                distinct = [np.unique(side) for side in slots]
            self.cache.find_gates(distinct, window.precision)
            gate_rows = np.stack([rows_by_slot[slots[d]] for d, rows_by_slot in enumerate(self.cache.gate_rows)])
            words = torch.from_numpy(gate_rows).to(device)
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
        arrays = results.arrays()
        return arrays if options.layers == "all" else [array[0] for array in arrays]


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


class Results:
    """One array per sentence of the selected layers (0: words) or their mean; lengths (R,) include boundaries."""

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


class ResultsOnGPU(Results):
    """`Results` on a GPU: one tensor for all sentences, copied to the host in parts."""

    def __init__(
        self, lengths: np.ndarray, edge: int, selected: list[int], num_layers: int, size: int, *, device: torch.device
    ):
        self.lengths, self.edge, self.selected, self.half = lengths, edge, selected, size // 2
        self.counts = lengths - 2 * edge
        self.starts = np.cumsum(self.counts) - self.counts  # (R,)
        self.is_mean = num_layers < len(selected)
        self.out = torch.zeros(num_layers, int(self.counts.sum()), size, device=device)

    def put_words(self, vectors: Tensor, words: np.ndarray, starts: np.ndarray) -> None:
        positions = np.repeat(starts + self.edge - self.starts, self.counts) + np.arange(self.out.shape[1])
        rows = vectors[torch.from_numpy(words[positions]).to(vectors.device)]
        self.out[0] = torch.cat([rows, rows], dim=1)

    def put_chunk(self, step: int, steps: int, rows: int, layers: Sequence[Tensor]) -> None:
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
        if self.is_mean:
            self.out /= len(self.selected)
        num_layers, _, size = self.out.shape
        max_tokens = STAGING_SIZE // (num_layers * size)
        ends, start, arrays = np.append(self.starts, self.out.shape[1]), 0, []
        while start < len(self.counts):
            stop = max(start + 1, int(np.searchsorted(ends, ends[start] + max_tokens, side="right")) - 1)
            low, high = int(ends[start]), int(ends[stop])
            part = self.out[:, low:high]
            fits = high - low <= max_tokens
            with STAGING_LOCK if fits else nullcontext():
                if fits:
                    host = staging_buffer()[: part.numel()].view(part.shape).copy_(part).numpy()
                else:
                    host = part.cpu().numpy()
                arrays += [host[:, a - low : b - low].copy() for a, b in pairwise(ends[start : stop + 1].tolist())]
            start = stop
        return arrays


@cache
def staging_buffer() -> Tensor:
    """Return pinned memory, shared by all threads; allocating it every time would cost more than the copy."""
    return torch.empty(STAGING_SIZE, pin_memory=True)
