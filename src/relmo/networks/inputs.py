"""Parts that the networks of tasks share: word inputs, sentence encoders, and the network around them.

    x = [learned vector; static vector; characters; ELMo]          the parts that the settings enable
    elmo = ELMo, by a mix of its own                               for the output of the (first) encoder
    y = [recurrent layers(dropout(x)); elmo]                       one vector per word; pooling makes one per sentence

Choices:
- Characters are read by a small CNN of the task, once for each distinct word of a batch.
- Tuned static vectors are those of the file, which are fixed, plus a learned difference that starts at zero: words that
  are not in the training examples keep theirs.
- The layers of a frozen biLM come with the batch; one that is fine-tuned is part of the network (`Elmo`).

    Peters et al. 2018, Deep contextualized word representations;  Ma & Hovy 2016 (characters)
    Dai & Le 2015, Semi-supervised sequence learning (initialisation from a language model)
    Conneau et al. 2017, Supervised learning of universal sentence representations (maximum over a biLSTM)
    Wieting et al. 2016, Towards universal paraphrastic sentence embeddings (no recurrent layers: average of words)
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from relmo.errors import ModelError
from relmo.networks.cells import cell_factory
from relmo.networks.elmo import Elmo
from relmo.networks.language_model import Loss
from relmo.nn.attention import AttentivePool
from relmo.nn.char_cnn import CharCNN
from relmo.nn.dropout import SequenceDropout, drop
from relmo.nn.pooling import ScalarMix, final, length_mask, mask_padding, maximum, mean
from relmo.nn.recurrence import State
from relmo.nn.recurrence.stack import Recurrent
from relmo.settings.fields import parse_filters
from relmo.settings.kinds import cell_options
from relmo.settings.sections import InputSettings, SentenceModelSettings
from relmo.text.characters import CHARACTERS, END_OF_WORD

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
IGNORED = -100  # target in the padding
UNKNOWN = 0  # id of words without a learned vector; row of words without a static one


class WordBatch(NamedTuple):
    """Sentences as ids, padded with zeros; parts that are not read are None."""

    lengths: Tensor  # (B,)
    words: Tensor | None = None  # (B, T): ids in the vocabulary of the training examples
    rows: Tensor | None = None  # (B, T): rows of the static vectors; 0 for a word that has none
    spellings: Tensor | None = None  # (N, C): character ids of the distinct words
    spelled: Tensor | None = None  # (B, T): indices of the words in `spellings`
    layers: Tensor | None = None  # (B, T, K, E): layers of a frozen biLM, half precision
    elmo_ids: Tensor | None = None  # (B, T, C) or (B, T): input of a biLM that is fine-tuned


class TaskBatch(NamedTuple):
    """Batch of examples."""

    texts: list[WordBatch]  # words of each of their texts
    targets: Any = None  # in training
    predictions: int = 0  # their number, in training
    extra: tuple[Any, ...] = ()  # further arguments of the task's network


class Encoded(NamedTuple):
    """Embedded words x (B, T, D), lengths (B,), and ELMo vectors for the encoder's output (B, T, E) or None."""

    x: Tensor
    lengths: Tensor
    elmo: Tensor | None = None


class LayerSpread(NamedTuple):
    """Mean vectors (K, E) and standard deviations (K,) of the layers of a biLM."""

    means: Tensor
    deviations: Tensor


