"""What is timed of embedding: the same sentences, from strings to one float32 array a sentence, in every way.

The peers read batches of 64 sentences, as the old tools did by default. relmo's "words new" knows no word at the
beginning, but its weights are already laid out for it; "words known" has embedded the text before.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from relmo.bench.clock import Case
from relmo.bench.textbook import TextbookBiLM, TorchStacks
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.quantize import Precision
from relmo.settings.bilm import BiLMSettings
from relmo.text.characters import BOS, EOS, character_ids

BATCH = 64
FIRST = [["warming", "up"]]
SHORT = 8  # sentences of a warm-up on a CPU
SINGLE = 4  # sentences that are read one a call

Sentences = Sequence[Sequence[str]]
Forward = Callable[[Tensor, Tensor], Tensor]  # ids (B, T, C), lengths (B,) -> layers (K, B, T, 2P)


class EmbeddingBench:
    """The cases of one geometry; the peers compute in `peer`, float32 or bfloat16, relmo in each of `precisions`."""

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
        """Every way to embed the whole text."""
        facts = {"precision": self.peer}
        by_length = sorted(self.sentences, key=len)
        return [
            self._peer("textbook loop, input order", self.textbook, self.sentences, facts | {"baseline": True}),
            self._peer("textbook loop, sorted by length", self.textbook, by_length, facts),
            self._peer("definition (fast=False)", self.definition(), self.sentences, {"precision": "float32"}),
            self._torch_lstm(facts),
            *(case for precision in self.precisions for case in (self._new(precision), self._known(precision))),
        ]

    def single_cases(self) -> list[Case]:
        """The same with one sentence a call."""
        some = [self.sentences[i * len(self.sentences) // SINGLE] for i in range(min(SINGLE, len(self.sentences)))]
        tokens = sum(map(len, some))
        facts = {"precision": self.peer, "baseline": True, "calls": len(some)}
        cases = [Case("textbook loop", tokens, lambda: [self._vectors(self.textbook, [s]) for s in some], facts=facts)]
        for precision in self.precisions:

            def embed(precision: Precision = precision) -> list[Any]:
                return [self.models[precision].embed([sentence]) for sentence in some]

            facts = {"precision": precision, "calls": len(some)}
            name = f"relmo {precision}, words new"
            cases.append(Case(name, tokens, embed, prepare=lambda p=precision: self.renew(p), facts=facts))  # type: ignore[misc]
            cases.append(Case(f"relmo {precision}, words known", tokens, embed, facts=facts))
        return cases

    def definition(self) -> Forward:
        """The readable definition: every word token encoded, masked loops over time; always float32."""
        network = BiLMNetwork(self.settings.model, vocab_size=None, fast=False)
        network.load_state_dict(self.network.state_dict())
        network.to(self.device).eval()

        @torch.no_grad()
        def forward(ids: Tensor, lengths: Tensor) -> Tensor:
            real = ids[..., 0] > 0  # (B, T)
            vectors = network.encoder(ids[real])
            tokens = vectors.new_zeros(*real.shape, vectors.shape[1])
            tokens[real] = vectors
            return network(tokens, lengths).layers

        return forward

    def renew(self, precision: Precision) -> None:
        """Takes a new model, which has read no word of the text."""
        self.models[precision] = BiLM(self.network, self.settings, None, self.device, precision=precision)
        self.models[precision].embed(FIRST)

    def _peer(self, name: str, forward: Forward, sentences: Sentences, facts: dict[str, Any]) -> Case:
        short = None if self.device.type == "cuda" else (lambda: self._vectors(forward, sentences[:SHORT]))
        return Case(name, self.tokens, lambda: self._vectors(forward, sentences), warm=short, facts=facts)

    def _vectors(self, forward: Forward, sentences: Sentences) -> list[np.ndarray]:
        return vectors(forward, sentences, self.settings.model.max_characters, self.device)

    def _new(self, precision: Precision) -> Case:
        def embed() -> list[np.ndarray]:
            return self.models[precision].embed(self.sentences)

        short = None if self.device.type == "cuda" else (lambda: None)  # it warms up whenever it is prepared
        facts = {"precision": precision, "floor": "cold"}
        name = f"relmo {precision}, words new"
        return Case(name, self.tokens, embed, prepare=lambda: self.renew(precision), warm=short, facts=facts)

    def _known(self, precision: Precision) -> Case:
        model = BiLM(self.network, self.settings, None, self.device, precision=precision)
        facts = {"precision": precision, "floor": "warm"}
        return Case(f"relmo {precision}, words known", self.tokens, lambda: model.embed(self.sentences), facts=facts)

    def _torch_lstm(self, facts: dict[str, Any]) -> Case:
        """The LSTMs alone, by torch, over token vectors that are there already, the sentences packed by length."""
        dtype = getattr(torch, self.peer)
        stacks = TorchStacks(self.network.lstm).to(self.device, dtype).eval()
        model = BiLM(self.network, self.settings, None, self.device)
        longest_first = sorted(self.sentences, key=len, reverse=True)
        tokens = model.embed([[BOS, *sentence, EOS] for sentence in longest_first], layers=0)
        halves = [torch.from_numpy(array[:, : array.shape[1] // 2]).to(dtype) for array in tokens]
        inputs = []
        for start in range(0, len(halves), BATCH):
            batch = halves[start : start + BATCH]
            lengths = torch.tensor([len(x) for x in batch])
            both = [pad_sequence(batch), pad_sequence([x.flip(0) for x in batch])]
            inputs.append([pack_padded_sequence(x, lengths).to(self.device) for x in both])  # type: ignore[arg-type]

        @torch.no_grad()
        def run(batches: Any = inputs) -> None:
            for forward, backward in batches:
                stacks(forward, backward)

        short = None if self.device.type == "cuda" else (lambda: run(inputs[-1:]))
        name = "torch nn.LSTM, no clipping, LSTMs only"
        return Case(name, self.tokens, run, warm=short, facts=facts)


def vectors(
    forward: Forward, sentences: Sentences, max_characters: int, device: torch.device, *, batch: int = BATCH
) -> list[np.ndarray]:
    """Every sentence's (K, tokens, 2P), read in batches in the order given."""
    found = []
    for start in range(0, len(sentences), batch):
        ids, lengths = _padded(sentences[start : start + batch], max_characters)
        layers = forward(ids.to(device), lengths).float().cpu().numpy()  # (K, B, T, 2P)
        found += [layers[:, row, 1 : n - 1].copy() for row, n in enumerate(lengths.tolist())]
    return found


def _padded(sentences: Sentences, max_characters: int) -> tuple[Tensor, Tensor]:
    """Character ids (B, T, C) of the sentences between their boundaries, zero past the end; lengths (B,)."""
    lengths = torch.tensor([len(sentence) + 2 for sentence in sentences])
    words = [word for sentence in sentences for word in (BOS, *sentence, EOS)]
    ids = torch.zeros(len(sentences), int(lengths.max()), max_characters, dtype=torch.int64)
    ids[torch.arange(ids.shape[1]) < lengths.unsqueeze(1)] = torch.from_numpy(character_ids(words, max_characters))
    return ids, lengths


def agreement(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> tuple[float, float]:
    """The largest difference of any number, and the mean cosine of a token's vectors, over all layers."""
    a, b = np.concatenate(found, axis=1), np.concatenate(expected, axis=1)  # (K, N, 2P)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine = (a * b).sum(axis=-1, dtype=np.float64) / np.maximum(norms, 1e-30)
    return float(np.abs(a - b).max()), float(cosine.mean())
