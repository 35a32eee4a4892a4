"""Cache of what depends on a word alone, for the most recently used words, on two levels.

    vectors    for many words: the output of characters, convolutions and highway layers
    gates      the first recurrent layer's input gates, many times as large, for fewer words, and for each direction by
               itself, as they read a word at different times; computed from the vectors

A word's numbers are the same bits whatever other words are computed with it: the compiled kernels ensure that, and for
torch's products words are padded to a multiple of ROWS. An interruption (Ctrl-C) can come between any two steps of a
change, so a change is marked before its first step and unmarked after its last; a mark that is left clears the cache.
"""

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from relmo.networks.bilm import BiLMNetwork
from relmo.nn.kernels import cached, cpu, encoder_cpu, get_versions, lstm_cpu
from relmo.nn.quantize import Factor, Precision
from relmo.nn.recurrence import bidirectional
from relmo.nn.recurrence.elmo_lstm import ROWS, ElmoLayer
from relmo.text.characters import Dictionaries, DictionarySpellings, Spellings

VECTORS = 40_960  # words; 42 MB for the bundled model
GATES, GPU_GATES = 1_280, 16_384  # words; more on a CPU if the weights take more memory
# Words per call: of the compiled encoder, and of the gates on a GPU.
ENCODER_WORDS, GPU_GATE_WORDS = 256, 8_192
ENCODER_BYTES, GPU_ENCODER_BYTES = 16 << 20, 512 << 20  # convolutions per call of torch's encoder
FLOAT = 4  # bytes
EMPTY = -1


class Recency:
    """Allocator of slots that evicts the least recently used."""

    def __init__(self, capacity: int):
        self.stamps = np.zeros(capacity, dtype=np.int64)
        self.num_used = 0
        self.clock = 0

    def touch(self, slots: np.ndarray) -> None:
        """Mark slots as used, in this order."""
        self.stamps[slots] = np.arange(self.clock, self.clock + len(slots))
        self.clock += len(slots)

    def allocate(self, count: int) -> np.ndarray:
        """Allocate `count` slots, evicting the least recently used."""
        fresh = np.arange(self.num_used, min(len(self.stamps), self.num_used + count))
        self.num_used += len(fresh)
        self.touch(fresh)
        num_evicted = count - len(fresh)
        if num_evicted:
            oldest = np.argpartition(self.stamps, num_evicted - 1)[:num_evicted]
            self.touch(oldest)
            fresh = np.concatenate([fresh, oldest])
        return fresh


