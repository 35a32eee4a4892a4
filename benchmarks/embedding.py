"""Cases of embedding: the same sentences, from strings to one float32 array per sentence, in every implementation.

The peers read batches of 64 sentences, the default of the old tools. relmo with a cold cache has seen no word of the
text, but its weights are already packed; with a warm cache it has embedded the text before.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from benchmarks.clock import Case
from benchmarks.textbook import TextbookBiLM, TorchStacks
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.quantize import Precision
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.settings.bilm import BiLMSettings
from relmo.text.characters import BOS, EOS, character_ids

BATCH_SIZE = 64
WARM_UP = [["warming", "up"]]
WARM_UP_SENTENCES = 8  # of a peer on a CPU
NUM_SINGLE = 4  # sentences that are embedded one per call

Sentences = Sequence[Sequence[str]]
Forward = Callable[[Tensor, Tensor], Tensor]  # ids (B, T, C), lengths (B,) -> layers (K, B, T, 2P)


class EmbeddingBench:
    """Cases of one geometry; the peers compute in `peer`, float32 or bfloat16, relmo in each of `precisions`."""

    def __init__(
        self,
        settings: BiLMSettings,
        sentences: Sentences,
        *,
        device: torch.device,
        peer: Precision,
        precisions: Sequence[Precision],
    ):
        torch.manual_seed(0)
        self.settings, self.sentences, self.device = settings, sentences, device
        self.peer, self.precisions = peer, precisions
        self.tokens = sum(map(len, sentences))
        self.network = BiLMNetwork(settings.model, vocab_size=None).to(device).eval()
        self.textbook = TextbookBiLM(self.network).to(device, getattr(torch, peer)).eval()
        self.models: dict[str, BiLM] = {}

    def cases(self) -> list[Case]:
        """Return the cases that embed the whole text."""
        facts = {"precision": self.peer}
        by_length = sorted(self.sentences, key=len)
        cases = [
            self._peer("textbook loop, input order", self.textbook, self.sentences, facts | {"baseline": True}),
            self._peer("textbook loop, sorted by length", self.textbook, by_length, facts),
            self._peer("definition (fast=False)", self.definition(), self.sentences, {"precision": "float32"}),
            self._torch_lstm(facts),
        ]
        for precision in self.precisions:
            cases += [self._cold(precision), self._warm(precision)]
        return cases

    def single_cases(self) -> list[Case]:
        """Return the cases with one sentence per call."""
        count = min(NUM_SINGLE, len(self.sentences))
        sample = [self.sentences[i * len(self.sentences) // NUM_SINGLE] for i in range(count)]
        tokens = sum(map(len, sample))
        facts = {"precision": self.peer, "baseline": True, "calls": count}
        cases = [Case("textbook loop", tokens, lambda: [self._embed(self.textbook, [s]) for s in sample], facts=facts)]
        for precision in self.precisions:

            def embed(precision: Precision = precision) -> list[Any]:
                return [self.models[precision].embed([sentence]) for sentence in sample]

            facts = {"precision": precision, "calls": count}
            name = f"relmo {precision}, cold cache"
            cases.append(Case(name, tokens, embed, prepare=lambda p=precision: self.renew(p), facts=facts))  # type: ignore[misc]
            cases.append(Case(f"relmo {precision}, warm cache", tokens, embed, facts=facts))
        return cases

    def definition(self) -> Forward:
        """Return the readable definition: every token encoded, masked loops over time; always float32."""
        network = BiLMNetwork(self.settings.model, vocab_size=None, fast=False)
        network.load_state_dict(self.network.state_dict())
        network.to(self.device).eval()

        @torch.no_grad()
        def forward(ids: Tensor, lengths: Tensor) -> Tensor:
            mask = ids[..., 0] > 0  # (B, T)
            vectors = network.encoder(ids[mask])
            tokens = vectors.new_zeros(*mask.shape, vectors.shape[1])
            tokens[mask] = vectors
            return network(tokens, lengths).layers

        return forward

    def renew(self, precision: Precision) -> None:
        """Replace the model by a new one with an empty word cache."""
        self.models[precision] = BiLM(self.network, self.settings, None, self.device, precision=precision)
        self.models[precision].embed(WARM_UP)

    def _peer(self, name: str, forward: Forward, sentences: Sentences, facts: dict[str, Any]) -> Case:
        short = None if self.device.type == "cuda" else (lambda: self._embed(forward, sentences[:WARM_UP_SENTENCES]))
        return Case(name, self.tokens, lambda: self._embed(forward, sentences), warm_up=short, facts=facts)

    def _embed(self, forward: Forward, sentences: Sentences) -> list[np.ndarray]:
        return embed_batches(forward, sentences, self.settings.model.max_characters, self.device)

    def _cold(self, precision: Precision) -> Case:
        return Case(
            f"relmo {precision}, cold cache",
            self.tokens,
            lambda: self.models[precision].embed(self.sentences),
            prepare=lambda: self.renew(precision),  # warms up as well
            warm_up=None if self.device.type == "cuda" else (lambda: None),
            facts={"precision": precision, "floor": "cold"},
        )

    def _warm(self, precision: Precision) -> Case:
        model = BiLM(self.network, self.settings, None, self.device, precision=precision)
        facts = {"precision": precision, "floor": "warm"}
        return Case(f"relmo {precision}, warm cache", self.tokens, lambda: model.embed(self.sentences), facts=facts)

    def _torch_lstm(self, facts: dict[str, Any]) -> Case:
        """Return the case of torch's LSTMs alone, over precomputed token vectors, packed by length."""
        dtype = getattr(torch, self.peer)
        assert isinstance(self.network.lstm, ElmoLSTM)
        stacks = TorchStacks(self.network.lstm).to(self.device, dtype).eval()
        model = BiLM(self.network, self.settings, None, self.device)
        longest_first = sorted(self.sentences, key=len, reverse=True)
        tokens = model.embed([[BOS, *sentence, EOS] for sentence in longest_first], layers=0)
        halves = [torch.from_numpy(array[:, : array.shape[1] // 2]).to(dtype) for array in tokens]
        inputs = []
        for start in range(0, len(halves), BATCH_SIZE):
            batch = halves[start : start + BATCH_SIZE]
            lengths = torch.tensor([len(x) for x in batch])
            directions = [pad_sequence(batch), pad_sequence([x.flip(0) for x in batch])]
            inputs.append([pack_padded_sequence(x, lengths).to(self.device) for x in directions])  # type: ignore[arg-type]

        @torch.no_grad()
        def run(batches: Any = inputs) -> None:
            for forward, backward in batches:
                stacks(forward, backward)

        short = None if self.device.type == "cuda" else (lambda: run(inputs[-1:]))
        return Case("torch nn.LSTM, no clipping, LSTMs only", self.tokens, run, warm_up=short, facts=facts)


def embed_batches(
    forward: Forward,
    sentences: Sentences,
    max_characters: int,
    device: torch.device,
    *,
    batch_size: int = BATCH_SIZE,
) -> list[np.ndarray]:
    """Return the layers (K, tokens, 2P) of each sentence, embedded in batches in input order."""
    embedded = []
    for start in range(0, len(sentences), batch_size):
        ids, lengths = _pad(sentences[start : start + batch_size], max_characters)
        layers = forward(ids.to(device), lengths).float().cpu().numpy()  # (K, B, T, 2P)
        embedded += [layers[:, row, 1 : n - 1].copy() for row, n in enumerate(lengths.tolist())]
    return embedded


def _pad(sentences: Sentences, max_characters: int) -> tuple[Tensor, Tensor]:
    """Return character ids (B, T, C) of the sentences with boundaries, zero past the end, and lengths (B,)."""
    lengths = torch.tensor([len(sentence) + 2 for sentence in sentences])
    words = [word for sentence in sentences for word in (BOS, *sentence, EOS)]
    ids = torch.zeros(len(sentences), int(lengths.max()), max_characters, dtype=torch.int64)
    ids[torch.arange(ids.shape[1]) < lengths.unsqueeze(1)] = torch.from_numpy(character_ids(words, max_characters))
    return ids, lengths


def compare_vectors(vectors: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the largest absolute difference and the mean cosine of a token's vectors, over all layers."""
    a, b = np.concatenate(vectors, axis=1), np.concatenate(expected, axis=1)  # (K, N, 2P)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine = (a * b).sum(axis=-1, dtype=np.float64) / np.maximum(norms, 1e-30)
    return float(np.abs(a - b).max()), float(cosine.mean())
