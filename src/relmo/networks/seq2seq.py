"""A text to another text: an encoder, a decoder, and what passes between them.

    h_1 … h_S = encoder(x_1 … x_S)                                       recurrent layers, one way or both
    s_0  = W [forward; backward] + b                                     of each layer; h through tanh
    s_t  = decoder([y_{t-1}; f_t], s_{t-1})                              y_{t-1} the unit before; y_0 the end of a text
    r_t  = tanh(W_r [c_t; s_t] + b_r)                                    what is read out
    p(y_t) = softmax(W_o r_t + b_o)                                      W_o may be the units' vectors (tied)

    attention        c_t = sum_j a_tj h_j (`nn/query_attention.py`); f_t is nothing, or with input feeding r_{t-1}
    none, start      there is no c_t: r_t = s_t, and the source is in s_0 alone (Sutskever et al. 2014)
    none, every      c_t = f_t = where the encoder ended, at every step (Cho et al. 2014)

The query is the decoder's state after y_{t-1} for every score, as Luong et al. have it; Bahdanau et al. ask with the
state before and put c_t into the decoder's input. Input feeding does that one step later.

`decode_steps` is the definition. Where no step needs what the step before has put out, `decode_whole` runs the
decoder's layers over all units at once.

    Sutskever, Vinyals & Le 2014, Sequence to sequence learning with neural networks
    Cho et al. 2014, Learning phrase representations using RNN encoder-decoder
    Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate
    Luong, Pham & Manning 2015, Effective approaches to attention-based neural machine translation
    Bengio et al. 2015, Scheduled sampling for sequence prediction with recurrent neural networks
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from relmo.networks.inputs import TaskNetwork, WordBatch, WordInputs
from relmo.networks.language_model import Loss
from relmo.networks.sentence_encoder import Encoded, SentenceEncoder, with_again
from relmo.nn.cells import State, make_cell
from relmo.nn.dropout import drop
from relmo.nn.initialise import initialise
from relmo.nn.pooling import blank, inside
from relmo.nn.query_attention import QueryAttention, ScoreName
from relmo.nn.recurrent import Recurrent
from relmo.nn.softmax import FullSoftmax
from relmo.settings.cells import CellName


class TranslationBatch(NamedTuple):
    """Sources side by side, and in training their targets.

    inputs     (B, T): what the decoder reads, the end of a text first; padded with it
    places     (N,): where in the flattened (B * T) there is something to predict
    targets    (N,): what that is
    """

    source: WordBatch
    inputs: Tensor | None = None
    places: Tensor | None = None
    targets: Tensor | None = None
    predictions: int = 0


class EncodedSource(NamedTuple):
    """What a decoder is given of B sources.

    memory, keys   (B, S, D), (B, S, K): what is attended to, zero past the end; with no attention (B, S, 0)
    mask           (B, S): where there is a unit
    vector         (B, D): where the encoder ended
    state          the decoder's first state, flat, as `Recurrent` has it
    """

    memory: Tensor
    keys: Tensor
    mask: Tensor
    vector: Tensor
    state: State

    def of(self, which: Tensor) -> "EncodedSource":
        """The sources of these numbers (N,)."""
        parts = {name: part[which] for name, part in self._asdict().items() if name != "state"}
        return EncodedSource(**parts, state=tuple(part[which] for part in self.state))


class Decoded(NamedTuple):
    """What is read out at each step (B, T, R), and the attention of each (B, T, S); no weights without attention."""

    readout: Tensor
    weights: Tensor


class Seq2SeqNetwork(nn.Module):
    """The network behind the source's inputs.

    units           how many units the decoder writes
    feeding         input feeding
    every           attention none: each step reads the source's vector
    sampling, ramp  scheduled sampling: its share, and the steps over which it rises from 0
    """

    steps: Tensor

    def __init__(
        self,
        *,
        input_size: int,
        units: int,
        again_size: int = 0,
        hidden: int = 256,
        cell: CellName = "lstm",
        layers: int = 1,
        bidirectional: bool = True,
        attention: ScoreName | Literal["none"] = "additive",
        every: bool = False,
        feeding: bool = False,
        unit_size: int = 256,
        tied: bool = False,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
        sampling: float = 0.0,
        ramp: int = 10_000,
    ):
        super().__init__()
        self.vocab_size, self.every, self.feeding, self.again_size = units, every, feeding, again_size
        self.dropout, self.label_smoothing, self.sampling, self.ramp = dropout, label_smoothing, sampling, ramp
        self.encoder = SentenceEncoder(
            input_size=input_size,
            hidden=hidden,
            cell=cell,
            layers=layers,
            bidirectional=bidirectional,
            dropout=dropout,
        )
        own = self.encoder.own_size
        self.summed = attention == "dot" and bidirectional  # dot compares vectors of one size
        memory = (own // 2 if self.summed else own) + again_size
        readout = unit_size if tied else hidden
        more = readout if feeding else own if every else 0
        self.decoder = Recurrent(make_cell(cell, hidden), input_size=unit_size + more, layers=layers, dropout=dropout)
        bridges = len(self.decoder.initial_state(0)) if bidirectional else 0
        self.bridge = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(bridges))
        self.attention = (
            None
            if attention == "none"
            else QueryAttention(attention, query_size=hidden, memory_size=memory, hidden=hidden)
        )
        context = memory if self.attention is not None else own if every else 0
        self.readout = nn.Linear(context + hidden, readout) if context or readout != hidden else None
        self.readout_size = readout
        self.output = FullSoftmax(readout, units)
        initialise(self)
        self.embedding = nn.Embedding(units, unit_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if tied:
            self.output.weight = self.embedding.weight  # type: ignore[assignment]
        if sampling:
            self.register_buffer("steps", torch.zeros(()))

    def encode(self, sentences: Encoded) -> EncodedSource:
        """Reads B sources: x (B, S, I), lengths (B,), and ELMo's vectors for the memory where there are such."""
        x, lengths, again = sentences
        read = self.encoder.recurrent(self.encoder.dropout(blank(x, lengths)), None, lengths.clamp(min=1))
        y = blank(read.output, lengths)
        if self.summed:
            y = sum(y.chunk(2, dim=2))  # type: ignore[assignment]
        memory = with_again(y, lengths, again, self.again_size)
        keys = memory[..., :0] if self.attention is None else self.attention.keys(memory)
        ends = self._ends(read.state)
        return EncodedSource(memory, keys, inside(lengths.to(x.device), x.shape[1]), ends[-1], self._bridged(ends))

    def _ends(self, state: State) -> list[Tensor]:
        """Of each state of each layer, where the encoder's directions ended, side by side; the top layer's h last."""
        each = len(self.encoder.recurrent.cells[0][0].states)
        ways = self.encoder.recurrent.directions
        layers = [state[i : i + each * ways] for i in range(0, len(state), each * ways)]
        ends = [torch.cat(layer[k::each], dim=1) for layer in layers for k in range(each)]
        return [*ends, ends[-each]]

    def _bridged(self, ends: list[Tensor]) -> State:
        """The decoder's first state from where the encoder ended."""
        if not self.bridge:
            return tuple(ends[:-1])
        each = len(self.decoder.cells[0][0].states)
        made = [bridge(end) for bridge, end in zip(self.bridge, ends[:-1], strict=True)]
        return tuple(torch.tanh(tensor) if i % each == 0 else tensor for i, tensor in enumerate(made))

    def first_state(self, source: EncodedSource, beams: int = 1) -> State:
        """What `step` carries before anything is written, a row for each beam of each source: the decoder's state; with
        input feeding what was read out; with attention how much each unit of the source has got so far (rows, S)."""
        state = [tensor.repeat_interleave(beams, dim=0) for tensor in source.state]
        rows = len(source.mask) * beams
        if self.feeding:
            state.append(source.memory.new_zeros(rows, self.readout_size))
        if self.attention is not None:
            state.append(source.memory.new_zeros(rows, source.mask.shape[1]))
        return tuple(state)

    def step(self, ids: Tensor, state: State, source: EncodedSource) -> tuple[Tensor, State]:
        """Reads one unit of each row (B * beams,). -> log-probabilities (rows, V) of the next, and the new state."""
        readout, state, _ = self._advance(ids, state, source)
        return self.output.log_probs(readout), state

    def _advance(self, ids: Tensor, state: State, source: EncodedSource) -> tuple[Tensor, State, Tensor]:
        """One step: what is read out (rows, R), the new state, and the attention (rows, S)."""
        own, more = state[: len(source.state)], list(state[len(source.state) :])
        parts = [drop(self.embedding(ids), self.dropout, self.training)]
        if self.feeding:
            parts.append(more.pop(0))
        if self.every:
            parts.append(source.vector.repeat_interleave(len(ids) // len(source.vector), dim=0))
        run = self.decoder(torch.cat(parts, dim=1).unsqueeze(1), own)
        beside = run.output.view(len(source.mask), -1, run.output.shape[2])  # the beams of a source ask together
        decoded = self._read_out(beside, source)
        readout, weights = (tensor.flatten(0, 1) for tensor in decoded)
        fed = [readout] if self.feeding else []
        covered = [more[0] + weights] if self.attention is not None else []
        return readout, (*run.state, *fed, *covered), weights

    def _read_out(self, states: Tensor, source: EncodedSource) -> Decoded:
        """r_t from the decoder's states (B, T, H)."""
        parts, weights = [states], states.new_zeros(*states.shape[:2], 0)
        if self.attention is not None:
            context, weights = self.attention(states, source.keys, source.memory, source.mask)
            parts.insert(0, context)
        elif self.every:
            parts.insert(0, source.vector.unsqueeze(1).expand(-1, states.shape[1], -1))
        readout = states if self.readout is None else torch.tanh(self.readout(torch.cat(parts, dim=2)))
        return Decoded(drop(readout, self.dropout, self.training), weights)

    def decode(self, source: EncodedSource, inputs: Tensor) -> Decoded:
        """The decoder over given units (B, T), in the fastest way there is."""
        sampled = self.training and self.sampling
        return self.decode_steps(source, inputs) if self.feeding or sampled else self.decode_whole(source, inputs)

    def decode_whole(self, source: EncodedSource, inputs: Tensor) -> Decoded:
        """All steps at once, where none needs what another has put out."""
        x = drop(self.embedding(inputs), self.dropout, self.training)  # (B, T, E)
        if self.every:
            x = torch.cat([x, source.vector.unsqueeze(1).expand(-1, x.shape[1], -1)], dim=2)
        return self._read_out(self.decoder(x, source.state).output, source)

    def decode_steps(self, source: EncodedSource, inputs: Tensor) -> Decoded:
        """The definition: a unit at a time, each the given one or, with scheduled sampling, sometimes the guess."""
        state = self.first_state(source)
        readouts, weights = [], []
        ids = inputs[:, 0]
        share = self.sampling * (self.steps / self.ramp).clamp(max=1.0) if self.sampling and self.training else None
        for t in range(inputs.shape[1]):
            readout, state, attended = self._advance(ids, state, source)
            readouts.append(readout)
            weights.append(attended)
            if t + 1 < inputs.shape[1]:
                ids = inputs[:, t + 1]
                if share is not None:
                    guesses = self.output.logits(readout.detach()).argmax(dim=1)
                    ids = torch.where(torch.rand(ids.shape, device=ids.device) < share, guesses, ids)
        return Decoded(torch.stack(readouts, dim=1), torch.stack(weights, dim=1))

    def loss(self, decoded: Decoded, places: Tensor, targets: Tensor) -> Tensor:
        """The mean of -log p(y_t) over the units to predict; smoothed, that of sum_k q(k) * -log p(k) where q has the
        target with 1 - eps, and all units with eps / V more."""
        if self.sampling and self.training:
            self.steps += 1
        readout = decoded.readout.flatten(0, 1).index_select(0, places)  # (N, R)
        if not self.label_smoothing:
            return self.output.loss(readout, targets)
        return cross_entropy(self.output.logits(readout).float(), targets, label_smoothing=self.label_smoothing)


class TranslatingNetwork(TaskNetwork):
    """The inputs of the source, and the network."""

    body: Seq2SeqNetwork

    def __init__(self, inputs: WordInputs, body: Seq2SeqNetwork):
        super().__init__(inputs, body)

    def forward(self, batch: TranslationBatch) -> EncodedSource:
        """The sources, read."""
        return self.body.encode(self.inputs(batch.source))

    def loss(self, batch: TranslationBatch, carry: State | None = None) -> Loss:
        """The loss of a batch with targets."""
        assert batch.inputs is not None
        assert batch.places is not None
        assert batch.targets is not None
        decoded = self.body.decode(self(batch), batch.inputs)
        mean = self.body.loss(decoded, batch.places, batch.targets)
        return Loss(mean + self.inputs.penalty(), batch.predictions, ())
