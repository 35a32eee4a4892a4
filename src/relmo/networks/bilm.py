"""ELMo's bidirectional language model: a token encoder, two recurrent stacks, one output layer for both directions.

    characters -> convolutions -> highway layers -> projection = token vector       (or one embedding per word)
    forward layers predict the next word, backward layers the previous one, from the same token vectors

The layers of a sentence are the token vectors, twice, and for each recurrent layer its forward and backward output,
concatenated. The recurrent layers are ELMo's LSTMs or stacks of any other cell.

    Peters et al. 2018, Deep contextualized word representations
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from relmo.networks.cells import cell_factory
from relmo.networks.language_model import Loss
from relmo.nn.char_cnn import CharCNN, Highway
from relmo.nn.dropout import drop
from relmo.nn.kernels import encoder_cpu
from relmo.nn.recurrence import State
from relmo.nn.recurrence.bidirectional import BidirectionalStacks
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM, ElmoLSTMOutput
from relmo.nn.recurrence.stack import expand_mask
from relmo.nn.softmax import FullSoftmax, LayerMaps, Lesson, SampledSoftmax
from relmo.settings.bilm import BiLMModelSettings
from relmo.settings.fields import parse_filters
from relmo.settings.kinds import cell_options
from relmo.text.characters import CHARACTERS, END_OF_WORD

Words = Tensor | Sequence[Tensor]
MAX_TABLE_BYTES = 128 << 20


class BiWindow(NamedTuple):
    """Window of truncated back-propagation in both directions; [0] forward, [1] backward."""

    words: Words  # distinct words: character ids (U, C), in one or several groups with different C; or word ids (U,)
    inputs: Tensor  # (2, T, B): indices into `words`, counted through the groups
    targets: Tensor  # (2, T, B): the id of the word that follows in reading


class BiLMOutput(NamedTuple):
    """All layers (K, B, T, 2P), zero in the padding, and the state at the end of each sentence."""

    layers: Tensor
    state: State


class DictionarySizes(NamedTuple):
    """Number of characters, id of the end-of-word mark, number of words, size of word embeddings (0 for none)."""

    characters: int
    end: int
    words: int = 0
    word_dim: int = 0


class ConvolutionalEncoder(nn.Module):
    """Base class of encoders of characters by convolutions, highway layers and a projection, if there is one."""

    projection: nn.Linear | None

    def __init__(self, settings: BiLMModelSettings, sizes: DictionarySizes, *, fast: bool, fast_cnn: bool):
        super().__init__()
        self.cnn = CharCNN(
            parse_filters(settings.filters),
            char_dim=settings.char_dim,
            characters=sizes.characters,
            max_characters=settings.max_characters,
            end=sizes.end,
            activation=settings.activation,
            fast=fast_cnn,
        )
        self.fast = fast
        self.words = nn.Embedding(sizes.words, sizes.word_dim) if sizes.word_dim else None
        self.highways = nn.ModuleList(Highway(self.cnn.output_size, fast=fast) for _ in range(settings.highway))

    def encode(self, groups: Sequence[Tensor], words: Tensor | None = None) -> Tensor:
        """Encode groups of character ids (N_i, C_i), from 1 on, after the vectors of word ids (N,), if any; (N, P)."""
        x = self.cnn(*groups)
        for highway in self.highways:
            x = highway(x)
        if self.words is not None:
            x = torch.cat([self.words(words), x], dim=1)
        if self.projection is None:
            return x
        if self.fast and encoder_cpu.supports(x, self.projection.weight):
            return encoder_cpu.linear(x, self.projection.weight, self.projection.bias)
        return self.projection(x)


class CharacterEncoder(ConvolutionalEncoder):
    """Token encoder from characters; there is no projection if the sizes agree."""

    def __init__(self, settings: BiLMModelSettings, *, fast: bool = True):
        super().__init__(settings, DictionarySizes(CHARACTERS, END_OF_WORD), fast=fast, fast_cnn=fast)
        size = self.cnn.output_size
        self.projection = nn.Linear(size, settings.projection) if size != settings.projection else None
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=1 / math.sqrt(size))
            nn.init.zeros_(self.projection.bias)

    def forward(self, words: Words) -> Tensor:
        """Encode character ids (N, C) from 1 on, or groups (N_i, C_i), so that short words have few columns; (N, P)."""
        return self.encode([words] if isinstance(words, Tensor) else words)


class WordEncoder(nn.Module):
    """Token encoder from word ids."""

    def __init__(self, vocab_size: int, size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(size))

    def forward(self, words: Words) -> Tensor:
        """Encode word ids (N,), or groups of them; (N, P)."""
        return self.embedding(words if isinstance(words, Tensor) else torch.cat(list(words)))


class DictionaryEncoder(ConvolutionalEncoder):
    """Token encoder of ELMoForManyLangs: a word embedding and the encoding of its characters, then a projection.

        x = W [e_word; highway(cnn(characters))] + b

    Che et al. 2018, Towards better UD parsing
    """

    def __init__(self, settings: BiLMModelSettings, sizes: DictionarySizes, *, fast: bool = True):
        # the kernel that looks convolutions up needs a table for all characters
        table_bytes = 4 * sizes.characters * sum(width * count for width, count in parse_filters(settings.filters))
        super().__init__(settings, sizes, fast=fast, fast_cnn=fast and table_bytes <= MAX_TABLE_BYTES)
        self.projection = nn.Linear(self.cnn.output_size + sizes.word_dim, settings.projection)

    def forward(self, words: Words) -> Tensor:
        """Encode ids from 1 on, (N, 1 + C): that of the word, then those of its characters; or groups; (N, P)."""
        groups = [words] if isinstance(words, Tensor) else list(words)
        return self.encode([ids[:, 1:] for ids in groups], torch.cat([ids[:, 0] for ids in groups]) - 1)


def make_stacks(settings: BiLMModelSettings, *, fast: bool) -> ElmoLSTM | BidirectionalStacks:
    """Create the recurrent layers: ELMo's LSTM, which has kernels, or stacks of another cell or variant of the LSTM."""
    size = settings.projection
    projection = size if size < settings.hidden else None
    options = cell_options(settings)
    clips: dict[str, Any] = {name: getattr(settings, name) or None for name in ("cell_clip", "projection_clip")}
    sizes: dict[str, Any] = {"layers": settings.layers, "skip_connections": settings.skip_connections}
    sizes |= {"dropout": settings.dropout, "fast": fast}
    if settings.cell == "lstm" and not settings.cell_options:
        return ElmoLSTM(input_size=size, hidden_size=settings.hidden, projection=projection, **clips, **sizes)
    options |= {name: value for name, value in (clips | {"projection": projection}).items() if name in options}
    return BidirectionalStacks(cell_factory(settings.cell, settings.hidden, options), size=size, **sizes)


