"""ELMo's bidirectional language model: a token encoder, two stacks of LSTMs, one output layer for both directions.

    characters -> convolutions -> highway layers -> projection = token vector       (or one vector a word)
    forward LSTMs predict the next word, backward LSTMs the one before, from the same token vectors

A sentence has these layers: the token vector, twice, and for each LSTM layer its forward and backward output side by
side.

    Peters et al. 2018, Deep contextualized word representations
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from relmo.networks.language_model import Loss
from relmo.nn.cells import State
from relmo.nn.char_cnn import CharCNN
from relmo.nn.dropout import drop
from relmo.nn.elmo_lstm import ElmoLSTM, ElmoLSTMOutput
from relmo.nn.highway import Highway
from relmo.nn.kernels import linear_cpu
from relmo.nn.softmax import FullSoftmax, SampledSoftmax
from relmo.settings.bilm import BiLMModelSettings
from relmo.settings.bounds import parse_filters
from relmo.text.characters import CHARACTERS, END_OF_WORD

Words = Tensor | Sequence[Tensor]
LARGEST_TABLE = 128 << 20  # bytes


class BiWindow(NamedTuple):
    """A piece of text for truncated back-propagation, read both ways; [0] forward, [1] backward.

    words      distinct words: character ids (U, C), in one or several groups of their own C; or word ids (U,)
    inputs     (2, T, B): which of `words`, counted through the groups, is read at each step
    targets    (2, T, B): the id of the word that follows in reading
    """

    words: Words
    inputs: Tensor
    targets: Tensor


class BiLMOutput(NamedTuple):
    """Every layer (K, B, T, 2P), zero past a sentence's end; the state at each sentence's end."""

    layers: Tensor
    state: State


class CharacterEncoder(nn.Module):
    """Words by their characters: convolutions, highway layers, projection (none where the sizes agree)."""

    def __init__(self, settings: BiLMModelSettings, *, fast: bool = True):
        super().__init__()
        self.cnn = CharCNN(
            parse_filters(settings.filters),
            char_dim=settings.char_dim,
            characters=CHARACTERS,
            max_characters=settings.max_characters,
            end=END_OF_WORD,
            activation=settings.activation,
            fast=fast,
        )
        self.fast = fast
        size = self.cnn.output_size
        self.highways = nn.ModuleList(Highway(size, fast=fast) for _ in range(settings.highway))
        self.projection = nn.Linear(size, settings.projection) if size != settings.projection else None
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=1 / math.sqrt(size))
            nn.init.zeros_(self.projection.bias)

    def forward(self, words: Words) -> Tensor:
        """Character ids (N, C), from 1 on, or groups (N_i, C_i) of them: short words need few columns -> (N, P)."""
        x = self.cnn(words) if isinstance(words, Tensor) else self.cnn(*words)
        for highway in self.highways:
            x = highway(x)
        if self.projection is None:
            return x
        if self.fast and linear_cpu.suits(x, self.projection.weight):
            return linear_cpu.linear(x, self.projection.weight, self.projection.bias)
        return self.projection(x)


class WordEncoder(nn.Module):
    """Words by their number in the vocabulary."""

    def __init__(self, vocab_size: int, size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(size))

    def forward(self, words: Words) -> Tensor:
        """Word ids (N,), or groups of them -> (N, P)."""
        return self.embedding(words if isinstance(words, Tensor) else torch.cat(list(words)))


class DictionarySizes(NamedTuple):
    """How many characters there are, and the id of the mark that ends a word; how many words, and the size of a word's
    own vector (0 where it has none)."""

    characters: int
    end: int
    words: int
    word_dim: int


class DictionaryEncoder(nn.Module):
    """Words as ELMoForManyLangs reads them: a vector of the word's own beside what the convolutions and highway layers
    make of its characters; then a projection.

        x = W [e_word; highway(cnn(characters))] + b

    Che et al. 2018, Towards better UD parsing. The kernel that looks convolutions up has a table as large as the number
    of characters: it is taken where that is small.
    """

    def __init__(self, settings: BiLMModelSettings, sizes: DictionarySizes, *, fast: bool = True):
        super().__init__()
        filters = parse_filters(settings.filters)
        table = 4 * sizes.characters * sum(width * count for width, count in filters)
        self.cnn = CharCNN(
            filters,
            char_dim=settings.char_dim,
            characters=sizes.characters,
            max_characters=settings.max_characters,
            end=sizes.end,
            activation=settings.activation,
            fast=fast and table <= LARGEST_TABLE,
        )
        self.fast = fast
        self.words = nn.Embedding(sizes.words, sizes.word_dim) if sizes.word_dim else None
        size = self.cnn.output_size
        self.highways = nn.ModuleList(Highway(size, fast=fast) for _ in range(settings.highway))
        self.projection = nn.Linear(size + sizes.word_dim, settings.projection)

    def forward(self, words: Words) -> Tensor:
        """Ids from 1 on, (N, 1 + C): the word's, then its characters'; or groups of them -> (N, P)."""
        groups = [words] if isinstance(words, Tensor) else list(words)
        x = self.cnn(*(ids[:, 1:] for ids in groups))
        for highway in self.highways:
            x = highway(x)
        if self.words is not None:
            x = torch.cat([self.words(torch.cat([ids[:, 0] for ids in groups]) - 1), x], dim=1)
        if self.fast and linear_cpu.suits(x, self.projection.weight):
            return linear_cpu.linear(x, self.projection.weight, self.projection.bias)
        return self.projection(x)


class BiLMNetwork(nn.Module):
    """The network. Without a `vocab_size` it has no output layer: like the original files it embeds but does not
    predict. With `fast=False` convolutions and LSTMs are computed by their readable definitions. `dictionaries` are the
    sizes of those that a model with such input has."""

    graphs = True  # its training steps can be recorded: nothing in them waits for the device

    def __init__(
        self,
        settings: BiLMModelSettings,
        *,
        vocab_size: int | None,
        dictionaries: DictionarySizes | None = None,
        fast: bool = True,
    ):
        super().__init__()
        self.vocab_size = vocab_size
        self.dropout, self.state_dropout = settings.dropout, settings.state_dropout
        size = settings.projection
        if settings.input == "char":
            self.encoder: CharacterEncoder | WordEncoder | DictionaryEncoder = CharacterEncoder(settings, fast=fast)
        elif settings.input == "dictionary":
            assert dictionaries is not None
            self.encoder = DictionaryEncoder(settings, dictionaries, fast=fast)
        else:
            assert vocab_size is not None
            self.encoder = WordEncoder(vocab_size, size)
        self.lstm = ElmoLSTM(
            input_size=size,
            hidden_size=settings.hidden,
            projection=size if size < settings.hidden else None,
            layers=settings.layers,
            skip_connections=settings.skip_connections,
            cell_clip=settings.cell_clip or None,
            projection_clip=settings.projection_clip or None,
            dropout=settings.dropout,
            fast=fast,
        )
        self.softmax: FullSoftmax | None = None
        if vocab_size is not None:
            bottleneck = settings.softmax_dim
            self.softmax = FullSoftmax(size, vocab_size, bottleneck=bottleneck)
            if settings.softmax == "sampled":
                self.softmax = SampledSoftmax(size, vocab_size, samples=settings.samples, bottleneck=bottleneck)
            if settings.tied and isinstance(self.encoder, WordEncoder):
                self.softmax.weight = self.encoder.embedding.weight  # type: ignore[assignment]

    @property
    def layer_count(self) -> int:
        """How many layers a sentence's vectors have: the token layer and the LSTMs."""
        return 1 + len(self.lstm.layers)

    @property
    def size(self) -> int:
        """The size of a vector: both directions side by side."""
        return 2 * self.lstm.output_size

    def initial_state(self, batch: int) -> State:
        """The state before a text: zeros."""
        return self.lstm.initial_state(batch)

    def forward(self, tokens: Tensor, lengths: Tensor, state: State | None = None) -> BiLMOutput:
        """Token vectors (B, T, P), boundaries included, and how many of them are real (B,)."""
        batch, steps, _ = tokens.shape
        device = tokens.device
        lengths = lengths.to(device)
        order = torch.argsort(lengths, descending=True, stable=True)
        lengths, tokens = lengths[order], tokens[order]
        state = None if state is None else tuple(tensor[order] for tensor in state)
        sizes = (lengths.cpu().unsqueeze(0) > torch.arange(steps).unsqueeze(1)).sum(dim=1).tolist()
        t, rows = torch.arange(steps, device=device), torch.arange(batch, device=device).unsqueeze(1)
        inside = t < lengths.unsqueeze(1)  # (B, T)
        mirrored = torch.where(inside, lengths.unsqueeze(1) - 1 - t, t)  # (B, T): the place as seen from the end
        tokens = torch.where(inside.unsqueeze(2), tokens, 0.0)
        x = torch.stack([tokens, tokens[rows, mirrored]]).transpose(1, 2)  # (2, T, B, P)
        run = self.lstm(x, state, sizes)
        back = torch.argsort(order)
        layers = [torch.cat([tokens, tokens], dim=-1)]
        for layer in run.layers:
            forward, backward = layer.transpose(1, 2)  # each (B, T, P)
            layers.append(torch.cat([forward, backward[rows, mirrored]], dim=-1))
        return BiLMOutput(torch.stack(layers)[:, back], tuple(tensor[back] for tensor in run.state))

    def read(self, window: BiWindow, state: State | None) -> ElmoLSTMOutput:
        """Runs the LSTMs over a window."""
        return self.lstm(embedding(window.inputs.int(), self.encoder(window.words)), state)

    def forget_some(self, carry: State | None) -> State | None:
        """In training, the carried state with that of some streams zero."""
        if carry is None or not self.training or not self.state_dropout:
            return carry
        kept = torch.rand(len(carry[0]), 1, 1, device=carry[0].device) >= self.state_dropout  # (B, 1, 1)
        return tuple(tensor * kept for tensor in carry)

    def loss(self, window: BiWindow, carry: State | None) -> Loss:
        """The mean of both directions' training losses. `carry` is the state in which the window before ended."""
        assert self.softmax is not None
        run = self.read(window, self.forget_some(carry))
        top = drop(run.layers[-1], self.dropout, self.training)
        mean = self.softmax.loss(top.flatten(0, 2), window.targets.flatten())
        return Loss(mean, window.targets[0].numel(), tuple(tensor.detach() for tensor in run.state))

    def nll(self, window: BiWindow, state: State | None) -> tuple[Tensor, State]:
        """Exact negative log-likelihoods (2, T, B) of the targets, and the state after them."""
        assert self.softmax is not None
        run = self.read(window, state)
        nll = self.softmax.nll(run.layers[-1].flatten(0, 2), window.targets.flatten())
        return nll.view(window.targets.shape), run.state
