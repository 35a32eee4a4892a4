"""Networks that classify sentences and pairs of sentences. The input is embedded words, the output logits or a number.

In evaluation mode the output for an example depends on nothing else. Of the networks for pairs, type I encode each
sentence by itself (`PooledClassifier`, `CosineRegression`); in type II the words of one sentence attend to those of the
other (`ESIM`, `DecomposableAttention`).

    McCann et al. 2017, Learned in translation: contextualized word vectors (BCN)
    Peters et al. 2018, Deep contextualized word representations (BCN with ELMo at input and output of the first biLSTM)
    Bowman et al. 2015, A large annotated corpus for learning natural language inference
    Mou et al. 2016, Natural language inference by tree-based convolution and heuristic matching ([u; v; |u-v|; u*v])
    Conneau et al. 2017, Supervised learning of universal sentence representations
    Chen et al. 2017, Enhanced LSTM for natural language inference (ESIM)
    Parikh et al. 2016, A decomposable attention model for natural language inference
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss

from relmo.networks.inputs import Encoded, PooledEncoder, SentenceEncoder, append_elmo, run_recurrent
from relmo.nn.attention import AttentivePool, biattention, soft_align
from relmo.nn.dropout import MLP, Maxout, drop
from relmo.nn.pooling import mask_padding, maximum, mean
from relmo.nn.recurrence import initialise
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.nn.recurrence.stack import Recurrent
from relmo.settings.sections import SentenceModelSettings
from relmo.settings.tasks import ClassifierModelSettings, PairsModelSettings


class ClassNetwork(nn.Module):
    """Network whose output is logits."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of -log p(label) for logits (B, C) and labels (B,)."""
        return cross_entropy(logits, labels)


class PooledClassifier(ClassNetwork):
    """dropout -> recurrent layers [; ELMo] -> pool -> dropout -> MLP -> classes, for texts or for pairs of texts.

    Dropout is on the input, between layers, on the pooled vector and in the MLP. Two texts, u and v after pooling, have
    one encoder, and the MLP reads [u; v; |u - v|; u * v]; InferSent is a biLSTM with pool max.
    """

    def __init__(self, settings: SentenceModelSettings, *, input_size: int, num_classes: int, elmo_size: int = 0):
        super().__init__()
        self.dropout = settings.dropout
        options = {name: getattr(settings, name) for name in ("residual",) if hasattr(settings, name)}
        self.sentences = PooledEncoder(settings, input_size=input_size, elmo_size=elmo_size, **options)
        num_vectors = 4 if isinstance(settings, PairsModelSettings) else 1
        self.mlp = MLP(num_vectors * self.sentences.output_size, settings.mlp, dropout=settings.dropout)
        self.output = nn.Linear(self.mlp.output_size, num_classes)
        initialise(self)

    def forward(self, *texts: Encoded) -> Tensor:
        """Return logits (B, C)."""
        pooled = [self.sentences(*text) for text in texts]  # (B, O) each
        if len(pooled) == 2:
            u, v = pooled
            pooled = [torch.cat([u, v, (u - v).abs(), u * v], dim=1)]
        return self.output(self.mlp(drop(pooled[0], self.dropout, self.training)))


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

    hidden_dropout, pooled_dropout, maxout_dropouts = 0.25, 0.1, (0.2, 0.3, 0.0)
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
        Z = run_recurrent(self.integrator, biattention(X, X, lengths, lengths)[0], lengths)  # (B, T, 2H)
        pools = [maximum(Z, lengths), mean(Z, lengths), -maximum(-Z, lengths), self.attention(Z, lengths)[0]]
        return self.output(drop(torch.cat(pools, dim=1), self.pooled_dropout, self.training))


class CosineRegression(nn.Module):
    """Similarity of two sentences, low + (high - low) (1 + cos(u, v)) / 2; the cosine of an empty sentence is zero."""

    def __init__(self, settings: PairsModelSettings, *, input_size: int, elmo_size: int = 0):
        super().__init__()
        self.low, self.high = settings.low, settings.high
        self.sentences = PooledEncoder(settings, input_size=input_size, elmo_size=elmo_size)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Return similarities (B,)."""
        cosine = cosine_similarity(self.sentences(*first), self.sentences(*second), dim=1)
        return self.low + (self.high - self.low) * (1 + cosine) / 2

    def loss(self, similarities: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of similarities (B,) and targets (B,)."""
        return mse_loss(similarities, targets.to(similarities.dtype))


