"""Language models: p(next symbol | all symbols before it), the past held in an explicit state.

All of them (recurrent, fixed-window, n-gram) share one face, in ids and never in text:

    initial_state(batch)               the state before anything was read, a tuple of tensors with the batch first
    nll(inputs, targets, state)        exact negative log-likelihoods (B, T) of the targets, and the state after them
    step(ids, state)                   reads one symbol (B,), gives the log-probabilities (B, V) of the next
    features(inputs, state)            what the distribution after each symbol depends on (B, T, D), and the state
    log_probs(features)                that distribution, (N, D) -> (N, V)

Those that are trained by gradients are `NeuralLM`s and have `loss(window, carry)` too.

    Mikolov et al. 2010, Recurrent neural network based language model;  Press & Wolf 2017 (tied embeddings)
    Merity et al. 2018, Regularizing and optimizing LSTM language models
    Dai & Le 2015, Semi-supervised sequence learning (an LM's encoder starts a classifier)
"""

from typing import NamedTuple, Protocol

from torch import Tensor, nn
from torch.nn.functional import embedding

from relmo.errors import SettingError
from relmo.nn.cells import State, make_cell
from relmo.nn.dropout import SequenceDropout, drop_words
from relmo.nn.recurrent import Recurrent, RecurrentOutput
from relmo.nn.softmax import AdaptiveSoftmax, FullSoftmax, SampledSoftmax
from relmo.settings.cells import cell_options
from relmo.settings.lm import LanguageModelSettings


class Window(NamedTuple):
    """A piece of text for truncated back-propagation: targets[b, t] is the symbol that follows inputs[b, t]; both (B,
    T)."""

    inputs: Tensor
    targets: Tensor


class Loss(NamedTuple):
    """The mean loss to go down, how many predictions it averages, and the state to carry into the next batch
    (detached)."""

    mean: Tensor
    predictions: int
    carry: State


class Network(Protocol):
    """The face that scoring and generation need."""

    vocab_size: int

    def initial_state(self, batch: int) -> State:
        """The state before anything was read."""

    def nll(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """Exact negative log-likelihoods (B, T) of the targets, and the state after them."""

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Reads one symbol (B,): log-probabilities (B, V) of the next, and the new state."""

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """What the distribution after each symbol depends on: (B, T) ids -> (B, T, D), and the state after the last."""

    def log_probs(self, features: Tensor) -> Tensor:
        """The distribution over the next symbol: (N, D) -> (N, V)."""


class NeuralLM(nn.Module):
    """A language model made of features of the past (`features`, a subclass's own) and an output layer (`softmax`)."""

    vocab_size: int
    softmax: FullSoftmax | AdaptiveSoftmax

    def initial_state(self, batch: int) -> State:
        """The state before anything was read."""
        raise NotImplementedError

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """What the output layer sees at each position: (B, T) ids -> (B, T, D), and the state after the last one."""
        raise NotImplementedError

    def loss(self, window: Window, carry: State | None) -> Loss:
        """The training loss of a window, going on from the state in which the window before it ended."""
        state = self.initial_state(len(window.inputs)) if carry is None else carry
        x, state = self.features(window.inputs, state)
        mean = self.softmax.loss(x.flatten(0, 1), window.targets.flatten())
        return Loss(mean, window.targets.numel(), tuple(tensor.detach() for tensor in state))

    def nll(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """Exact negative log-likelihoods (B, T) of the targets, and the state after them."""
        x, state = self.features(inputs, state)
        return self.softmax.nll(x.flatten(0, 1), targets.flatten()).view(targets.shape), state

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Reads one symbol (B,): log-probabilities (B, V) of the next, and the new state."""
        x, state = self.features(ids.unsqueeze(1), state)
        return self.log_probs(x[:, 0]), state

    def log_probs(self, features: Tensor) -> Tensor:
        """The distribution over the next symbol: (N, D) -> (N, V)."""
        return self.softmax.log_probs(features)


class Encoder(nn.Module):
    """Ids to contextual features: embedding, then recurrent layers. The part of a language model that other networks
    reuse."""

    def __init__(
        self, recurrent: Recurrent, *, vocab_size: int, size: int, word_dropout: float, input_dropout: SequenceDropout
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.word_dropout = word_dropout
        self.input_dropout = input_dropout
        self.recurrent = recurrent

    def forward(self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None) -> RecurrentOutput:
        """ids (B, T), lengths (B,) where the rows are padded -> outputs (B, T, H) and the state after each row."""
        x = embedding(ids, drop_words(self.embedding.weight, self.word_dropout, self.training))
        return self.recurrent(self.input_dropout(x), state, lengths)


class RecurrentLM(NeuralLM):
    """embedding -> recurrent layers -> dropout -> (bottleneck, where tied sizes differ) -> output layer."""

    def __init__(self, settings: LanguageModelSettings, *, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        size = settings.embedding or settings.hidden
        recurrent = Recurrent(
            make_cell(settings.cell, settings.hidden, **cell_options(settings)),
            input_size=size,
            layers=settings.layers,
            residual=settings.residual,
            dropout=settings.dropout,
            variational=settings.variational,
            weight_drop=settings.weight_drop,
        )
        input_dropout = SequenceDropout(settings.input_dropout, variational=settings.variational)
        self.encoder = Encoder(
            recurrent, vocab_size=vocab_size, size=size, word_dropout=settings.word_dropout, input_dropout=input_dropout
        )
        output_dropout = settings.dropout if settings.output_dropout is None else settings.output_dropout
        self.dropout = SequenceDropout(output_dropout, variational=settings.variational)
        width = recurrent.output_size
        self.bottleneck = nn.Linear(width, size) if settings.tied and width != size else None
        self.softmax = make_softmax(settings, size if settings.tied else width, vocab_size)
        if settings.tied:
            self.softmax.weight = self.encoder.embedding.weight

    def initial_state(self, batch: int) -> State:
        return self.encoder.recurrent.initial_state(batch)

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        run = self.encoder(inputs, state)
        x = self.dropout(run.output)
        return (x if self.bottleneck is None else self.bottleneck(x)), run.state


def make_softmax(settings: LanguageModelSettings, size: int, vocab_size: int) -> FullSoftmax | AdaptiveSoftmax:
    """The settings' output layer over features of `size`."""
    if settings.softmax == "adaptive":
        if max(settings.cutoffs, default=0) >= vocab_size:
            raise SettingError(f"cutoffs must be below the size of the vocabulary, {vocab_size}; leave out the rest")
        return AdaptiveSoftmax(size, vocab_size, cutoffs=settings.cutoffs)
    if settings.softmax == "sampled":
        return SampledSoftmax(size, vocab_size, samples=settings.samples)
    return FullSoftmax(size, vocab_size)