class WordInputs(nn.Module):
    """Embedding of words from several inputs."""

    static: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(
        self,
        settings: InputSettings,
        *,
        num_words: int,  # size of the vocabulary of learned (or tuned) vectors
        static_shape: tuple[int, int] = (0, 0),  # of the matrix `static`, to be set; row 0 is that of unknown words
        elmo_shape: tuple[int, int] | None = None,  # number and size of the layers that are mixed; None for no ELMo
        bilm: Elmo | None = None,  # the biLM, if it is fine-tuned
        spread: LayerSpread | None = None,  # with `elmo_norm`: of all layers, of which the top one may be used alone
    ):
        super().__init__()
        self.settings, self.bilm = settings, bilm
        self.words = nn.Embedding(num_words, settings.word_dim) if settings.word_dim else None
        if self.words is not None:
            nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.register_buffer("static", torch.zeros(static_shape), persistent=False)
        self.difference = None
        if settings.vectors_tune:
            self.difference = nn.Embedding(num_words, static_shape[1], padding_idx=UNKNOWN)
            nn.init.zeros_(self.difference.weight)
        self.characters = None
        self.size = settings.word_dim + static_shape[1]
        if settings.char_dim:
            sizes: dict[str, Any] = {"char_dim": settings.char_dim, "max_characters": settings.max_characters}
            self.characters = CharCNN(parse_filters(settings.filters), characters=CHARACTERS, end=END_OF_WORD, **sizes)
            self.size += self.characters.output_size
        self.num_elmo_layers, elmo_size = (0, 0) if elmo_shape is None else elmo_shape
        places = ["input", "output"] if settings.elmo_at == "both" else [settings.elmo_at]
        self.elmo_places = [] if elmo_shape is None else places
        self.mixes = nn.ModuleList(ScalarMix(self.num_elmo_layers) for _ in self.elmo_places)
        if elmo_shape is not None and settings.elmo_norm:
            spread = spread or LayerSpread(torch.zeros(elmo_shape), torch.ones(self.num_elmo_layers))
            for name, values in spread._asdict().items():
                self.register_buffer(name, values[-self.num_elmo_layers :].clone())
        self.size += elmo_size if "input" in self.elmo_places else 0
        self.elmo_size = elmo_size if "output" in self.elmo_places else 0

    def mix_weights(self) -> dict[str, dict[str, Any]]:
        """Return the learned weights of the layers, from the lowest up, and gamma, of each mix by its place."""
        return {
            place: {"weights": mix.weights.softmax(dim=0).tolist(), "gamma": mix.gamma.item()}  # type: ignore[operator]
            for place, mix in zip(self.elmo_places, self.mixes, strict=True)
        }

    def forward(self, batch: WordBatch) -> Encoded:
        """Embed a batch: x (B, T, D), not necessarily zero in the padding; lengths; ELMo vectors for the output."""
        words, rows = batch.words, batch.rows
        if self.training and self.settings.word_dropout:
            ids = words if words is not None else rows
            if ids is not None:
                mask = torch.rand(ids.shape, device=ids.device) >= self.settings.word_dropout
                words, rows = (None if ids is None else ids * mask for ids in (words, rows))  # UNKNOWN is 0
        parts = []
        if self.words is not None and words is not None:
            parts.append(self.words(words))
        if len(self.static) and rows is not None:
            static = embedding(rows, self.static)
            if self.difference is not None and words is not None:
                static = static + self.difference(words)
            parts.append(static)
        if self.characters is not None:
            assert batch.spellings is not None
            assert batch.spelled is not None
            parts.append(self.characters(batch.spellings)[batch.spelled])  # (B, T, F)
        elmo = None
        if self.elmo_places:
            if self.bilm is None:
                assert batch.layers is not None
                layers = batch.layers.movedim(2, 0).float()  # (K, B, T, E)
            else:
                assert batch.elmo_ids is not None
                ids = batch.elmo_ids
                mask = (ids > 0).any(dim=2) if self.bilm.by_characters else ids > 0
                layers, _ = self.bilm.read(*self.bilm.encode(ids, mask), mask)
                layers = layers[-self.num_elmo_layers :, :, 1:-1]
            if self.settings.elmo_norm:
                inside = length_mask(batch.lengths.to(layers.device), layers.shape[2])  # (B, T)
                layers = (layers - self.means[:, None, None]) / self.deviations.view(-1, 1, 1, 1) * inside.unsqueeze(2)
            mixtures = [drop(mix(layers), self.settings.elmo_dropout, self.training) for mix in self.mixes]
            elmo = mixtures.pop() if self.elmo_size else None
            parts += mixtures
        return Encoded(torch.cat(parts, dim=2), batch.lengths, elmo)


class TaskNetwork(nn.Module):
    """Word inputs and the network of a task; `body(*texts, *extra)` is its output, `body.loss(output, targets)`."""

    def __init__(self, inputs: WordInputs, body: nn.Module):
        super().__init__()
        self.inputs = inputs
        self.body: Any = body

    def forward(self, batch: TaskBatch) -> Any:
        """Return the output of the task's network."""
        return self.body(*map(self.inputs, batch.texts), *batch.extra)

    def loss(self, batch: TaskBatch, carry: State | None = None) -> Loss:
        """Return the loss of a batch, plus lambda ||w||^2 over all mixes, which draws them towards equal weights."""
        mean = self.body.loss(self(batch), batch.targets)
        if self.inputs.elmo_places:
            mean = mean + self.inputs.settings.elmo_l2 * sum(mix.l2() for mix in self.inputs.mixes)  # type: ignore[operator]
        return Loss(mean, batch.predictions, ())


