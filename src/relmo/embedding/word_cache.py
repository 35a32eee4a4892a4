"""What depends on a word alone, computed once and kept for the words used last, on two levels.

    vectors    for very many words: what the characters, convolutions and highway layers make of one
    gates      the first LSTM layer's input gates, many times as large, for fewer words, and for each direction by
               itself, as they read a word at different times; where they are missing they are made of the vectors,
               those of all missing words in one product, which is of the LSTMs' precision on a CPU

A word's numbers are the same bits whatever other words are computed with it: the compiled kernels see to that, and for
torch's products words are filled up to a multiple of ROWS.

An interruption (Ctrl-C) can come between any two steps of a change. So a change is marked before its first step and
unmarked after its last; where a mark was left behind, the next use forgets everything.
"""

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from relmo.networks.bilm import BiLMNetwork
from relmo.nn.elmo_lstm import ROWS
from relmo.nn.kernels import infer_cpu, linear_cpu, lstm_cpu
from relmo.nn.kernels.kept import kept, versions
from relmo.nn.quantize import Factor, Precision
from relmo.text.characters import Spellings
from relmo.text.dictionaries import Dictionaries, DictionarySpellings

VECTORS = 40_960  # words; 42 MB for the model that ships
GATES, GPU_GATES = 1_280, 16_384  # words; on a CPU more where the weights take more memory than so many
ENCODED, GPU_ENCODED = (
    256,
    8_192,
)  # words that are encoded at once by the compiled kernels, gates that a GPU makes at once
ENCODE_BYTES, GPU_ENCODE_BYTES = 16 << 20, 512 << 20  # the convolutions of words that are encoded at once by torch
FLOAT = 4  # bytes
NOBODY = -1


class Recency:
    """Places that are given away, those used longest ago again when there are no others left."""

    def __init__(self, capacity: int):
        self.stamps = np.zeros(capacity, dtype=np.int64)
        self.given = 0
        self.clock = 0

    def touch(self, places: np.ndarray) -> None:
        """These were used, one after the other."""
        self.stamps[places] = np.arange(self.clock, self.clock + len(places))
        self.clock += len(places)

    def take(self, count: int) -> np.ndarray:
        """So many places, for new owners."""
        fresh = np.arange(self.given, min(len(self.stamps), self.given + count))
        self.given += len(fresh)
        self.touch(fresh)
        old = count - len(fresh)
        if old:
            oldest = np.argpartition(self.stamps, old - 1)[:old]
            self.touch(oldest)
            fresh = np.concatenate([fresh, oldest])
        return fresh


