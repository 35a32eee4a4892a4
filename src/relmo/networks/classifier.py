"""Networks that put a sentence into a class: recurrent layers and a pool, and the biattentive classification network.

They get embedded words and give logits; in evaluation mode a sentence's logits depend on nothing but the sentence.

    McCann et al. 2017, Learned in translation: contextualized word vectors (BCN)
    Peters et al. 2018, Deep contextualized word representations (BCN with ELMo at the first biLSTM's input and output)
    Dai & Le 2015, Semi-supervised sequence learning (starting from a language model)
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from relmo.errors import ModelError
from relmo.networks.sentence_encoder import (
    CellName,
    Encoded,
    PooledEncoder,
    PoolName,
    SentenceEncoder,
    make_encoder,
    read,
)
from relmo.nn.attention import AttentivePool, biattention
from relmo.nn.cells import LSTMCell
from relmo.nn.dropout import drop
from relmo.nn.initialise import initialise
from relmo.nn.mlp import MLP, Maxout
from relmo.nn.pooling import blank, maximum, mean, minimum
from relmo.nn.recurrent import Recurrent


class ClassNetwork(nn.Module):
    """A network that puts out logits."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean of -log p(label): logits (B, C), labels (B,)."""
        return cross_entropy(logits, labels)


class PooledClassifier(ClassNetwork):
    """dropout -> recurrent layers [; again] -> pool -> dropout -> MLP -> classes.

    pool      final, mean, max or attention, as `PooledEncoder` explains
    mlp       the sizes of the layers between the pooled vector and the classes; none: straight to the classes
    dropout   on the input, between layers, on the pooled vector and in the MLP
    """

    def __init__(
        self,
        *,
        input_size: int,
        classes: int,
        hidden: int = 300,
        cell: CellName = "lstm",
        layers: int = 1,
        bidirectional: bool = True,
        projection: int | None = None,
        residual: bool = False,
        pool: PoolName = "final",
        again_size: int = 0,
        mlp: Sequence[int] = (),
        dropout: float = 0.5,
    ):
        super().__init__()
        self.dropout = dropout
        encoder = make_encoder(
            input_size=input_size,
            hidden=hidden,
            cell=cell,
            layers=layers,
            bidirectional=bidirectional,
            projection=projection,
            residual=residual,
            dropout=dropout,
            again_size=again_size,
        )
        self.sentences = PooledEncoder(encoder, pool=pool)
        self.mlp = MLP(self.sentences.output_size, mlp, dropout=dropout)
        self.output = nn.Linear(self.mlp.output_size, classes)
        initialise(self)

    def forward(self, texts: Encoded) -> Tensor:
        """B texts -> logits (B, C)."""
        pooled = drop(self.sentences(*texts), self.dropout, self.training)
        return self.output(self.mlp(pooled))

    def start_from(self, trained: Recurrent) -> None:
        """Starts from a language model's recurrent layers, `LanguageModel.encoder.recurrent`; an error says what does
        not fit. The words' embeddings are no part of this network: they are taken over where x is made."""
        encoder = self.sentences.encoder
        if not isinstance(encoder, SentenceEncoder):
            raise ModelError("cannot start from a language model: this network has no recurrent layers")
        encoder.start_from(trained)


class BCN(ClassNetwork):
    """The biattentive classification network, a text attending to itself.

    x' = dropout(relu(W x + b))                                    `hidden` units a word
    X  = biLSTM(x')  [; again]
    C  = the soft alignment of X with itself
    Z  = biLSTM([X; X - C; X * C])                                 the integrator
    p  = [max Z; mean Z; min Z; attentive Z]
    logits = maxout layers: p -> |p| / 2 -> |p| / 4 -> classes

    `dropouts` after the layers of maxout are 0.2, 0.3 and 0 as published; the others are named.
    """

    def __init__(
        self,
        *,
        input_size: int,
        classes: int,
        hidden: int = 300,
        again_size: int = 0,
        input_dropout: float = 0.5,
        hidden_dropout: float = 0.25,
        pooled_dropout: float = 0.1,
        maxout_dropouts: Sequence[float] = (0.2, 0.3, 0.0),
        pieces: int = 4,
    ):
        super().__init__()
        self.input_dropout = input_dropout
        self.pooled_dropout = pooled_dropout
        self.words = MLP(input_size, [hidden], dropout=hidden_dropout)
        self.encoder = SentenceEncoder(input_size=hidden, hidden=hidden, again_size=again_size)
        width = 3 * self.encoder.output_size
        self.integrator = Recurrent(
            lambda size: LSTMCell(size, hidden_size=hidden), input_size=width, bidirectional=True
        )
        self.attention = AttentivePool(2 * hidden)
        sizes = [4 * hidden, 2 * hidden, classes]
        self.output = Maxout(8 * hidden, sizes, pieces=pieces, dropouts=maxout_dropouts)
        initialise(self)

    def forward(self, texts: Encoded) -> Tensor:
        """B texts -> logits (B, C)."""
        x, lengths, again = texts
        x = drop(blank(x, lengths), self.input_dropout, self.training)
        X = self.encoder(self.words(x), lengths, again)  # (B, T, 2H + E)
        Z = read(self.integrator, biattention(X, X, lengths, lengths).first, lengths)  # (B, T, 2H)
        pools = [maximum(Z, lengths), mean(Z, lengths), minimum(Z, lengths), self.attention(Z, lengths).vector]
        return self.output(drop(torch.cat(pools, dim=1), self.pooled_dropout, self.training))
