"""What a task's network reads of words, and the network around: words as numbers in, a loss or an output out.

    x = [learned vector; static vector; characters; ELMo]          each part only where it is asked for
    again = ELMo, by a mix of its own                              for the output of the (first) encoder

Choices:
- Characters are read by a small CNN of the task's own, once for each distinct word of a batch.
- Static vectors that are tuned are the file's, which stay, plus a learned difference that starts at zero: words that
  training has not seen keep theirs.
- A frozen biLM's layers come with the batch; one that is trained with the task is part of the network (`Elmo`).

    Peters et al. 2018, Deep contextualized word representations;  Ma & Hovy 2016 (characters)
"""

from collections.abc import Sequence
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
from relmo.text.characters import CHARACTERS, END_OF_WORD

IGNORED = -100  # a target past a text's end
UNKNOWN = 0  # the number of words that have none of their own; in the matrix of static vectors, of those without one


class WordBatch(NamedTuple):
    """Sentences side by side as numbers, padded with zeros; parts that nobody reads are None.

    lengths      (B,)
    words        (B, T): numbers in the vocabulary of the training examples
    rows         (B, T): rows of the static vectors; 0 for a word that has none
    spellings    (N, C): character ids of the distinct words
    spelled      (B, T): which of those a word is
    layers       (B, T, K, E): the layers of a frozen biLM, half precision
    elmo_ids     (B, T, C) or (B, T): what a biLM that is trained reads
    """

    lengths: Tensor
    words: Tensor | None = None
    rows: Tensor | None = None
    spellings: Tensor | None = None
    spelled: Tensor | None = None
    layers: Tensor | None = None
    elmo_ids: Tensor | None = None


class TaskBatch(NamedTuple):
    """Examples side by side: the words of each of their texts; in training, what is to be predicted, and how many
    predictions that is. A task whose network reads more has a batch of its own."""

    texts: list[WordBatch]
    targets: Tensor | None = None
    predictions: int = 0


class ElmoParts(NamedTuple):
    """The mixes of a biLM's layers: how many layers of what size there are, where they go, how they are mixed.

    norm  layers are centred and scaled before they are mixed, by what `put_spread` is given
    l2    lambda: how much the squared weights of the mixes add to the loss
    """

    layers: int
    size: int
    at_input: bool
    at_output: bool
    dropout: float
    norm: bool = False
    l2: float = 0.0


class LayerSpread(NamedTuple):
    """Where the layers of a biLM lie: the mean vector of each (K, E), and how far its numbers are from that (K,)."""

    means: Tensor
    deviations: Tensor