class ESIM(ClassNetwork):
    """Enhanced sequential inference model.

    a = biLSTM(first) [; ELMo], b = biLSTM(second) [; ELMo]
    ã, b̃ = soft alignment of a and b by their dot products
    m_a = relu(W [a; ã; a - ã; a * ã] + b), m_b alike
    v_a = biLSTM(m_a), v_b alike
    logits = V tanh(U [mean v_a; max v_a; mean v_b; max v_b] + c) + d

    Dropout is variational on the input of the LSTMs, ordinary around U.
    """

    def __init__(self, settings: PairsModelSettings, *, input_size: int, num_classes: int, elmo_size: int = 0):
        super().__init__()
        hidden, dropout = settings.hidden, settings.dropout
        self.dropout = dropout
        self.encoder = SentenceEncoder(input_size=input_size, hidden=hidden, elmo_size=elmo_size, dropout=dropout)
        self.projection = MLP(4 * self.encoder.output_size, [hidden])
        self.composition = SentenceEncoder(input_size=hidden, hidden=hidden, dropout=dropout)
        self.mlp = MLP(8 * hidden, [hidden], dropout=dropout, activation="tanh")
        self.output = nn.Linear(hidden, num_classes)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Return logits (B, C)."""
        a, b = self.encoder(*first), self.encoder(*second)  # (B, S, 2H + E), (B, T, 2H + E)
        aligned = soft_align(a, b, first.lengths, second.lengths)
        pooled = []
        for words, other, lengths in ((a, aligned[0], first.lengths), (b, aligned[1], second.lengths)):
            m = self.projection(torch.cat([words, other, words - other, words * other], dim=2))  # (B, T, H)
            v = self.composition(m, lengths)
            pooled += [mean(v, lengths), maximum(v, lengths)]  # (B, 2H) each
        return self.output(self.mlp(drop(torch.cat(pooled, dim=1), self.dropout, self.training)))


class DecomposableAttention(ClassNetwork):
    """Comparison of words with words, without their order.

    a = W first [; ELMo], b = W second [; ELMo]
    e_ij = F(a_i) . F(b_j)                                   attend
    v_1i = G([a_i; ã_i]), v_2j = G([b_j; b̃_j])               compare
    logits = V H([sum_i v_1i; sum_j v_2j]) + c               aggregate

    F, G and H are two layers of rectifiers each.
    """

    def __init__(self, settings: PairsModelSettings, *, input_size: int, num_classes: int, elmo_size: int = 0):
        super().__init__()
        hidden, dropout = settings.hidden, settings.dropout
        self.elmo_size = elmo_size
        size = hidden + elmo_size
        self.words = nn.Linear(input_size, hidden, bias=False)
        self.attend = MLP(size, [hidden, hidden], dropout=dropout)
        self.compare = MLP(2 * size, [hidden, hidden], dropout=dropout)
        self.aggregate = MLP(2 * hidden, [hidden, hidden], dropout=dropout)
        self.output = nn.Linear(hidden, num_classes)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Return logits (B, C)."""
        a, b = (
            append_elmo(self.words(mask_padding(x, lengths)), lengths, elmo, self.elmo_size)
            for x, lengths, elmo in (first, second)
        )  # (B, S, H + E), (B, T, H + E)
        e = self.attend(a) @ self.attend(b).transpose(1, 2)  # (B, S, T)
        aligned = soft_align(a, b, first.lengths, second.lengths, e)
        v_1 = mask_padding(self.compare(torch.cat([a, aligned[0]], dim=2)), first.lengths).sum(dim=1)  # (B, H)
        v_2 = mask_padding(self.compare(torch.cat([b, aligned[1]], dim=2)), second.lengths).sum(dim=1)
        return self.output(self.aggregate(torch.cat([v_1, v_2], dim=1)))
