"""Sentence classifiers: recurrent layers and pooling, and the biattentive classification network (BCN).

The input is embedded words, the output logits; in evaluation mode the logits of a sentence depend on nothing else.

    McCann et al. 2017, Learned in translation: contextualized word vectors (BCN)
    Peters et al. 2018, Deep contextualized word representations (BCN with ELMo at input and output of the first biLSTM)
    Dai & Le 2015, Semi-supervised sequence learning (initialisation from a language model)
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from relmo.errors import ModelError
from relmo.networks.sentence_encoder import Encoded, SentenceEncoder, make_encoder, run_recurrent
from relmo.nn.attention import AttentivePool, biattention
from relmo.nn.cells import initialise
from relmo.nn.cells.lstm import LSTMCell
from relmo.nn.dropout import MLP, Maxout, drop
from relmo.nn.pooling import mask_padding, maximum, mean, minimum
from relmo.nn.recurrent import Recurrent
from relmo.settings.classifier import ClassifierModelSettings


class ClassNetwork(nn.Module):
    """Network whose output is logits."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of -log p(label) for logits (B, C) and labels (B,)."""
        return cross_entropy(logits, labels)


class PooledClassifier(ClassNetwork):
    """dropout -> recurrent layers [; ELMo] -> pool -> dropout -> MLP -> classes.

    Dropout is on the input, between layers, on the pooled vector and in the MLP.
    """

    def __init__(self, settings: ClassifierModelSettings, *, input_size: int, num_classes: int, elmo_size: int = 0):
        super().__init__()
        self.dropout = settings.dropout
        self.sentences = make_encoder(
            settings,
            input_size=input_size,
            elmo_size=elmo_size,
            projection=settings.projection,
            residual=settings.residual,
        )
        self.mlp = MLP(self.sentences.output_size, settings.mlp, dropout=settings.dropout)
        self.output = nn.Linear(self.mlp.output_size, num_classes)
        initialise(self)

    def forward(self, texts: Encoded) -> Tensor:
        """Return logits (B, C)."""
        pooled = drop(self.sentences(*texts), self.dropout, self.training)
        return self.output(self.mlp(pooled))

    def start_from(self, source: Recurrent) -> None:
        """Copy the recurrent layers of a language model, `LanguageModel.encoder.recurrent`, or raise `ModelError` if
        the geometry differs. Embeddings, which are not part of this network, are copied by the caller."""
        encoder = self.sentences.encoder
        if not isinstance(encoder, SentenceEncoder):
            raise ModelError("cannot start from a language model: this network has no recurrent layers")
        encoder.start_from(source)


class BCN(ClassNetwork):
    """Biattentive classification network; a text attends to itself.

    x' = dropout(relu(W x + b))                                    `hidden` units per word
    X  = biLSTM(x')  [; ELMo]
    C  = soft alignment of X with itself
    Z  = biLSTM([X; X - C; X * C])                                 the integrator
    p  = [max Z; mean Z; min Z; attentive Z]
    logits = maxout layers: p -> |p| / 2 -> |p| / 4 -> classes

    The dropout of the settings is that on the input; the others are as published.
    """

    hidden_dropout = 0.25
    pooled_dropout = 0.1
    maxout_dropouts = (0.2, 0.3, 0.0)
    pieces = 4

    def __init__(self, settings: ClassifierModelSettings, *, input_size: int, num_classes: int, elmo_size: int = 0):
        super().__init__()
        hidden = settings.hidden
        self.input_dropout = settings.dropout
        self.words = MLP(input_size, [hidden], dropout=self.hidden_dropout)
        self.encoder = SentenceEncoder(input_size=hidden, hidden=hidden, elmo_size=elmo_size)
        self.integrator = Recurrent(
            lambda size: LSTMCell(size, hidden_size=hidden),
            input_size=3 * self.encoder.output_size,
            bidirectional=True,
        )
        self.attention = AttentivePool(2 * hidden)
        sizes = [4 * hidden, 2 * hidden, num_classes]
        self.output = Maxout(8 * hidden, sizes, pieces=self.pieces, dropouts=self.maxout_dropouts)
        initialise(self)

    def forward(self, texts: Encoded) -> Tensor:
        """Return logits (B, C)."""
        x, lengths, elmo = texts
        x = drop(mask_padding(x, lengths), self.input_dropout, self.training)
        X = self.encoder(self.words(x), lengths, elmo)  # (B, T, 2H + E)
        Z = run_recurrent(self.integrator, biattention(X, X, lengths, lengths).first, lengths)  # (B, T, 2H)
        pools = [maximum(Z, lengths), mean(Z, lengths), minimum(Z, lengths), self.attention(Z, lengths).vector]
        return self.output(drop(torch.cat(pools, dim=1), self.pooled_dropout, self.training))