class WordInputs(nn.Module):
    """Words as numbers to vectors.

    words, word_dim    learned vectors: how many, and their size; no size, none
    static             the shape of the matrix of static vectors, which `put_static` fills; tuned: they are learned on
    filters            the character CNN's pairs (width, how many); none, no characters
    word_dropout       while training, the share of words that are unknown to learned and static vectors
    elmo, bilm         the mixes of a biLM's layers; the biLM itself where it is trained too
    """

    static: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(
        self,
        *,
        words: int,
        word_dim: int = 0,
        static: tuple[int, int] = (0, 0),
        tuned: bool = False,
        filters: Sequence[tuple[int, int]] = (),
        char_dim: int = 16,
        max_characters: int = 50,
        word_dropout: float = 0.0,
        elmo: ElmoParts | None = None,
        bilm: Elmo | None = None,
    ):
        super().__init__()
        self.word_dropout = word_dropout
        self.words = nn.Embedding(words, word_dim) if word_dim else None
        if self.words is not None:
            nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.register_buffer("static", torch.zeros(static), persistent=False)
        self.difference = nn.Embedding(words, static[1], padding_idx=UNKNOWN) if tuned else None
        if self.difference is not None:
            nn.init.zeros_(self.difference.weight)
        self.characters = (
            CharCNN(filters, char_dim=char_dim, characters=CHARACTERS, max_characters=max_characters, end=END_OF_WORD)
            if filters
            else None
        )
        self.elmo, self.bilm = elmo, bilm
        places = 0 if elmo is None else elmo.at_input + elmo.at_output
        self.mixes = nn.ModuleList(ScalarMix(elmo.layers) for _ in range(places) if elmo is not None)
        if elmo is not None and elmo.norm:
            self.register_buffer("means", torch.zeros(elmo.layers, elmo.size))
            self.register_buffer("deviations", torch.ones(elmo.layers))
        characters = 0 if self.characters is None else self.characters.output_size
        self.again_size = elmo.size if elmo is not None and elmo.at_output else 0
        at_input = elmo.size if elmo is not None and elmo.at_input else 0
        self.size = word_dim + static[1] + characters + at_input

    def put_static(self, matrix: Tensor) -> None:
        """Takes a matrix of static vectors (V, D); row 0 is of words that have none."""
        self.static = matrix.to(self.static.device)

    def put_spread(self, spread: LayerSpread) -> None:
        """Takes where the biLM's layers lie; of the top ones where only some are mixed."""
        self.means.copy_(spread.means[-len(self.means) :])
        self.deviations.copy_(spread.deviations[-len(self.means) :])

    def penalty(self) -> Tensor | float:
        """lambda ||w||^2, over the weights of all mixes, which draws them towards even ones."""
        if self.elmo is None:
            return 0.0
        return self.elmo.l2 * sum((mix.l2() for mix in self.mixes), start=0.0)  # type: ignore[operator]

    def mix_weights(self) -> dict[str, dict[str, Any]]:
        """What each mix has learned, by its place: the layers' shares, from the lowest up, and gamma."""
        if self.elmo is None:
            return {}
        places = ["input"] * self.elmo.at_input + ["output"] * self.elmo.at_output
        shares = [mix.weights.softmax(dim=0).tolist() for mix in self.mixes]  # type: ignore[operator]
        gammas = [mix.gamma.item() for mix in self.mixes]  # type: ignore[operator]
        return {p: {"weights": w, "gamma": g} for p, w, g in zip(places, shares, gammas, strict=True)}

    def forward(self, batch: WordBatch) -> Encoded:
        """-> x (B, T, D), zero past a sentence's end or not; lengths; again (B, T, E) where ELMo is at the output."""
        parts = self.known_words(batch)
        if self.characters is not None:
            assert batch.spellings is not None
            assert batch.spelled is not None
            parts.append(self.characters(batch.spellings)[batch.spelled])  # (B, T, F)
        mixed = self.mixed(batch)
        again = mixed.pop() if self.again_size else None
        return Encoded(torch.cat([*parts, *mixed], dim=2), batch.lengths, again)

    def known_words(self, batch: WordBatch) -> list[Tensor]:
        """The learned and the static vectors, (B, T, …) each; some words made unknown while training."""
        words, rows = batch.words, batch.rows
        if self.training and self.word_dropout:
            some = words if words is not None else rows
            if some is not None:
                kept = torch.rand(some.shape, device=some.device) >= self.word_dropout
                words, rows = (None if ids is None else ids * kept for ids in (words, rows))  # UNKNOWN is 0
        parts = []
        if self.words is not None and words is not None:
            parts.append(self.words(words))
        if len(self.static) and rows is not None:
            static = torch.nn.functional.embedding(rows, self.static)
            if self.difference is not None and words is not None:
                static = static + self.difference(words)
            parts.append(static)
        return parts

    def mixed(self, batch: WordBatch) -> list[Tensor]:
        """ELMo's vectors for each place, (B, T, E), dropped out while training."""
        if self.elmo is None:
            return []
        layers = self.layers(batch)  # (K, B, T, E)
        steps = torch.arange(layers.shape[2], device=layers.device)
        mask = steps < batch.lengths.to(layers.device).unsqueeze(1)  # (B, T)
        if self.elmo.norm:
            layers = (layers - self.means[:, None, None]) / self.deviations.view(-1, 1, 1, 1) * mask.unsqueeze(2)
        p = self.elmo.dropout
        return [drop(mix(layers), p, self.training) for mix in self.mixes]

    def layers(self, batch: WordBatch) -> Tensor:
        """The biLM's layers (K, B, T, E), or its top one alone (1, B, T, E), as many as are mixed."""
        if self.bilm is None:
            assert batch.layers is not None
            return batch.layers.movedim(2, 0).float()
        assert batch.elmo_ids is not None
        ids = batch.elmo_ids
        mask = (ids > 0).any(dim=2) if self.bilm.by_characters else ids > 0
        layers, _ = self.bilm.read(*self.bilm.encode(ids, mask), mask)
        return layers[-self.elmo.layers :, :, 1:-1] if self.elmo is not None else layers


class TaskNetwork(nn.Module):
    """Word inputs, then a task's own network (`body`), which is called with what the inputs give of each text of a
    batch, and has `loss(output, targets)`. A task whose batches hold more has a subclass with a `forward` of its own.
    """

    def __init__(self, inputs: WordInputs, body: nn.Module):
        super().__init__()
        self.inputs = inputs
        self.body = body

    def forward(self, batch: Any) -> Any:
        """What the task's network puts out."""
        return self.body(*map(self.inputs, batch.texts))

    def loss(self, batch: Any, carry: State | None = None) -> Loss:
        """The loss of a batch with targets; nothing is carried to the next one."""
        mean = self.body.loss(self(batch), batch.targets)  # type: ignore[operator]
        return Loss(mean + self.inputs.penalty(), batch.predictions, ())