class WordCache:
    """The two levels for one network.

    Words are known by a key: the string where the model reads characters, the vocabulary's id where it reads words.
    The weights are looked at for change at every use, and all is forgotten if there was any; `epoch` counts that. It is
    for one thread at a time, from `find` until what was found has been used: `Embedder` holds a lock for so long.
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
        self.network = network
        self.max_characters = max_characters
        self.dictionaries = dictionaries
        self.first = network.lstm.stack[0]
        self.compiled = lstm_cpu.suits(self.first.bias)
        self.precision: Precision = "float32"
        self.epoch = 0
        self.changing = False
        """Whether a change is under way, or was broken off."""
        self._room_for_vectors(max(1, vectors))
        self._room_for_gates(gates or self._default_gates())
        self.seen = versions(self._parameters())

    def _default_gates(self) -> int:
        if self.first.bias.is_cuda:
            return GPU_GATES
        weights = sum(weight.numel() for weight in self._parameters())
        return max(GATES, weights // (10 * self.first.hidden_size))

    def _room_for_vectors(self, capacity: int) -> None:
        self.vectors = self.first.bias.new_empty(capacity, self.first.weight_ih.shape[2])  # (S, P)
        self.slots: dict[Hashable, int] = {}
        self.keys: list[Hashable | None] = [None] * capacity
        self.recent = Recency(capacity)
        self.place_of = np.full((2, capacity), NOBODY)  # of a slot among the gates

    def _room_for_gates(self, capacity: int) -> None:
        self.gates = self.first.bias.new_empty(2, capacity, 4 * self.first.hidden_size)  # (2, G, 4H)
        self.recent_gates = [Recency(capacity), Recency(capacity)]
        self.slot_of = np.full((2, capacity), NOBODY)  # of a place
        self.place_of[:] = NOBODY

    def _parameters(self) -> list[Tensor]:
        return [*self.network.encoder.parameters(), *self.network.lstm.parameters()]

    def refresh(self) -> int:
        """Forgets everything if a weight has changed, or a change of the cache was broken off. -> the epoch."""
        if self.seen != (weights := versions(self._parameters())) or self.changing:
            self.forget()
            self.seen = weights
        return self.epoch

    def forget(self) -> None:
        """All words, and the memory they take."""
        self.changing = True
        self.first = self.network.lstm.stack[0]
        self._room_for_vectors(len(self.vectors))
        self._room_for_gates(self.gates.shape[1])
        self.epoch += 1
        self.changing = False

    def find(self, keys: Sequence[Hashable]) -> np.ndarray:
        """The slots of distinct words, encoding those that are not there; they are good until `find` is called again.
        -> (N,)"""
        self.refresh()
        self.changing = True
        if len(keys) > len(self.vectors):
            self._room_for_vectors(len(keys))
            self.slot_of[:] = NOBODY
        get = self.slots.get
        slots = np.fromiter((get(key, NOBODY) for key in keys), dtype=np.int64, count=len(keys))
        known = slots != NOBODY
        self.recent.touch(slots[known])
        if not known.all():
            missing = np.flatnonzero(~known)
            slots[missing] = self._add([keys[i] for i in missing.tolist()])
        self.changing = False
        return slots

    def _add(self, keys: list[Hashable]) -> np.ndarray:
        slots = self.recent.take(len(keys))
        for slot in slots.tolist():
            self.slots.pop(self.keys[slot], None)
        for key, slot in zip(keys, slots.tolist(), strict=True):
            self.slots[key], self.keys[slot] = slot, key
        for d in range(2):
            places = self.place_of[d, slots]
            self.slot_of[d, places[places != NOBODY]] = NOBODY
        self.place_of[:, slots] = NOBODY
        for part, ids in self._spelled(keys):
            vectors = self.network.encoder(ids.to(self.vectors.device))  # (N, P), N perhaps more than the words
            self.vectors[torch.from_numpy(slots[part]).to(self.vectors.device)] = vectors[: len(part)]
        return slots

    def _spelled(self, keys: list[Hashable]) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Groups of words: which they are, and the ids that the encoder reads, filled up for torch's products."""
        cnn = getattr(self.network.encoder, "cnn", None)
        if cnn is None:
            order = np.arange(len(keys))
            sizes = np.full(len(keys), ENCODE_BYTES // ENCODED)
        else:
            spellings = self._spellings([str(key) for key in keys])
            order = np.argsort(spellings.lengths, kind="stable")
            sizes = (spellings.lengths[order] + 2 + cnn.widest) * FLOAT * cnn.output_size
        compiled = self.compiled and (cnn is None or cnn.fast)
        sizes = np.full(len(keys), ENCODE_BYTES // ENCODED) if compiled else sizes
        for start, stop in cut(sizes, GPU_ENCODE_BYTES if self.vectors.is_cuda else ENCODE_BYTES):
            part = order[start:stop]
            filled = part if compiled else np.resize(part, -(-len(part) // ROWS) * ROWS)
            ids = np.array(keys)[filled] if cnn is None else spellings.ids(filled, margin=cnn.widest)
            yield part, torch.from_numpy(ids)

    def _spellings(self, words: list[str]) -> Spellings | DictionarySpellings:
        if self.dictionaries is None:
            return Spellings(words, self.max_characters)
        return DictionarySpellings(words, self.dictionaries, self.max_characters)

    def find_gates(self, slots: Sequence[np.ndarray], precision: Precision = "float32") -> None:
        """Sees to it that the gates of each direction's words, distinct and given by their slots, are there: until the
        next call those of direction d are at `gates[d, place_of[d, slots[d]]]`."""
        self.changing = True
        most, room = max(map(len, slots)), self.gates.shape[1]
        if most > room or precision != self.precision:
            self._room_for_gates(max(most, room))
            self.precision = precision
        for d in range(2):
            places = self.place_of[d, slots[d]]
            known = places != NOBODY
            self.recent_gates[d].touch(places[known])
            if not known.all():
                self._add_gates(d, slots[d][~known])
        self.changing = False

    def _add_gates(self, d: int, slots: np.ndarray) -> None:
        places = self.recent_gates[d].take(len(slots))
        before = self.slot_of[d, places]
        self.place_of[d, before[before != NOBODY]] = NOBODY
        self.slot_of[d, places], self.place_of[d, slots] = slots, places
        count = GPU_ENCODED if self.gates.is_cuda else ENCODED
        for start in range(0, len(slots), count):
            self._make_gates(d, slots[start : start + count], places[start : start + count])

    def _make_gates(self, d: int, slots: np.ndarray, places: np.ndarray) -> None:
        count, device = len(slots), self.vectors.device
        slots = slots if self.compiled else np.resize(slots, -(-count // ROWS) * ROWS)
        vectors = self.vectors[torch.from_numpy(slots).to(device)]  # (N, P)
        weight, bias = self.first.weight_ih, self.first.full_bias()
        if self.compiled and self.precision == "float32":
            name = f"gates {d} for {lstm_cpu.kernels()._name}"
            packed = kept(name, [weight, self.first.bias], lambda: linear_cpu.pack(weight[d], bias[d]))
            linear_cpu.linear_into(self.gates[d], torch.from_numpy(places), vectors, packed)
            return
        if self.compiled:
            gates = infer_cpu.input_gates(vectors, weight, bias, d, self.precision)
        elif self.precision == "float32" or self.gates.is_cuda:
            gates = torch.addmm(bias[d], vectors, weight[d].T)
        else:
            gates = bias[d] + Factor(weight[d], self.precision).product(vectors)
        self.gates[d, torch.from_numpy(places).to(device)] = gates[:count]


def cut(sizes: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive pieces [start, stop), in multiples of ROWS but for the last, in which things of these sizes, all as
    large as the last, take no more than `most`, or which are no longer than ROWS. Sizes rise."""
    start = 0
    while start < len(sizes):
        stop = min(len(sizes), start + ROWS)
        while stop < len(sizes):
            further = min(len(sizes), stop + ROWS)
            if (further - start) * sizes[further - 1] > most:
                break
            stop = further
        yield start, stop
        start = stop