class SentenceEncoder(nn.Module):
    """Contextual word vectors: variational dropout (input, between layers) -> recurrent layers -> [output; ELMo]."""

    def __init__(
        self,
        *,
        input_size: int,
        hidden: int,
        cell: str = "lstm",
        cell_options: Mapping[str, Any] = NO_OPTIONS,
        layers: int = 1,
        bidirectional: bool = True,
        residual: bool = False,  # add the input of a layer to its output if the sizes agree
        dropout: float = 0.0,
        elmo_size: int = 0,  # of the ELMo vectors that are appended to the output
    ):
        super().__init__()
        self.elmo_size = elmo_size
        self.dropout = SequenceDropout(dropout, variational=True)
        self.recurrent = Recurrent(
            cell_factory(cell, hidden, cell_options),
            input_size=input_size,
            layers=layers,
            bidirectional=bidirectional,
            residual=residual,
            dropout=dropout,
            variational=True,
        )
        self.hidden_size = self.recurrent.output_size
        self.output_size = self.hidden_size + elmo_size

    def forward(self, x: Tensor, lengths: Tensor, elmo: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D) with lengths (B,) and ELMo vectors (B, T, E); (B, T, O), zero in the padding."""
        y = run_recurrent(self.recurrent, self.dropout(x), lengths)
        return append_elmo(y, lengths, elmo, self.elmo_size)

    @torch.no_grad()
    def start_from(self, source: Recurrent) -> None:
        """Copy the recurrent layers of a language model, or raise `ModelError` if the geometry differs."""
        a, b = self.recurrent.cells[0][0], source.cells[0][0]
        geometry = {
            "cell": (a.describe(), b.describe()),
            "number of layers": (len(self.recurrent.layers), len(source.layers)),
            "number of directions": (self.recurrent.directions, source.directions),
            "input size": (a.input_size, b.input_size),
            "hidden size": (a.hidden_size, b.hidden_size),
            "output size": (a.output_size, b.output_size),
            "residual connection": tuple("on" if layers.residual else "off" for layers in (self.recurrent, source)),
        }
        for what, (expected, actual) in geometry.items():
            if expected != actual:
                raise ModelError(
                    f"cannot start from this language model: its {what} is {actual}, that of this network {expected}; "
                    "use that of the language model"
                )
        self.recurrent.load_state_dict(source.state_dict())


def encoder_options(settings: Any) -> dict[str, Any]:
    """Return the options of a `SentenceEncoder` that the settings of most networks have."""
    names = ("hidden", "cell", "layers", "dropout")
    return {name: getattr(settings, name) for name in names} | {"cell_options": cell_options(settings)}


class LinearEncoder(nn.Module):
    """Word vectors without context: dropout -> W x + b -> [output; ELMo]; the encoder with no recurrent layers."""

    def __init__(self, *, input_size: int, hidden: int, dropout: float = 0.0, elmo_size: int = 0):
        super().__init__()
        self.elmo_size = elmo_size
        self.dropout = SequenceDropout(dropout, variational=True)
        self.linear = nn.Linear(input_size, hidden)
        self.hidden_size, self.output_size = hidden, hidden + elmo_size

    def forward(self, x: Tensor, lengths: Tensor, elmo: Tensor | None = None) -> Tensor:
        """Encode words, as `SentenceEncoder` does."""
        y = mask_padding(self.linear(self.dropout(mask_padding(x, lengths))), lengths)
        return append_elmo(y, lengths, elmo, self.elmo_size)


class PooledEncoder(nn.Module):
    """Encoder of the settings and pooling (attention, final, mean or max over words): one vector per sentence."""

    def __init__(self, settings: SentenceModelSettings, *, input_size: int, elmo_size: int = 0, **options: Any):
        """Build the encoder; `options` are further ones of `SentenceEncoder`."""
        super().__init__()
        sizes: dict[str, Any] = {"input_size": input_size, "elmo_size": elmo_size}
        self.encoder: SentenceEncoder | LinearEncoder
        if settings.layers:
            options |= encoder_options(settings) | {"bidirectional": settings.directions == 2}
            self.encoder = SentenceEncoder(**sizes, **options)
        elif settings.pool == "final":
            raise ValueError("pool final needs recurrent layers")
        else:
            self.encoder = LinearEncoder(hidden=settings.hidden, dropout=settings.dropout, **sizes)
        self.pool, self.output_size = settings.pool, self.encoder.output_size
        self.attention = None
        if self.pool == "attention":
            self.attention = AttentivePool(self.output_size, hidden=self.encoder.hidden_size)

    def forward(self, x: Tensor, lengths: Tensor, elmo: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D) with lengths (B,) and ELMo vectors (B, T, E); (B, O), zero for an empty sentence."""
        y = self.encoder(x, lengths, elmo)
        if self.attention is not None:
            return self.attention(y, lengths)[0]
        if isinstance(self.encoder, SentenceEncoder) and self.pool == "final":
            hidden, elmo = y.split([self.encoder.hidden_size, self.encoder.elmo_size], dim=2)
            ends = final(hidden, lengths, directions=self.encoder.recurrent.directions)
            return torch.cat([ends, final(elmo, lengths, directions=2)], dim=1) if self.encoder.elmo_size else ends
        return mean(y, lengths) if self.pool == "mean" else maximum(y, lengths)


def run_recurrent(recurrent: Recurrent, x: Tensor, lengths: Tensor) -> Tensor:
    """Run recurrent layers over x (B, T, D); (B, T, O), zero in the padding."""
    steps, x = x.shape[1], mask_padding(x, lengths)
    # PyTorch's recurrences take no empty sequences: an empty sentence is read as one word and then zeroed
    y = recurrent(pad(x, (0, 0, 0, 1)) if steps == 0 else x, None, lengths.clamp(min=1)).output
    return mask_padding(y[:, :steps], lengths)


def append_elmo(y: Tensor, lengths: Tensor, elmo: Tensor | None, elmo_size: int) -> Tensor:
    """Return [y; ELMo], or y for a network without ELMo vectors at its output."""
    size = 0 if elmo is None else elmo.shape[2]
    if size != elmo_size:
        raise ValueError(f"the network takes ELMo vectors of size {elmo_size} at the encoder's output, got size {size}")
    return y if elmo is None else torch.cat([y, mask_padding(elmo, lengths).to(y.dtype)], dim=2)
