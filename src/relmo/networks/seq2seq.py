"""Sequence-to-sequence network: encoder, decoder and attention.

    h_1 … h_S = encoder(x_1 … x_S)                                       recurrent layers, forward or bidirectional
    s_0  = W [forward; backward] + b                                     for each layer and state; h through tanh
    s_t  = decoder([y_{t-1}; f_t], s_{t-1})                              y_{t-1} the previous unit; y_0 the end of text
    r_t  = tanh(W_r [c_t; s_t] + b_r)                                    the readout
    p(y_t) = softmax(W_o r_t + b_o)                                      W_o may be the unit embeddings (tied)

    attention        c_t = sum_j a_tj h_j (`nn/query_attention.py`); f_t is empty, or r_{t-1} with input feeding
    none, start      no c_t: r_t = s_t, and the source is in s_0 alone (Sutskever et al. 2014)
    none, every      c_t = f_t = the final output of the encoder, at every step (Cho et al. 2014)

The query is the state of the decoder after y_{t-1} for every score, as in Luong et al.; Bahdanau et al. query with the
state before and put c_t into the input of the decoder. Input feeding does that one step later. Cells with states other
than h and a vector memory, such as a matrix and its normaliser, start the decoder from those of the forward layers.

`decode_steps` is the definition. If no step needs the output of the previous one, `decode` runs the layers of the
decoder over all units at once.

    Sutskever, Vinyals & Le 2014, Sequence to sequence learning with neural networks
    Cho et al. 2014, Learning phrase representations using RNN encoder-decoder
    Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate
    Luong, Pham & Manning 2015, Effective approaches to attention-based neural machine translation
    Bengio et al. 2015, Scheduled sampling for sequence prediction with recurrent neural networks
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from relmo.networks.cells import cell_of
from relmo.networks.inputs import Encoded, SentenceEncoder, append_elmo, encoder_options
from relmo.nn.attention import QueryAttention
from relmo.nn.dropout import drop
from relmo.nn.pooling import final, length_mask, mask_padding
from relmo.nn.recurrence import State, initialise
from relmo.nn.recurrence.stack import Recurrent
from relmo.nn.softmax import FullSoftmax
from relmo.settings.tasks import Seq2SeqModelSettings


class TargetUnits(NamedTuple):
    """Targets of a batch of sources, in training."""

    inputs: Tensor  # (B, T): input of the decoder, starting with the end of text; padded with it
    positions: Tensor  # (N,): indices of the predictions in the flattened (B * T)
    units: Tensor  # (N,): units to predict


class EncodedSource(NamedTuple):
    """Input of the decoder for B sources."""

    memory: Tensor  # (B, S, D): what is attended to, zero in the padding
    keys: Tensor  # (B, S, K); (B, S, 0) without attention
    mask: Tensor  # (B, S): true for units
    vector: Tensor  # (B, D): final output of the encoder
    state: State  # initial state of the decoder, flat, as in `Recurrent`

    def select(self, indices: Tensor) -> "EncodedSource":
        """Return the sources with these indices (N,)."""
        parts = {name: part[indices] for name, part in self._asdict().items() if name != "state"}
        return EncodedSource(**parts, state=tuple(part[indices] for part in self.state))


class Decoded(NamedTuple):
    """Readout of each step (B, T, R), and its attention weights (B, T, S), or (B, T, 0) without attention."""

    readout: Tensor
    weights: Tensor


class Seq2SeqNetwork(nn.Module):
    """Network behind the inputs of the source; `vocab_size` is the number of target units."""

    steps: Tensor

    def __init__(self, settings: Seq2SeqModelSettings, *, input_size: int, vocab_size: int, elmo_size: int = 0):
        super().__init__()
        hidden, bidirectional = settings.hidden, settings.directions == 2
        self.vocab_size, self.elmo_size = vocab_size, elmo_size
        self.reads_vector = settings.context == "every"  # each step reads the vector of the source
        self.feeding = settings.input_feeding
        self.dropout, self.label_smoothing = settings.dropout, settings.label_smoothing
        self.sampling, self.sampling_steps = settings.sampling, settings.sampling_steps
        options = encoder_options(settings)
        self.encoder = SentenceEncoder(input_size=input_size, bidirectional=bidirectional, **options)
        encoder_size = self.encoder.hidden_size
        self.summed = settings.attention == "dot" and bidirectional  # dot needs vectors of one size
        memory = (encoder_size // 2 if self.summed else encoder_size) + elmo_size
        readout = settings.target_dim if settings.tied else hidden
        fed_size = readout if self.feeding else encoder_size if self.reads_vector else 0
        self.decoder = Recurrent(
            cell_of(settings),
            input_size=settings.target_dim + fed_size,
            layers=settings.layers,
            dropout=settings.dropout,
        )
        cell = self.decoder.cells[0][0]
        sizes = [cell.sizes[name] for name in cell.states] * settings.layers
        # A linear map would not preserve what holds between a memory, its normaliser and its stabiliser.
        has_bridge = bidirectional and {*cell.states} <= {*cell.unit_states}
        self.bridge = nn.ModuleList(nn.Linear(2 * size, size) for size in sizes if has_bridge)
        self.attention = None
        if settings.attention != "none":
            query_size = self.decoder.output_size
            self.attention = QueryAttention(
                settings.attention, query_size=query_size, memory_size=memory, hidden=hidden
            )
        context = memory if self.attention is not None else encoder_size if self.reads_vector else 0
        states = self.decoder.output_size
        self.readout = nn.Linear(context + states, readout) if context or readout != states else None
        self.readout_size = readout
        self.output = FullSoftmax(readout, vocab_size)
        initialise(self)
        self.embedding = nn.Embedding(vocab_size, settings.target_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if settings.tied:
            self.output.weight = self.embedding.weight  # type: ignore[assignment]
        if self.sampling:
            self.register_buffer("steps", torch.zeros(()))

    def forward(self, sentences: Encoded) -> EncodedSource:
        """Encode B sources."""
        x, lengths, elmo = sentences
        run = self.encoder.recurrent(self.encoder.dropout(mask_padding(x, lengths)), None, lengths.clamp(min=1))
        y = mask_padding(run.output, lengths)
        if self.summed:
            y = sum(y.chunk(2, dim=2))  # type: ignore[assignment]
        memory = append_elmo(y, lengths, elmo, self.elmo_size)
        keys = memory[..., :0] if self.attention is None else self.attention.keys(memory)
        names, directions = self.encoder.recurrent.cells[0][0].states, self.encoder.recurrent.directions
        num_states = len(names)
        stride = num_states * directions
        layers = [run.state[i : i + stride] for i in range(0, len(run.state), stride)]
        if names[0] == "h":
            vector = torch.cat(layers[-1][::num_states], dim=1)
        else:  # h is not carried
            vector = final(run.output, lengths, directions=directions)
        if self.bridge:  # the directions of each state side by side
            ends = [torch.cat(layer[k::num_states], dim=1) for layer in layers for k in range(num_states)]
            mapped = [bridge(end) for bridge, end in zip(self.bridge, ends, strict=True)]
            ends = [torch.tanh(end) if names[i % num_states] == "h" else end for i, end in enumerate(mapped)]
        else:
            ends = [tensor for layer in layers for tensor in layer[:num_states]]
        return EncodedSource(memory, keys, length_mask(lengths.to(x.device), x.shape[1]), vector, tuple(ends))

    def initial_state(self, source: EncodedSource, beams: int = 1) -> State:
        """Return the state before `step`, a row per beam: the decoder's, [the fed readout, coverage (rows, S)]."""
        state = [tensor.repeat_interleave(beams, dim=0) for tensor in source.state]
        rows = len(source.mask) * beams
        if self.feeding:
            state.append(source.memory.new_zeros(rows, self.readout_size))
        if self.attention is not None:
            state.append(source.memory.new_zeros(rows, source.mask.shape[1]))
        return tuple(state)

    def step(self, ids: Tensor, state: State, source: EncodedSource) -> tuple[Tensor, State]:
        """Read one unit of each row (B * beams,); return log-probabilities (rows, V) of the next, and the new state."""
        readout, state, _ = self._advance(ids, state, source)
        return self.output.log_probs(readout), state

    def _advance(self, ids: Tensor, state: State, source: EncodedSource) -> tuple[Tensor, State, Tensor]:
        """Return the readout (rows, R), the new state, and the attention weights (rows, S) of one step."""
        decoder_state, extra = state[: len(source.state)], list(state[len(source.state) :])
        parts = [drop(self.embedding(ids), self.dropout, self.training)]
        if self.feeding:
            parts.append(extra.pop(0))
        if self.reads_vector:
            parts.append(source.vector.repeat_interleave(len(ids) // len(source.vector), dim=0))
        run = self.decoder(torch.cat(parts, dim=1).unsqueeze(1), decoder_state)
        queries = run.output.view(len(source.mask), -1, run.output.shape[2])  # the beams of a source together
        decoded = self._read_out(queries, source)
        readout, weights = (tensor.flatten(0, 1) for tensor in decoded)
        fed = [readout] if self.feeding else []
        coverage = [extra[0] + weights] if self.attention is not None else []
        return readout, (*run.state, *fed, *coverage), weights

    def _read_out(self, states: Tensor, source: EncodedSource) -> Decoded:
        """Compute r_t from the states of the decoder (B, T, H)."""
        parts, weights = [states], states.new_zeros(*states.shape[:2], 0)
        if self.attention is not None:
            context, weights = self.attention(states, source.keys, source.memory, source.mask)
            parts.insert(0, context)
        elif self.reads_vector:
            parts.insert(0, source.vector.unsqueeze(1).expand(-1, states.shape[1], -1))
        readout = states if self.readout is None else torch.tanh(self.readout(torch.cat(parts, dim=2)))
        return Decoded(drop(readout, self.dropout, self.training), weights)

    def decode(self, source: EncodedSource, inputs: Tensor) -> Decoded:
        """Run the decoder over given units (B, T), all steps at once if none needs the output of another."""
        if self.feeding or (self.training and self.sampling):
            return self.decode_steps(source, inputs)
        x = drop(self.embedding(inputs), self.dropout, self.training)  # (B, T, E)
        if self.reads_vector:
            x = torch.cat([x, source.vector.unsqueeze(1).expand(-1, x.shape[1], -1)], dim=2)
        return self._read_out(self.decoder(x, source.state).output, source)

    def decode_steps(self, source: EncodedSource, inputs: Tensor) -> Decoded:
        """Run one step at a time, the definition; with scheduled sampling some inputs are predictions."""
        state = self.initial_state(source)
        readouts, weights = [], []
        ids = inputs[:, 0]
        rate = None
        if self.sampling and self.training:
            rate = self.sampling * (self.steps / self.sampling_steps).clamp(max=1.0)
        for t in range(inputs.shape[1]):
            readout, state, step_weights = self._advance(ids, state, source)
            readouts.append(readout)
            weights.append(step_weights)
            if t + 1 < inputs.shape[1]:
                ids = inputs[:, t + 1]
                if rate is not None:
                    predictions = self.output.logits(readout.detach()).argmax(dim=1)
                    ids = torch.where(torch.rand(ids.shape, device=ids.device) < rate, predictions, ids)
        return Decoded(torch.stack(readouts, dim=1), torch.stack(weights, dim=1))

    def loss(self, source: EncodedSource, targets: TargetUnits) -> Tensor:
        """Return the mean of -log p(y_t) over the targets; with label smoothing that of sum_k q(k) * -log p(k), where q
        is 1 - eps for the target, plus eps / V for all units."""
        decoded = self.decode(source, targets.inputs)
        if self.sampling and self.training:
            self.steps += 1
        readout = decoded.readout.flatten(0, 1).index_select(0, targets.positions)  # (N, R)
        if not self.label_smoothing:
            return self.output.loss(readout, targets.units)
        return cross_entropy(self.output.logits(readout).float(), targets.units, label_smoothing=self.label_smoothing)
