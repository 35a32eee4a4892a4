"""Word inputs of a task's network, and the network around: words as ids in, a loss or an output out.

    x = [learned vector; static vector; characters; ELMo]          the parts that the settings enable
    elmo = ELMo, by a mix of its own                               for the output of the (first) encoder

Choices:
- Characters are read by a small CNN of the task, once for each distinct word of a batch.
- Tuned static vectors are those of the file, which are fixed, plus a learned difference that starts at zero: words that
  are not in the training examples keep theirs.
- The layers of a frozen biLM come with the batch; one that is fine-tuned is part of the network (`Elmo`).

    Peters et al. 2018, Deep contextualized word representations;  Ma & Hovy 2016 (characters)
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relmo.networks.elmo import Elmo
from relmo.networks.language_model import Loss
from relmo.networks.sentence_encoder import Encoded
from relmo.nn.cells import State
from relmo.nn.char_cnn import CharCNN
from relmo.nn.dropout import drop
from relmo.nn.scalar_mix import ScalarMix
from relmo.settings.fields import parse_filters
from relmo.settings.task import InputSettings
from relmo.text.characters import CHARACTERS, END_OF_WORD

IGNORED = -100  # target in the padding
UNKNOWN = 0  # id of words without a learned vector; row of words without a static one


class WordBatch(NamedTuple):
    """Sentences as ids, padded with zeros; parts that are not read are None.

    lengths      (B,)
    words        (B, T): ids in the vocabulary of the training examples
    rows         (B, T): rows of the static vectors; 0 for a word that has none
    spellings    (N, C): character ids of the distinct words
    spelled      (B, T): indices of the words in `spellings`
    layers       (B, T, K, E): layers of a frozen biLM, half precision
    elmo_ids     (B, T, C) or (B, T): input of a biLM that is fine-tuned
    """

    lengths: Tensor
    words: Tensor | None = None
    rows: Tensor | None = None
    spellings: Tensor | None = None
    spelled: Tensor | None = None
    layers: Tensor | None = None
    elmo_ids: Tensor | None = None


class TaskBatch(NamedTuple):
    """Batch of examples: the words of each of their texts; in training, the targets and the number of predictions.

    A task whose network reads more has a batch of its own.
    """

    texts: list[WordBatch]
    targets: Tensor | None = None
    predictions: int = 0


class LayerSpread(NamedTuple):
    """Mean vectors (K, E) and standard deviations (K,) of the layers of a biLM."""

    means: Tensor
    deviations: Tensor


class WordInputs(nn.Module):
    """Embedding of words from several inputs.

    num_words      size of the vocabulary of learned (or tuned) vectors
    static_shape   shape of the matrix of static vectors, which `set_static` sets
    elmo_shape     number and size of the layers of a biLM that are mixed; None for no ELMo
    bilm           the biLM, if it is fine-tuned
    """

    static: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(
        self,
        settings: InputSettings,
        *,
        num_words: int,
        static_shape: tuple[int, int] = (0, 0),
        elmo_shape: tuple[int, int] | None = None,
        bilm: Elmo | None = None,
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
            self.characters = CharCNN(
                parse_filters(settings.filters),
                char_dim=settings.char_dim,
                characters=CHARACTERS,
                max_characters=settings.max_characters,
                end=END_OF_WORD,
            )
            self.size += self.characters.output_size
        self.num_elmo_layers, elmo_size = (0, 0) if elmo_shape is None else elmo_shape
        places = ["input", "output"] if settings.elmo_at == "both" else [settings.elmo_at]
        self.elmo_places = [] if elmo_shape is None else places
        self.mixes = nn.ModuleList(ScalarMix(self.num_elmo_layers) for _ in self.elmo_places)
        if elmo_shape is not None and settings.elmo_norm:
            self.register_buffer("means", torch.zeros(elmo_shape))
            self.register_buffer("deviations", torch.ones(self.num_elmo_layers))
        self.size += elmo_size if "input" in self.elmo_places else 0
        self.elmo_size = elmo_size if "output" in self.elmo_places else 0

    def set_static(self, matrix: Tensor) -> None:
        """Set the matrix of static vectors (V, D); row 0 is that of words without one."""
        self.static = matrix.to(self.static.device)

    def set_spread(self, spread: LayerSpread) -> None:
        """Set means and deviations of the layers of the biLM, or of the top ones if only these are mixed."""
        self.means.copy_(spread.means[-len(self.means) :])
        self.deviations.copy_(spread.deviations[-len(self.means) :])

    def penalty(self) -> Tensor | float:
        """Return lambda ||w||^2 over the weights of all mixes, which draws them towards equal weights."""
        if not self.elmo_places:
            return 0.0
        return self.settings.elmo_l2 * sum((mix.l2() for mix in self.mixes), start=0.0)  # type: ignore[operator]

    def mix_weights(self) -> dict[str, dict[str, Any]]:
        """Return the learned weights of the layers, from the lowest up, and gamma, of each mix by its place."""
        return {
            place: {"weights": mix.weights.softmax(dim=0).tolist(), "gamma": mix.gamma.item()}  # type: ignore[operator]
            for place, mix in zip(self.elmo_places, self.mixes, strict=True)
        }

    def forward(self, batch: WordBatch) -> Encoded:
        """Embed a batch: x (B, T, D), not necessarily zero in the padding; lengths; ELMo vectors for the output."""
        parts = self.embed_words(batch)
        if self.characters is not None:
            assert batch.spellings is not None
            assert batch.spelled is not None
            parts.append(self.characters(batch.spellings)[batch.spelled])  # (B, T, F)
        mixtures = self.mix_layers(batch)
        elmo = mixtures.pop() if self.elmo_size else None
        return Encoded(torch.cat([*parts, *mixtures], dim=2), batch.lengths, elmo)

    def embed_words(self, batch: WordBatch) -> list[Tensor]:
        """Return the learned and the static vectors, (B, T, …) each; in training with word dropout."""
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
            static = torch.nn.functional.embedding(rows, self.static)
            if self.difference is not None and words is not None:
                static = static + self.difference(words)
            parts.append(static)
        return parts

    def mix_layers(self, batch: WordBatch) -> list[Tensor]:
        """Return the ELMo vectors for each place, (B, T, E), with dropout in training."""
        if not self.elmo_places:
            return []
        layers = self.read_layers(batch)  # (K, B, T, E)
        steps = torch.arange(layers.shape[2], device=layers.device)
        mask = steps < batch.lengths.to(layers.device).unsqueeze(1)  # (B, T)
        if self.settings.elmo_norm:
            layers = (layers - self.means[:, None, None]) / self.deviations.view(-1, 1, 1, 1) * mask.unsqueeze(2)
        return [drop(mix(layers), self.settings.elmo_dropout, self.training) for mix in self.mixes]

    def read_layers(self, batch: WordBatch) -> Tensor:
        """Return the layers of the biLM that are mixed, (K, B, T, E)."""
        if self.bilm is None:
            assert batch.layers is not None
            return batch.layers.movedim(2, 0).float()
        assert batch.elmo_ids is not None
        ids = batch.elmo_ids
        mask = (ids > 0).any(dim=2) if self.bilm.by_characters else ids > 0
        layers, _ = self.bilm.read(*self.bilm.encode(ids, mask), mask)
        return layers[-self.num_elmo_layers :, :, 1:-1]


class TaskNetwork(nn.Module):
    """Word inputs and the network of a task (`body`), which is called with the embedded texts of a batch and has
    `loss(output, targets)`. A task whose batches contain more has a subclass with another `forward`."""

    def __init__(self, inputs: WordInputs, body: nn.Module):
        super().__init__()
        self.inputs = inputs
        self.body = body

    def forward(self, batch: Any) -> Any:
        """Return the output of the task's network."""
        return self.body(*map(self.inputs, batch.texts))

    def loss(self, batch: Any, carry: State | None = None) -> Loss:
        """Return the loss of a batch with targets; nothing is carried to the next one."""
        mean = self.body.loss(self(batch), batch.targets)  # type: ignore[operator]
        return Loss(mean + self.inputs.penalty(), batch.predictions, ())
