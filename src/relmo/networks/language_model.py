"""Language models: p(next symbol | all previous symbols), with the past in an explicit state.

Recurrent, fixed-window and n-gram models share one interface, over ids; `Network` is any of them. Those that are
trained by gradient descent are `NeuralLM`s, which also have `loss(window, carry)`.

    Mikolov et al. 2010, Recurrent neural network based language model;  Press & Wolf 2017 (tied embeddings)
    Merity et al. 2018, Regularizing and optimizing LSTM language models (dropouts, penalties)
    Bengio et al. 2003, A neural probabilistic language model (fixed window)
"""

import os
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from relmo.errors import SettingError
from relmo.networks.cells import cell_of
from relmo.networks.ngram import NGramLM
from relmo.nn.dropout import SequenceDropout, drop_words
from relmo.nn.recurrence import State
from relmo.nn.recurrence.stack import Recurrent, RecurrentOutput
from relmo.nn.softmax import AdaptiveSoftmax, FullSoftmax, MixtureSoftmax, SampledSoftmax
from relmo.settings.lm import LanguageModelSettings


class Window(NamedTuple):
    """Window of truncated back-propagation: targets[b, t] is the symbol after inputs[b, t]; both (B, T)."""

    inputs: Tensor
    targets: Tensor


class Loss(NamedTuple):
    """Mean training loss, the number of predictions it averages, and the state (detached) for the next batch."""

    mean: Tensor
    predictions: int
    carry: State


