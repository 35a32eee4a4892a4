"""Sentences to vectors, one a word or one a sentence: the part that classifiers and pairs of sentences share.

Embedded words go through recurrent layers; ELMo vectors may be put beside the layers' output (`again`); a pool makes
one vector of a sentence.

    Dai & Le 2015, Semi-supervised sequence learning (the layers start from a language model's)
    Conneau et al. 2017, Supervised learning of universal sentence representations (the maximum over a biLSTM)
    Wieting et al. 2016, Towards universal paraphrastic sentence embeddings (no recurrent layers: an average of words)
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.errors import ModelError
from relmo.nn.attention import AttentivePool
from relmo.nn.cells import make_cell
from relmo.nn.dropout import SequenceDropout
from relmo.nn.pooling import blank, final, maximum, mean
from relmo.nn.recurrent import Recurrent
from relmo.settings.cells import CellName

PoolName = Literal["final", "mean", "max", "attention"]


class Encoded(NamedTuple):
    """Sentences as numbers: embedded words x (B, T, D), lengths (B,), ELMo vectors for the output (B, T, E) or None."""

    x: Tensor
    lengths: Tensor
    again: Tensor | None = None


class SentenceEncoder(nn.Module):
    """Words to vectors that know their sentence: dropout -> recurrent layers -> [output; again].

    again_size    the size of the ELMo vectors put beside the output; 0 where there are none
    dropout       on the input and between layers, variational: one mask for all words of a sentence
    projection    of cells that have one: the size to which the output is projected
    residual      a layer whose input and output sizes agree adds its input to its output
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
        again_size: int = 0,
    ):
        super().__init__()
        self.again_size = again_size
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
        self.own_size = self.recurrent.output_size
        self.output_size = self.own_size + again_size

    def forward(self, x: Tensor, lengths: Tensor, again: Tensor | None = None) -> Tensor:
        """x (B, T, D), lengths (B,), again (B, T, E) -> (B, T, O), zero past each sentence's end."""
        y = read(self.recurrent, self.dropout(x), lengths)
        return with_again(y, lengths, again, self.again_size)

    def final(self, y: Tensor, lengths: Tensor) -> Tensor:
        """Where each direction's reading of the output y (B, T, O) ended, (B, O); ELMo's two directions as well."""
        own, again = y.split([self.own_size, self.again_size], dim=2)
        ends = final(own, lengths, directions=self.recurrent.directions)
        return torch.cat([ends, final(again, lengths, directions=2)], dim=1) if self.again_size else ends

    @torch.no_grad()
    def start_from(self, trained: Recurrent) -> None:
        """Takes over the weights of a language model's recurrent layers (`LanguageModel.encoder.recurrent`)."""
        here, there = _describe(self.recurrent), _describe(trained)
        for what in here:
            if here[what] != there[what]:
                raise ModelError(
                    f"cannot start from this language model: its {what} is {there[what]}, this network's {here[what]}; "
                    f"train with the language model's"
                )
        self.recurrent.load_state_dict(trained.state_dict())


class LinearEncoder(nn.Module):
    """Words to vectors that know nothing of their sentence: dropout -> W x + b -> [output; again]. An encoder of no
    recurrent layers is this one."""

    def __init__(self, *, input_size: int, hidden: int, dropout: float = 0.0, again_size: int = 0):
        super().__init__()
        self.again_size = again_size
        self.dropout = SequenceDropout(dropout, variational=True)
        self.linear = nn.Linear(input_size, hidden)
        self.own_size, self.output_size = hidden, hidden + again_size

    def forward(self, x: Tensor, lengths: Tensor, again: Tensor | None = None) -> Tensor:
        """As `SentenceEncoder`."""
        y = blank(self.linear(self.dropout(blank(x, lengths))), lengths)
        return with_again(y, lengths, again, self.again_size)


class PooledEncoder(nn.Module):
    """Sentences to one vector each: an encoder and a pool over what it gives.

    final       where each direction's reading ended
    mean, max   over the words
    attention   a mean with learned weights: softmax_t(v . tanh(W y_t + b))
    """

    def __init__(self, encoder: SentenceEncoder | LinearEncoder, *, pool: PoolName):
        super().__init__()
        if pool == "final" and isinstance(encoder, LinearEncoder):
            raise ValueError("pool final is where reading ended, and without recurrent layers nothing is read")
        self.encoder = encoder
        self.output_size = encoder.output_size
        self.pool = pool
        self.attention = AttentivePool(self.output_size, hidden=encoder.own_size) if pool == "attention" else None

    def forward(self, x: Tensor, lengths: Tensor, again: Tensor | None = None) -> Tensor:
        """x (B, T, D), lengths (B,), again (B, T, E) -> (B, O); of an empty sentence zeros."""
        y = self.encoder(x, lengths, again)
        if self.attention is not None:
            return self.attention(y, lengths).vector
        if isinstance(self.encoder, SentenceEncoder) and self.pool == "final":
            return self.encoder.final(y, lengths)
        return mean(y, lengths) if self.pool == "mean" else maximum(y, lengths)


def make_encoder(
    *, input_size: int, hidden: int, layers: int, dropout: float, again_size: int, **recurrent: Any
) -> SentenceEncoder | LinearEncoder:
    """Recurrent layers as the other options have them, or, where there are none, a linear layer for each word."""
    sizes: dict[str, Any] = {"input_size": input_size, "hidden": hidden, "dropout": dropout, "again_size": again_size}
    return SentenceEncoder(**sizes, layers=layers, **recurrent) if layers else LinearEncoder(**sizes)


def read(recurrent: Recurrent, x: Tensor, lengths: Tensor) -> Tensor:
    """The output (B, T, O) of recurrent layers over x (B, T, D), zero past the end; empty sentences are all past it.

    torch's recurrences take no empty sequence, so that such a sentence is read as one word and its output blanked.
    """
    steps = x.shape[1]
    x = blank(x, lengths)
    y = recurrent(pad(x, (0, 0, 0, 1)) if steps == 0 else x, None, lengths.clamp(min=1)).output
    return blank(y[:, :steps], lengths)


def with_again(y: Tensor, lengths: Tensor, again: Tensor | None, size: int) -> Tensor:
    """[y; again], where the network was made for ELMo vectors at its output."""
    given = 0 if again is None else again.shape[2]
    if given != size:
        raise ValueError(f"this network takes vectors of size {size} beside its encoder's output, got size {given}")
    return y if again is None else torch.cat([y, blank(again, lengths).to(y.dtype)], dim=2)


def _describe(recurrent: Recurrent) -> dict[str, str]:
    """What must agree between recurrent layers for weights to be taken over, in words."""
    first = recurrent.cells[0][0]
    return {
        "cell": first.describe(),
        "number of layers": str(len(recurrent.layers)),
        "number of directions": str(recurrent.directions),
        "input size": str(first.input_size),
        "hidden size": str(first.hidden_size),
        "output size": str(first.output_size),
        "residual connection": "on" if recurrent.residual else "off",
    }
