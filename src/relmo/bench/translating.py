"""What is timed of sequence to sequence: a network of the usual size that turns sentences into sentences.

Decoding, in sentences a second; the weights are random, so every target has as many units as its source:

    textbook greedy, one by one    a loop over sentences, and over units: one step, one argmax, one number to the host
    relmo greedy, batched          the same texts, found side by side
    relmo beam 5, batched          a beam search for each

Training, in units a second, with the one training loop:

    Joey NMT's network             in plain torch: a packed bidirectional nn.LSTM, and a decoder that is stepped through
                                   time, with additive attention and input feeding
    relmo, input feeding           the same network
    relmo                          the same without input feeding, so that the decoder's LSTM runs over all units

    Kreutzer, Bastings & Riezler 2019, Joey NMT: a minimalist NMT toolkit for novices
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from relmo.bench.clock import Case
from relmo.models.beam_search import BeamOptions, beam_search
from relmo.networks.inputs import WordBatch, WordInputs
from relmo.networks.language_model import Loss
from relmo.networks.seq2seq import Seq2SeqNetwork, TranslatingNetwork, TranslationBatch
from relmo.nn.cells import State
from relmo.settings.seq2seq import Seq2SeqTrainSettings
from relmo.tasks.seq2seq import OpenSources
from relmo.training.batch import on_device
from relmo.training.loop import Trainer

UNITS, SIZE = 8000, 256  # of both sides; of vectors and of layers
UNKNOWN, END = 0, 1
LONGEST = 40  # units of a sentence
ENDLESS = 1 << 30  # batches


class PlainJoey(nn.Module):
    """Joey NMT's recurrent network, with the weights of ours that has additive attention and input feeding."""

    def __init__(self, ours: TranslatingNetwork):
        super().__init__()
        body = ours.body
        assert ours.inputs.words is not None
        assert body.attention is not None
        assert body.readout is not None
        self.source = nn.Embedding.from_pretrained(ours.inputs.words.weight.detach().clone(), freeze=False)
        self.target = nn.Embedding.from_pretrained(body.embedding.weight.detach().clone(), freeze=False)
        hidden = body.decoder.cells[0][0].hidden_size
        self.encoder = nn.LSTM(self.source.embedding_dim, hidden, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(self.target.embedding_dim + hidden, hidden, batch_first=True)
        _copy(self.encoder, body.encoder.recurrent.cells[0])
        _copy(self.decoder, body.decoder.cells[0])
        self.bridge = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(2))
        self.key, self.query = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.energy = nn.Linear(hidden, 1, bias=False)
        self.vector = nn.Linear(3 * hidden, hidden)
        self.output = nn.Linear(hidden, len(body.output.weight))
        attention = body.attention
        theirs = [*body.bridge, attention.of_memory, attention.of_query, attention.v, body.readout, body.output]
        mine = [*self.bridge, self.key, self.query, self.energy, self.vector, self.output]
        for layer, other in zip(mine, theirs, strict=True):
            layer.load_state_dict({name: p.detach() for name, p in other.named_parameters()})

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        packed = pack_padded_sequence(self.source(source), lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, (h, c) = self.encoder(packed)
        memory, _ = pad_packed_sequence(packed, batch_first=True)
        mask = torch.arange(memory.shape[1], device=memory.device) < lengths.unsqueeze(1)
        h, c = (torch.cat([state[0], state[1]], dim=1) for state in (h, c))
        state = torch.tanh(self.bridge[0](h)).unsqueeze(0), self.bridge[1](c).unsqueeze(0)
        keys, embedded = self.key(memory), self.target(inputs)
        vector = memory.new_zeros(len(memory), 1, self.decoder.hidden_size)
        vectors = []
        for t in range(inputs.shape[1]):
            _, state = self.decoder(torch.cat([embedded[:, t : t + 1], vector], dim=2), state)
            query = state[0][-1].unsqueeze(1)  # (B, 1, H)
            scores = self.energy(torch.tanh(self.query(query) + keys)).squeeze(2).unsqueeze(1)  # (B, 1, S)
            weights = scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(dim=2)
            vector = torch.tanh(self.vector(torch.cat([weights @ memory, query], dim=2)))
            vectors.append(vector)
        return self.output(torch.cat(vectors, dim=1))

    def loss(self, batch: TranslationBatch, carry: State | None = None) -> Loss:
        """As the training loop asks for it."""
        assert batch.source.words is not None
        assert batch.inputs is not None
        assert batch.places is not None
        assert batch.targets is not None
        logits = self(batch.source.words, batch.source.lengths, batch.inputs)
        targets = torch.full_like(batch.inputs.flatten(), -100)
        targets[batch.places] = batch.targets
        return Loss(cross_entropy(logits.flatten(0, 1), targets), batch.predictions, ())


def _copy(layer: nn.LSTM, cells: Sequence[nn.Module]) -> None:
    """The weights of one layer's cells, forward before backward."""
    with torch.no_grad():
        for cell, ending in zip(cells, ("_l0", "_l0_reverse"), strict=False):
            for name, weight in cell.named_parameters():
                getattr(layer, name + ending).copy_(weight)


class Repeated:
    """One batch after another, over and over."""

    def __init__(self, batches: Sequence[TranslationBatch]):
        self.batches = batches

    def __len__(self) -> int:
        return ENDLESS

    def get(self, epoch: int, index: int) -> TranslationBatch:
        """The batch of a number, whatever the epoch."""
        return self.batches[index % len(self.batches)]


class TranslationBench:
    """The cases; sentences are turned into other sentences of the same text."""

    def __init__(self, sentences: Sequence[Sequence[str]], *, device: torch.device, count: int = 128):
        torch.manual_seed(0)
        self.device = device
        index: dict[str, int] = {}
        numbers = [[index.setdefault(word, len(index)) % (UNITS - 2) + 2 for word in s[:LONGEST]] for s in sentences]
        self.ids = sorted(numbers[:count], key=len)
        self.fed = make_network(feeding=True).to(device).eval()
        self.plain = make_network(feeding=False).to(device).eval()

    def decoding(self) -> list[Case]:
        """Sentences a second."""
        facts: dict[str, Any] = {"precision": "float32"}
        n = len(self.ids)
        return [
            Case("textbook greedy, one by one", n, self.one_by_one, facts=facts | {"baseline": True}),
            Case("relmo greedy, batched", n, lambda: self.batched(1), facts=facts),
            Case("relmo beam 5, batched", n, lambda: self.batched(5), facts=facts),
        ]

    def training(self) -> list[Case]:
        """Units a second."""
        joey = PlainJoey(self.fed).to(self.device)
        units = sum(len(ids) + 1 for ids in self.ids)
        batches = Repeated([self.batch(self.ids, answers=True)])
        cases = []
        for name, network in (
            ("Joey NMT's network, plain torch", joey),
            ("relmo, input feeding", make_network(feeding=True).to(self.device)),
            ("relmo", make_network(feeding=False).to(self.device)),
        ):
            steps = Trainer(network, batches, Seq2SeqTrainSettings(epochs=1.0)).steps()
            facts = {"precision": "float32", "baseline": network is joey}
            cases.append(Case(name, units, lambda steps=steps: next(steps), facts=facts))  # type: ignore[misc]
        return cases

    def batch(self, sources: Sequence[Sequence[int]], *, answers: bool = False) -> TranslationBatch:
        """Sentences side by side; each is to become the one before it."""
        lengths = torch.tensor([len(ids) for ids in sources])
        words = torch.zeros(len(sources), int(lengths.max()), dtype=torch.int64)
        for row, ids in zip(words, sources, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        source = WordBatch(lengths, words)
        if not answers:
            return on_device(TranslationBatch(source), self.device)
        targets = [sources[i - 1] for i in range(len(sources))]
        inputs = torch.full((len(sources), max(map(len, targets)) + 1), END)
        inside = np.zeros(inputs.shape, dtype=bool)
        for row, known, ids in zip(inputs, inside, targets, strict=True):
            row[1 : len(ids) + 1] = torch.tensor(ids)
            known[: len(ids) + 1] = True
        following = torch.tensor([unit for ids in targets for unit in (*ids, END)])
        places = torch.from_numpy(np.flatnonzero(inside))
        return on_device(TranslationBatch(source, inputs, places, following, len(following)), self.device)

    @torch.no_grad()
    def one_by_one(self) -> list[list[int]]:
        """The textbook's loop. -> the units of each target"""
        body, found = self.fed.body, []
        for ids in self.ids:
            source = self.fed(self.batch([ids]))
            state, unit, written = body.first_state(source), END, []
            for _ in ids:
                log_probs, state = body.step(torch.tensor([unit], device=self.device), state, source)
                log_probs[:, [UNKNOWN, END]] = -torch.inf
                unit = int(log_probs.argmax())
                written.append(unit)
            found.append(written)
        return found

    @torch.no_grad()
    def batched(self, beams: int) -> list[list[int]]:
        """The one beam search, over all sentences. -> the units of each one's best target"""
        source = self.fed(self.batch(self.ids))
        lengths, sources = source.mask.sum(dim=1), OpenSources(self.fed.body, source)
        first = sources.step(torch.full_like(lengths, END), self.fed.body.first_state(source))
        options = BeamOptions(beams, END, banned=[UNKNOWN, END])
        found = beam_search(sources.step, *first, options, limits=lengths, narrow=sources.narrow)
        return [texts[0].ids for texts in found]


def make_network(*, feeding: bool) -> TranslatingNetwork:
    """A fresh network."""
    inputs = WordInputs(words=UNITS, word_dim=SIZE)
    body = Seq2SeqNetwork(input_size=SIZE, units=UNITS, hidden=SIZE, unit_size=SIZE, feeding=feeding)
    return TranslatingNetwork(inputs, body)