class WordCache:
    """The two levels for one network, by words if the model reads characters, by ids if it reads words.

    The cache is cleared if the weights have changed since the last use; `epoch` counts that. It is for one thread at a
    time, from `find` until the entries have been used: `Embedder` holds a lock meanwhile.
    """

    def __init__(
        self,
        network: BiLMNetwork,
        max_characters: int,
        *,
        dictionaries: Dictionaries | None = None,
        vectors: int = VECTORS,
        gates: int | None = None,
    ):
        self.network, self.max_characters, self.dictionaries = network, max_characters, dictionaries
        self.layer = network.lstm.stack[0]
        self.like = next(network.lstm.parameters())
        self.compiled = isinstance(self.layer, ElmoLayer) and cpu.supports(self.like)
        with torch.no_grad():
            self.width = self.layer.input_gates(self.like.new_zeros(2, 1, network.lstm.input_size)).shape[2]
        self.precision: Precision = "float32"
        self.epoch, self.changing = 0, False  # changing: a change is in progress or was interrupted
        self._allocate_vectors(max(1, vectors))
        num_weights = sum(weight.numel() for weight in self._parameters())
        cpu_gates = max(GATES, 2 * num_weights // (5 * self.width))
        self._allocate_gates(gates or (GPU_GATES if self.like.is_cuda else cpu_gates))
        self.versions = get_versions(self._parameters())

    def _allocate_vectors(self, capacity: int) -> None:
        self.vectors = self.like.new_empty(capacity, self.network.lstm.input_size)  # (S, P)
        self.slots: dict[Hashable, int] = {}
        self.keys: list[Hashable | None] = [None] * capacity
        self.recency = Recency(capacity)
        self.gate_rows = np.full((2, capacity), EMPTY)  # row of a slot among the gates

    def _allocate_gates(self, capacity: int) -> None:
        self.gates = self.like.new_empty(2, capacity, self.width)  # (2, G, 4H) of an LSTM
        self.gate_recency = [Recency(capacity), Recency(capacity)]
        self.slots_by_row = np.full((2, capacity), EMPTY)  # slot of a row of gates
        self.gate_rows[:] = EMPTY

    def _parameters(self) -> list[Tensor]:
        return [*self.network.encoder.parameters(), *self.network.lstm.parameters()]

    def refresh(self) -> int:
        """Clear the cache if a weight has changed or a change was interrupted; return the epoch."""
        if self.versions != (versions := get_versions(self._parameters())) or self.changing:
            self.clear()
            self.versions = versions
        return self.epoch

    def clear(self) -> None:
        """Remove all words and release their memory."""
        self.changing = True
        self.layer, self.like = self.network.lstm.stack[0], next(self.network.lstm.parameters())
        self._allocate_vectors(len(self.vectors))
        self._allocate_gates(self.gates.shape[1])
        self.epoch += 1
        self.changing = False

    def find(self, keys: Sequence[Hashable]) -> np.ndarray:
        """Return the slots (N,) of distinct words, encoding missing ones; valid until `find` is called again."""
        self.refresh()
        self.changing = True
        if len(keys) > len(self.vectors):
            self._allocate_vectors(len(keys))
            self.slots_by_row[:] = EMPTY
        get = self.slots.get
        slots = np.fromiter((get(key, EMPTY) for key in keys), dtype=np.int64, count=len(keys))
        is_hit = slots != EMPTY
        self.recency.touch(slots[is_hit])
        if not is_hit.all():
            missing = np.flatnonzero(~is_hit)
            new_keys, new = [keys[i] for i in missing.tolist()], self.recency.allocate(len(missing))
            for slot in new.tolist():
                self.slots.pop(self.keys[slot], None)
            for key, slot in zip(new_keys, new.tolist(), strict=True):
                self.slots[key], self.keys[slot] = slot, key
            for d in range(2):
                rows = self.gate_rows[d, new]
                self.slots_by_row[d, rows[rows != EMPTY]] = EMPTY
            self.gate_rows[:, new] = EMPTY
            self._encode(new_keys, new)
            slots[missing] = new
        self.changing = False
        return slots

    def _encode(self, keys: list[Hashable], slots: np.ndarray) -> None:
        """Write the vectors of words to their slots, in groups that are padded for torch's products."""
        device, cnn = self.vectors.device, getattr(self.network.encoder, "cnn", None)
        compiled = cpu.supports(self.like) and (cnn is None or cnn.fast)
        order, sizes = np.arange(len(keys)), np.full(len(keys), ENCODER_BYTES // ENCODER_WORDS)
        if cnn is not None:
            words = [str(key) for key in keys]
            spellings: Spellings | DictionarySpellings
            if self.dictionaries is None:
                spellings = Spellings(words, self.max_characters)
            else:
                spellings = DictionarySpellings(words, self.dictionaries, self.max_characters)
            order = np.argsort(spellings.lengths, kind="stable")
            if not compiled:
                sizes = (spellings.lengths[order] + 2 + cnn.widest) * FLOAT * cnn.output_size
        for start, stop in split_by_size(sizes, GPU_ENCODER_BYTES if self.vectors.is_cuda else ENCODER_BYTES):
            part = order[start:stop]
            padded = part if compiled else np.resize(part, -(-len(part) // ROWS) * ROWS)
            ids = np.array(keys)[padded] if cnn is None else spellings.ids(padded, margin=cnn.widest)
            vectors = self.network.encoder(torch.from_numpy(ids).to(device))  # (N, P), N may include padding
            self.vectors[torch.from_numpy(slots[part]).to(device)] = vectors[: len(part)]

    def find_gates(self, slots: Sequence[np.ndarray], precision: Precision = "float32") -> None:
        """Fill `gates[d, gate_rows[d, slots[d]]]` for distinct slots of each direction d, valid until the next call."""
        self.changing = True
        num_words, capacity = max(map(len, slots)), self.gates.shape[1]
        if num_words > capacity or precision != self.precision:
            self._allocate_gates(max(num_words, capacity))
            self.precision = precision
        for d in range(2):
            rows = self.gate_rows[d, slots[d]]
            is_hit = rows != EMPTY
            self.gate_recency[d].touch(rows[is_hit])
            if is_hit.all():
                continue
            new = slots[d][~is_hit]
            rows = self.gate_recency[d].allocate(len(new))
            evicted = self.slots_by_row[d, rows]
            self.gate_rows[d, evicted[evicted != EMPTY]] = EMPTY
            self.slots_by_row[d, rows], self.gate_rows[d, new] = new, rows
            count = GPU_GATE_WORDS if self.gates.is_cuda else ENCODER_WORDS
            for start in range(0, len(new), count):
                self._make_gates(d, new[start : start + count], rows[start : start + count])
        self.changing = False

    def _make_gates(self, d: int, slots: np.ndarray, rows: np.ndarray) -> None:
        count, device = len(slots), self.vectors.device
        multiple = ROWS if isinstance(self.layer, ElmoLayer) else bidirectional.ROWS
        slots = slots if self.compiled else np.resize(slots, -(-count // multiple) * multiple)
        vectors = self.vectors[torch.from_numpy(slots).to(device)]  # (N, P)
        if not isinstance(self.layer, ElmoLayer):
            gates = self.layer.cells[d].project_input(vectors)
            self.gates[d, torch.from_numpy(rows).to(device)] = gates[:count]
            return
        weight, bias = self.layer.weight_ih, self.layer.full_bias()
        if self.compiled and self.precision == "float32":
            name = f"gates {d} for {cpu.kernels()._name}"
            packed = cached(name, [weight, self.layer.bias], lambda: encoder_cpu.pack(weight[d], bias[d]))
            encoder_cpu.linear_into(self.gates[d], torch.from_numpy(rows), vectors, packed)
            return
        if self.compiled:
            gates = lstm_cpu.input_gates(vectors, weight, bias, d, self.precision)
        elif self.precision == "float32" or self.gates.is_cuda:
            gates = torch.addmm(bias[d], vectors, weight[d].T)
        else:
            gates = bias[d] + Factor(weight[d], self.precision).product(vectors)
        self.gates[d, torch.from_numpy(rows).to(device)] = gates[:count]


def split_by_size(sizes: np.ndarray, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield pieces [start, stop) of increasing sizes, multiples of ROWS that take at most `max_bytes` if padded."""
    start = 0
    while start < len(sizes):
        stop = min(len(sizes), start + ROWS)
        while stop < len(sizes):
            next_stop = min(len(sizes), stop + ROWS)
            if (next_stop - start) * sizes[next_stop - 1] > max_bytes:
                break
            stop = next_stop
        yield start, stop
        start = stop