class BiLMNetwork(nn.Module):
    """Bidirectional language model."""

    graphs = True  # training steps can be recorded: nothing in them waits for the device

    def __init__(
        self,
        settings: BiLMModelSettings,
        *,
        vocab_size: int | None,  # None: without an output layer, it embeds but does not predict, like original files
        dictionaries: DictionarySizes | None = None,  # of a model with such input
        fast: bool = True,  # False computes convolutions and LSTMs by their readable definitions
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
        self.lstm = make_stacks(settings, fast=fast)
        self.layer_count = 1 + settings.layers  # the token layer and the recurrent ones
        self.size = 2 * self.lstm.output_size  # both directions
        self.softmax: FullSoftmax | None = None
        if vocab_size is not None:
            bottleneck = settings.softmax_dim
            self.softmax = FullSoftmax(size, vocab_size, bottleneck=bottleneck)
            if settings.softmax == "sampled":
                self.softmax = SampledSoftmax(size, vocab_size, samples=settings.samples, bottleneck=bottleneck)
            if settings.tied and isinstance(self.encoder, WordEncoder):
                self.softmax.weight = self.encoder.embedding.weight  # type: ignore[assignment]

    def initial_state(self, batch: int) -> State:
        """Return the state before a text."""
        return self.lstm.initial_state(batch)

    def forward(self, tokens: Tensor, lengths: Tensor, state: State | None = None) -> BiLMOutput:
        """Run the LSTMs over token vectors (B, T, P), including boundaries, with lengths (B,)."""
        batch, steps, _ = tokens.shape
        device = tokens.device
        lengths = lengths.to(device)
        order = torch.argsort(lengths, descending=True, stable=True)
        lengths, tokens = lengths[order], tokens[order]
        state = None if state is None else tuple(tensor[order] for tensor in state)
        sizes = (lengths.cpu().unsqueeze(0) > torch.arange(steps).unsqueeze(1)).sum(dim=1).tolist()
        t, rows = torch.arange(steps, device=device), torch.arange(batch, device=device).unsqueeze(1)
        inside = t < lengths.unsqueeze(1)  # (B, T)
        mirrored = torch.where(inside, lengths.unsqueeze(1) - 1 - t, t)  # (B, T): the position from the end
        tokens = torch.where(inside.unsqueeze(2), tokens, 0.0)
        x = torch.stack([tokens, tokens[rows, mirrored]]).transpose(1, 2)  # (2, T, B, P)
        run = self.lstm(x, state, sizes)
        inverse = torch.argsort(order)
        layers = [torch.cat([tokens, tokens], dim=-1)]
        for layer in run.layers:
            forward, backward = layer.transpose(1, 2)  # each (B, T, P)
            layers.append(torch.cat([forward, backward[rows, mirrored]], dim=-1))
        return BiLMOutput(torch.stack(layers)[:, inverse], tuple(tensor[inverse] for tensor in run.state))

    def read(self, window: BiWindow, state: State | None) -> ElmoLSTMOutput:
        """Run the LSTMs over a window."""
        return self.lstm(embedding(window.inputs.int(), self.encoder(window.words)), state)

    def drop_states(self, carry: State | None, initial_state: Callable[[int], State] | None = None) -> State | None:
        """Return the carried state; in training that of some lanes is reset."""
        if carry is None or not self.training or not self.state_dropout:
            return carry
        batch = len(carry[0])
        mask = (torch.rand(batch, 1, 1, device=carry[0].device) >= self.state_dropout).flatten()  # (B,)
        pairs = zip(carry, (initial_state or self.initial_state)(batch), strict=True)
        return tuple(torch.where(expand_mask(mask, old), old, initial) for old, initial in pairs)

    def loss(self, window: BiWindow, carry: State | None) -> Loss:
        """Return the mean of the training losses of both directions; `carry` is the final state of the last window."""
        assert self.softmax is not None
        run = self.read(window, self.drop_states(carry))
        top = drop(run.layers[-1], self.dropout, self.training)
        mean = self.softmax.loss(top.flatten(0, 2), window.targets.flatten())
        return Loss(mean, window.targets[0].numel(), tuple(tensor.detach() for tensor in run.state))

    def nll(self, window: BiWindow, state: State | None) -> tuple[Tensor, State]:
        """Return the exact negative log-likelihoods (2, T, B) of the targets, and the state after them."""
        assert self.softmax is not None
        run = self.read(window, state)
        nll = self.softmax.nll(run.layers[-1].flatten(0, 2), window.targets.flatten())
        return nll.view(window.targets.shape), run.state


class DistilledBiLM(nn.Module):
    """Distillation: `share` of the student's loss is on the predictions of a frozen teacher with the same vocabulary,
    and `layers` weighs the distance between their layers. The teacher's state is carried with that of the student."""

    graphs = True

    def __init__(self, student: BiLMNetwork, teacher: BiLMNetwork, *, share: float, layers: float = 0.0):
        super().__init__()
        self.student = student
        self.share, self.layers = share, layers
        self.teachers = (teacher,)  # in a tuple, so that it is neither trained nor saved
        teacher.dropout = teacher.lstm.dropout = 0.0
        teacher.train()
        teacher.requires_grad_(False)
        self.maps = None
        if layers:
            sizes = student.lstm.output_size, teacher.lstm.output_size
            self.maps = LayerMaps(min(len(student.lstm.layers), len(teacher.lstm.layers)), *sizes)

    def loss(self, window: BiWindow, carry: State | None) -> Loss:
        """Return the loss as `BiLMNetwork.loss` does; the state is that of the student, then that of the teacher."""
        student, (teacher,) = self.student, self.teachers
        assert student.softmax is not None
        assert teacher.softmax is not None
        num_states = len(student.initial_state(0))
        carry = student.drop_states(carry, lambda batch: student.initial_state(batch) + teacher.initial_state(batch))
        student_state, teacher_state = (None, None) if carry is None else (carry[:num_states], carry[num_states:])
        with torch.no_grad():
            teacher_run = teacher.read(window, teacher_state)
        run = student.read(window, student_state)
        top = drop(run.layers[-1], student.dropout, self.training)
        lesson = Lesson(teacher_run.layers[-1].flatten(0, 2), teacher.softmax, self.share) if self.share else None
        mean = student.softmax.loss(top.flatten(0, 2), window.targets.flatten(), lesson)
        if self.maps is not None:
            count = len(self.maps.weight)  # from the top down
            mean = mean + self.layers * self.maps.distance(run.layers[-count:], teacher_run.layers[-count:])
        state = tuple(tensor.detach() for tensor in (*run.state, *teacher_run.state))
        return Loss(mean, window.targets[0].numel(), state)
