"""Cases of sequence to sequence, with a network of the usual size.

Decoding, in sentences per second; the weights are random, so every target has as many units as its source:

    textbook greedy, one by one    a loop over sentences and units: one step, one argmax, one number to the host
    relmo greedy, batched          the same sentences in one batch
    relmo beam 5, batched          beam search for each

Training, in units per second, with the training loop:

    Joey NMT's network             in plain torch: a packed bidirectional nn.LSTM, and a decoder that is stepped through
                                   time, with additive attention and input feeding
    relmo, input feeding           the same network
    relmo                          the same without input feeding, so that the decoder's LSTM runs over all units at
    once

    Kreutzer, Bastings & Riezler 2019, Joey NMT: a minimalist NMT toolkit for novices
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.clock import Case
from relmo.networks.inputs import TaskBatch, TaskNetwork, WordBatch, WordInputs
from relmo.networks.language_model import Loss
from relmo.networks.seq2seq import Seq2SeqNetwork, TargetUnits
from relmo.nn.recurrence import State
from relmo.settings.tasks import SearchSettings, Seq2SeqInputSettings, Seq2SeqModelSettings, Seq2SeqTrainSettings
from relmo.tasks.seq2seq import search_targets
from relmo.training.batch import move_to_device
from relmo.training.loop import Trainer

NUM_UNITS, SIZE = 8000, 256  # of both vocabularies; of embeddings and layers
UNKNOWN, END = 0, 1
MAX_UNITS = 40  # of a sentence
NUM_BATCHES = 1 << 30  # practically endless


class PlainJoey(nn.Module):
    """Joey NMT's recurrent network, with the weights of a relmo network with additive attention and input feeding."""

    def __init__(self, network: TaskNetwork):
        super().__init__()
        body = network.body
        assert network.inputs.words is not None
        assert body.attention is not None
        assert body.readout is not None
        self.source = nn.Embedding.from_pretrained(network.inputs.words.weight.detach().clone(), freeze=False)
        self.target = nn.Embedding.from_pretrained(body.embedding.weight.detach().clone(), freeze=False)
        hidden = body.decoder.cells[0][0].hidden_size
        self.encoder = nn.LSTM(self.source.embedding_dim, hidden, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(self.target.embedding_dim + hidden, hidden, batch_first=True)
        _copy_weights(self.encoder, body.encoder.recurrent.cells[0])
        _copy_weights(self.decoder, body.decoder.cells[0])
        self.bridge = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(2))
        self.key, self.query = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.energy = nn.Linear(hidden, 1, bias=False)
        self.vector = nn.Linear(3 * hidden, hidden)
        self.output = nn.Linear(hidden, len(body.output.weight))
        attention = body.attention
        sources = [*body.bridge, attention.of_memory, attention.of_query, attention.v, body.readout, body.output]
        layers = [*self.bridge, self.key, self.query, self.energy, self.vector, self.output]
        for layer, source in zip(layers, sources, strict=True):
            layer.load_state_dict({name: p.detach() for name, p in source.named_parameters()})

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
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

    def loss(self, batch: TaskBatch, carry: State | None = None) -> Loss:
        """Return the loss of a batch for the training loop."""
        source, (inputs, positions, units) = batch.texts[0], batch.targets
        assert source.words is not None
        logits = self(source.words, source.lengths, inputs)
        targets = torch.full_like(inputs.flatten(), -100)
        targets[positions] = units
        return Loss(cross_entropy(logits.flatten(0, 1), targets), batch.predictions, ())


def _copy_weights(layer: nn.LSTM, cells: Sequence[nn.Module]) -> None:
    """Copy the weights of one layer's cells, forward before backward."""
    with torch.no_grad():
        for cell, suffix in zip(cells, ("_l0", "_l0_reverse"), strict=False):
            for name, weight in cell.named_parameters():
                getattr(layer, name + suffix).copy_(weight)


class RepeatedBatches:
    """Endless repetition of some batches."""

    def __init__(self, batches: Sequence[TaskBatch]):
        self.batches = batches

    def __len__(self) -> int:
        return NUM_BATCHES

    def get(self, epoch: int, index: int) -> TaskBatch:
        """Return the batch with this index, whatever the epoch."""
        return self.batches[index % len(self.batches)]


