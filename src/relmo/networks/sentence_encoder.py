"""Sentence encoders, shared by classifiers and sentence pairs: embedded words to one vector per word or per sentence.

Embedded words go through recurrent layers; ELMo vectors may be appended to the output of the layers; pooling makes one
vector of a sentence.

    Dai & Le 2015, Semi-supervised sequence learning (initialisation from a language model)
    Conneau et al. 2017, Supervised learning of universal sentence representations (maximum over a biLSTM)
    Wieting et al. 2016, Towards universal paraphrastic sentence embeddings (no recurrent layers: average of words)
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.errors import ModelError
from relmo.nn.attention import AttentivePool
from relmo.nn.cells import make_cell
from relmo.nn.dropout import SequenceDropout
from relmo.nn.pooling import final, mask_padding, maximum, mean
from relmo.nn.recurrent import Recurrent
from relmo.settings.cells import CellName
from relmo.settings.task import SentenceModelSettings

PoolName = Literal["final", "mean", "max", "attention"]


class Encoded(NamedTuple):
    """Embedded words x (B, T, D), lengths (B,), and ELMo vectors for the encoder's output (B, T, E) or None."""

    x: Tensor
    lengths: Tensor
    elmo: Tensor | None = None


class SentenceEncoder(nn.Module):
    """Contextual word vectors: dropout -> recurrent layers -> [output; ELMo].

    elmo_size     size of the ELMo vectors that are appended to the output; 0 for none
    dropout       on the input and between layers, variational: one mask for all words of a sentence
    projection    size of the projected output, for cells that have one
    residual      add the input of a layer to its output if the sizes agree
    """

    def __init__(
        self,
        *,
        input_size: int,
        hidden: int,
        cell: CellName = "lstm",
        layers: int = 1,
        bidirectional: bool = True,
        projection: int | None = None,
        residual: bool = False,
        dropout: float = 0.0,
        elmo_size: int = 0,
    ):
        super().__init__()
        self.elmo_size = elmo_size
        self.dropout = SequenceDropout(dropout, variational=True)
        self.recurrent = Recurrent(
            make_cell(cell, hidden, **({"projection": projection} if projection else {})),
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

    def final(self, y: Tensor, lengths: Tensor) -> Tensor:
        """Return the final output of each direction, (B, O), from outputs y (B, T, O); ELMo has two directions too."""
        hidden, elmo = y.split([self.hidden_size, self.elmo_size], dim=2)
        ends = final(hidden, lengths, directions=self.recurrent.directions)
        return torch.cat([ends, final(elmo, lengths, directions=2)], dim=1) if self.elmo_size else ends

    @torch.no_grad()
    def start_from(self, source: Recurrent) -> None:
        """Copy the weights of the recurrent layers of a language model (`LanguageModel.encoder.recurrent`)."""
        expected, actual = _describe(self.recurrent), _describe(source)
        for what in expected:
            if expected[what] != actual[what]:
                raise ModelError(
                    f"cannot start from this language model: its {what} is {actual[what]}, that of this network "
                    f"{expected[what]}; use that of the language model"
                )
        self.recurrent.load_state_dict(source.state_dict())


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
    """Encoder and pooling: one vector per sentence.

    final       final output of each direction
    mean, max   over the words
    attention   a mean with learned weights: softmax_t(v . tanh(W y_t + b))
    """

    def __init__(self, encoder: SentenceEncoder | LinearEncoder, *, pool: PoolName):
        super().__init__()
        if pool == "final" and isinstance(encoder, LinearEncoder):
            raise ValueError("pool final needs recurrent layers")
        self.encoder = encoder
        self.output_size = encoder.output_size
        self.pool = pool
        self.attention = AttentivePool(self.output_size, hidden=encoder.hidden_size) if pool == "attention" else None

    def forward(self, x: Tensor, lengths: Tensor, elmo: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D) with lengths (B,) and ELMo vectors (B, T, E); (B, O), zero for an empty sentence."""
        y = self.encoder(x, lengths, elmo)
        if self.attention is not None:
            return self.attention(y, lengths).vector
        if isinstance(self.encoder, SentenceEncoder) and self.pool == "final":
            return self.encoder.final(y, lengths)
        return mean(y, lengths) if self.pool == "mean" else maximum(y, lengths)


def make_encoder(
    settings: SentenceModelSettings,
    *,
    input_size: int,
    elmo_size: int,
    projection: int | None = None,
    residual: bool = False,
) -> PooledEncoder:
    """Build the pooled encoder of these settings."""
    encoder: SentenceEncoder | LinearEncoder
    if settings.layers:
        encoder = SentenceEncoder(
            input_size=input_size,
            hidden=settings.hidden,
            cell=settings.cell,
            layers=settings.layers,
            bidirectional=settings.directions == 2,
            projection=projection,
            residual=residual,
            dropout=settings.dropout,
            elmo_size=elmo_size,
        )
    else:
        encoder = LinearEncoder(
            input_size=input_size, hidden=settings.hidden, dropout=settings.dropout, elmo_size=elmo_size
        )
    return PooledEncoder(encoder, pool=settings.pool)


def run_recurrent(recurrent: Recurrent, x: Tensor, lengths: Tensor) -> Tensor:
    """Run recurrent layers over x (B, T, D); (B, T, O), zero in the padding.

    PyTorch's recurrences take no empty sequences, so that an empty sentence is read as one word and then zeroed.
    """
    steps = x.shape[1]
    x = mask_padding(x, lengths)
    y = recurrent(pad(x, (0, 0, 0, 1)) if steps == 0 else x, None, lengths.clamp(min=1)).output
    return mask_padding(y[:, :steps], lengths)


def append_elmo(y: Tensor, lengths: Tensor, elmo: Tensor | None, elmo_size: int) -> Tensor:
    """Return [y; ELMo], or y for a network without ELMo vectors at its output."""
    size = 0 if elmo is None else elmo.shape[2]
    if size != elmo_size:
        raise ValueError(f"the network takes ELMo vectors of size {elmo_size} at the encoder's output, got size {size}")
    return y if elmo is None else torch.cat([y, mask_padding(elmo, lengths).to(y.dtype)], dim=2)


def _describe(recurrent: Recurrent) -> dict[str, str]:
    cell = recurrent.cells[0][0]
    return {
        "cell": cell.describe(),
        "number of layers": str(len(recurrent.layers)),
        "number of directions": str(recurrent.directions),
        "input size": str(cell.input_size),
        "hidden size": str(cell.hidden_size),
        "output size": str(cell.output_size),
        "residual connection": "on" if recurrent.residual else "off",
    }