class NeuralLM(nn.Module):
    """Language model of features of the past and an output layer; a state is a tuple of tensors, batch first."""

    vocab_size: int
    softmax: FullSoftmax | AdaptiveSoftmax | MixtureSoftmax

    def initial_state(self, batch: int) -> State:
        """Return the state before a text."""
        raise NotImplementedError

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the input of the output layer at each position, (B, T) ids -> (B, T, D), and the final state."""
        raise NotImplementedError

    def loss(self, window: Window, carry: State | None) -> Loss:
        """Return the training loss of a window; `carry` is the final state of the previous one."""
        state = self.initial_state(len(window.inputs)) if carry is None else carry
        x, state = self.features(window.inputs, state)
        mean = self.softmax.loss(x, window.targets)
        return Loss(mean, window.targets.numel(), tuple(tensor.detach() for tensor in state))

    def nll(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the exact negative log-likelihoods (B, T) of the targets, and the state after them."""
        x, state = self.features(inputs, state)
        return self.softmax.nll(x.flatten(0, 1), targets.flatten()).view(targets.shape), state

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one symbol (B,); return log-probabilities (B, V) of the next, and the new state."""
        x, state = self.features(ids.unsqueeze(1), state)
        return self.log_probs(x[:, 0]), state

    def log_probs(self, features: Tensor) -> Tensor:
        """Return the distribution over the next symbol, (N, D) -> (N, V)."""
        return self.softmax.log_probs(features)


Network = NeuralLM | NGramLM


class Encoder(nn.Module):
    """Embedding and recurrent layers, the part of a language model that other networks reuse."""

    def __init__(self, settings: LanguageModelSettings, *, vocab_size: int):
        super().__init__()
        size = settings.embedding or settings.hidden
        last = replace(settings, hidden=settings.last_hidden or settings.hidden)
        recurrent = Recurrent(
            [cell_of(settings)] * (settings.layers - 1) + [cell_of(last)],
            input_size=size,
            residual=settings.residual,
            dropout=settings.dropout,
            variational=settings.variational,
            weight_drop=settings.weight_drop,
        )
        self.embedding = nn.Embedding(vocab_size, size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.word_dropout = settings.word_dropout
        self.input_dropout = SequenceDropout(settings.input_dropout, variational=settings.variational)
        self.recurrent = recurrent  # created first and registered last, as in saved models

    def forward(self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None) -> RecurrentOutput:
        """Encode ids (B, T), with lengths (B,) if they are padded: outputs (B, T, H) and the final states."""
        x = embedding(ids, drop_words(self.embedding.weight, self.word_dropout, self.training))
        return self.recurrent(self.input_dropout(x), state, lengths)


class RecurrentLM(NeuralLM):
    """embedding -> recurrent layers -> dropout -> (bottleneck, if tied sizes differ) -> output layer."""

    def __init__(self, settings: LanguageModelSettings, *, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        size = settings.embedding or settings.hidden
        self.encoder = Encoder(settings, vocab_size=vocab_size)
        output_dropout = settings.dropout if settings.output_dropout is None else settings.output_dropout
        self.dropout = SequenceDropout(output_dropout, variational=settings.variational)
        width = self.encoder.recurrent.output_size
        self.activation_penalty, self.temporal_penalty = settings.activation_penalty, settings.temporal_penalty
        has_bottleneck = settings.tied and width != size and settings.softmax != "mixture"
        self.bottleneck = nn.Linear(width, size) if has_bottleneck else None
        self.softmax = make_softmax(settings, size if has_bottleneck else width, vocab_size)
        if settings.tied:
            layer = self.softmax.output if isinstance(self.softmax, MixtureSoftmax) else self.softmax
            layer.weight = self.encoder.embedding.weight

    @property
    def graphs(self) -> bool:
        """Whether training steps can be recorded: nothing in them waits for the device, and no dropout is cuDNN's.

        Only with RELMO_GRAPHS=1: what it gains has not been measured."""
        if os.environ.get("RELMO_GRAPHS") != "1" or isinstance(self.softmax, AdaptiveSoftmax):
            return False
        between_layers = self.encoder.recurrent.dropout
        return between_layers.variational or not between_layers.p

    def initial_state(self, batch: int) -> State:
        return self.encoder.recurrent.initial_state(batch)

    def features(self, inputs: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        run = self.encoder(inputs, state, lengths)
        return self._reduce(self.dropout(run.output)), run.state

    def loss(self, window: Window, carry: State | None) -> Loss:
        state = self.initial_state(len(window.inputs)) if carry is None else carry
        run = self.encoder(window.inputs, state)
        x = self.dropout(run.output)
        mean = self.softmax.loss(self._reduce(x), window.targets)
        if self.training and self.activation_penalty:
            mean = mean + self.activation_penalty * x.float().square().mean()
        if self.training and self.temporal_penalty and x.shape[1] > 1:
            mean = mean + self.temporal_penalty * run.output.float().diff(dim=1).square().mean()
        return Loss(mean, window.targets.numel(), tuple(tensor.detach() for tensor in run.state))

    def _reduce(self, x: Tensor) -> Tensor:
        return x if self.bottleneck is None else self.bottleneck(x)


class FeedforwardLM(NeuralLM):
    """Fixed-window model of Bengio et al. 2003, a baseline for recurrent ones:   y = b + W x + U tanh(d + H x)

    x is the concatenation of the embeddings of the last order - 1 symbols; W, the direct connections, and U share one
    output layer over the features (x, tanh(d + H x)). The state is the last order - 2 symbols, (B, order - 2), which
    form the window with the next one.
    """

    def __init__(self, settings: LanguageModelSettings, *, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.window = settings.order - 1
        size = settings.embedding or settings.hidden
        self.embedding = nn.Embedding(vocab_size + 1, size)  # the last row is that of positions before the text
        self.input_dropout = SequenceDropout(settings.input_dropout)
        self.hidden = nn.Linear(self.window * size, settings.hidden)
        self.dropout = SequenceDropout(settings.dropout if settings.output_dropout is None else settings.output_dropout)
        self.softmax = make_softmax(settings, self.window * size + settings.hidden, vocab_size)

    def initial_state(self, batch: int) -> State:
        return (torch.full((batch, self.window - 1), self.vocab_size, device=self.embedding.weight.device),)

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        (past,) = state
        ids = torch.cat([past, inputs], dim=1)  # (B, window - 1 + T)
        x = self.input_dropout(self.embedding(ids)).unfold(1, self.window, 1)  # (B, T, size, window)
        x = x.transpose(2, 3).flatten(2)  # one embedding after the other
        hidden = self.dropout(torch.tanh(self.hidden(x)))
        return torch.cat([x, hidden], dim=-1), (ids[:, inputs.shape[1] :],)


def make_softmax(
    settings: LanguageModelSettings, size: int, vocab_size: int
) -> FullSoftmax | AdaptiveSoftmax | MixtureSoftmax:
    """Build the output layer of these settings over features of `size`."""
    if settings.softmax == "adaptive":
        if max(settings.cutoffs, default=0) >= vocab_size:
            raise SettingError(f"cutoffs must be below the size of the vocabulary, {vocab_size}")
        return AdaptiveSoftmax(size, vocab_size, cutoffs=settings.cutoffs)
    if settings.softmax == "sampled":
        return SampledSoftmax(size, vocab_size, samples=settings.samples)
    if settings.softmax == "mixture":
        return MixtureSoftmax(
            size,
            vocab_size,
            components=settings.mixtures,
            bottleneck=settings.embedding or settings.hidden,
            dropout=SequenceDropout(settings.mixture_dropout, variational=settings.variational),
        )
    return FullSoftmax(size, vocab_size)