class TranslationBench:
    """Cases of sequence to sequence; the target of a sentence is another sentence of the same text."""

    def __init__(self, sentences: Sequence[Sequence[str]], *, device: torch.device, count: int = 128):
        torch.manual_seed(0)
        self.device = device
        index: dict[str, int] = {}
        ids = [[index.setdefault(word, len(index)) % (NUM_UNITS - 2) + 2 for word in s[:MAX_UNITS]] for s in sentences]
        self.ids = sorted(ids[:count], key=len)
        self.network = make_network(input_feeding=True).to(device).eval()

    def decoding_cases(self) -> list[Case]:
        """Return the cases of decoding, whose tokens are sentences."""
        facts: dict[str, Any] = {"precision": "float32"}
        n = len(self.ids)
        return [
            Case("textbook greedy, one by one", n, self.decode_single, facts=facts | {"baseline": True}),
            Case("relmo greedy, batched", n, lambda: self.decode_batch(1), facts=facts),
            Case("relmo beam 5, batched", n, lambda: self.decode_batch(5), facts=facts),
        ]

    def training_cases(self) -> list[Case]:
        """Return the cases of training, whose tokens are units."""
        joey = PlainJoey(self.network).to(self.device)
        units = sum(len(ids) + 1 for ids in self.ids)
        batches = RepeatedBatches([self.batch(self.ids, targets=True)])
        cases = []
        for name, network in (
            ("Joey NMT's network, plain torch", joey),
            ("relmo, input feeding", make_network(input_feeding=True).to(self.device)),
            ("relmo", make_network(input_feeding=False).to(self.device)),
        ):
            steps = Trainer(network, batches, Seq2SeqTrainSettings(epochs=1.0)).steps()
            facts = {"precision": "float32", "baseline": network is joey}
            cases.append(Case(name, units, lambda steps=steps: next(steps), facts=facts))  # type: ignore[misc]
        return cases

    def batch(self, sources: Sequence[Sequence[int]], *, targets: bool = False) -> TaskBatch:
        """Return a batch of sentences; with `targets`, the target of each is the sentence before it."""
        lengths = torch.tensor([len(ids) for ids in sources])
        words = torch.zeros(len(sources), int(lengths.max()), dtype=torch.int64)
        for row, ids in zip(words, sources, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        source = WordBatch(lengths, words)
        if not targets:
            return move_to_device(TaskBatch([source]), self.device)
        target_ids = [sources[i - 1] for i in range(len(sources))]
        inputs = torch.full((len(sources), max(map(len, target_ids)) + 1), END)
        mask = np.zeros(inputs.shape, dtype=bool)
        for row, row_mask, ids in zip(inputs, mask, target_ids, strict=True):
            row[1 : len(ids) + 1] = torch.tensor(ids)
            row_mask[: len(ids) + 1] = True
        outputs = torch.tensor([unit for ids in target_ids for unit in (*ids, END)])
        positions = torch.from_numpy(np.flatnonzero(mask))
        return move_to_device(TaskBatch([source], TargetUnits(inputs, positions, outputs), len(outputs)), self.device)

    @torch.no_grad()
    def decode_single(self) -> list[list[int]]:
        """Return the units of each target by the textbook loop."""
        body, decoded = self.network.body, []
        for ids in self.ids:
            source = self.network(self.batch([ids]))
            state, unit, target = body.initial_state(source), END, []
            for _ in ids:
                log_probs, state = body.step(torch.tensor([unit], device=self.device), state, source)
                log_probs[:, [UNKNOWN, END]] = -torch.inf
                unit = int(log_probs.argmax())
                target.append(unit)
            decoded.append(target)
        return decoded

    @torch.no_grad()
    def decode_batch(self, beams: int) -> list[list[int]]:
        """Return the units of each sentence's best target by relmo's beam search."""
        source = self.network(self.batch(self.ids))
        settings, limits = SearchSettings(beams=beams, length_penalty=0.0), source.mask.sum(dim=1)
        hypotheses = search_targets(self.network.body, source, settings, limits, end=END, banned=[UNKNOWN, END])
        return [beam[0].ids for beam in hypotheses]


def make_network(*, input_feeding: bool) -> TaskNetwork:
    """Return a network with random weights."""
    inputs = WordInputs(Seq2SeqInputSettings(word_dim=SIZE), num_words=NUM_UNITS)
    settings = Seq2SeqModelSettings(hidden=SIZE, target_dim=SIZE, input_feeding=input_feeding, dropout=0.0)
    body = Seq2SeqNetwork(settings, input_size=SIZE, vocab_size=NUM_UNITS)
    return TaskNetwork(inputs, body)
