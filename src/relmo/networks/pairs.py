"""Networks that compare two sentences: whole vectors with each other, or words with words.

Type I encodes each sentence by itself (`EncoderPair`, `CosineRegression`); type II lets the words of one look at the
words of the other (`ESIM`, `DecomposableAttention`). All are called alike, `network(first, second)`, and have
`loss(output, labels)`.

    Bowman et al. 2015, A large annotated corpus for learning natural language inference
    Mou et al. 2016, Natural language inference by tree-based convolution and heuristic matching ([u; v; |u-v|; u*v])
    Conneau et al. 2017, Supervised learning of universal sentence representations
    Chen et al. 2017, Enhanced LSTM for natural language inference (ESIM)
    Parikh et al. 2016, A decomposable attention model for natural language inference
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss

from relmo.networks.classifier import ClassNetwork
from relmo.networks.sentence_encoder import (
    CellName,
    Encoded,
    PooledEncoder,
    PoolName,
    SentenceEncoder,
    make_encoder,
    with_again,
)
from relmo.nn.attention import soft_align
from relmo.nn.dropout import drop
from relmo.nn.initialise import initialise
from relmo.nn.mlp import MLP
from relmo.nn.pooling import blank, maximum, mean


class EncoderPair(ClassNetwork):
    """One encoder for both sentences, u and v; [u; v; |u - v|; u * v] -> MLP -> classes.

    An LSTM's final state is `bidirectional=False`; a biLSTM's with `bidirectional=True`; InferSent's is `pool="max"`.
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
        pool: PoolName = "final",
        again_size: int = 0,
        mlp: Sequence[int] = (300,),
        dropout: float = 0.2,
    ):
        super().__init__()
        self.dropout = dropout
        encoder = make_encoder(
            input_size=input_size,
            hidden=hidden,
            cell=cell,
            layers=layers,
            bidirectional=bidirectional,
            dropout=dropout,
            again_size=again_size,
        )
        self.sentences = PooledEncoder(encoder, pool=pool)
        self.mlp = MLP(4 * self.sentences.output_size, mlp, dropout=dropout)
        self.output = nn.Linear(self.mlp.output_size, classes)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Two times B sentences -> logits (B, C)."""
        u, v = self.sentences(*first), self.sentences(*second)  # (B, O)
        features = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
        return self.output(self.mlp(drop(features, self.dropout, self.training)))


class CosineRegression(nn.Module):
    """How alike two sentences are, from `low` to `high`: low + (high - low) (1 + cos(u, v)) / 2, one encoder for both.

    The order of the sentences does not matter. An empty sentence has no direction: its cosine with any is zero.
    """

    def __init__(
        self,
        *,
        input_size: int,
        low: float = 0.0,
        high: float = 5.0,
        hidden: int = 300,
        cell: CellName = "lstm",
        layers: int = 1,
        bidirectional: bool = True,
        pool: PoolName = "mean",
        again_size: int = 0,
        dropout: float = 0.2,
    ):
        super().__init__()
        self.low, self.high = low, high
        encoder = make_encoder(
            input_size=input_size,
            hidden=hidden,
            cell=cell,
            layers=layers,
            bidirectional=bidirectional,
            dropout=dropout,
            again_size=again_size,
        )
        self.sentences = PooledEncoder(encoder, pool=pool)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Two times B sentences -> their similarities (B,)."""
        cosine = cosine_similarity(self.sentences(*first), self.sentences(*second), dim=1)
        return self.low + (self.high - self.low) * (1 + cosine) / 2

    def loss(self, values: Tensor, targets: Tensor) -> Tensor:
        """The mean squared error: values (B,), targets (B,)."""
        return mse_loss(values, targets.to(values.dtype))


class ESIM(ClassNetwork):
    """The enhanced sequential inference model.

    a = biLSTM(first) [; again], b = biLSTM(second) [; again]
    ã, b̃ = soft alignment of a and b by their dot products
    m_a = relu(W [a; ã; a - ã; a * ã] + b), m_b alike
    v_a = biLSTM(m_a), v_b alike
    logits = V tanh(U [mean v_a; max v_a; mean v_b; max v_b] + c) + d

    Dropout is variational on what the LSTMs read, ordinary around U.
    """

    def __init__(self, *, input_size: int, classes: int, hidden: int = 300, again_size: int = 0, dropout: float = 0.5):
        super().__init__()
        self.dropout = dropout
        self.encoder = SentenceEncoder(input_size=input_size, hidden=hidden, again_size=again_size, dropout=dropout)
        self.projection = MLP(4 * self.encoder.output_size, [hidden])
        self.composition = SentenceEncoder(input_size=hidden, hidden=hidden, dropout=dropout)
        self.mlp = MLP(8 * hidden, [hidden], dropout=dropout, activation="tanh")
        self.output = nn.Linear(hidden, classes)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Two times B sentences -> logits (B, C)."""
        a, b = self.encoder(*first), self.encoder(*second)  # (B, S, 2H + E), (B, T, 2H + E)
        aligned = soft_align(a, b, first.lengths, second.lengths)
        pooled = [
            *self.compose(a, aligned.first, first.lengths),
            *self.compose(b, aligned.second, second.lengths),
        ]
        return self.output(self.mlp(drop(torch.cat(pooled, dim=1), self.dropout, self.training)))

    def compose(self, a: Tensor, aligned: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Words beside what they are aligned with, read once more: mean and maximum, (B, 2H) each."""
        m = self.projection(torch.cat([a, aligned, a - aligned, a * aligned], dim=2))  # (B, T, H)
        v = self.composition(m, lengths)
        return mean(v, lengths), maximum(v, lengths)


class DecomposableAttention(ClassNetwork):
    """Words compared with words; the order of words is never looked at.

    a = W first [; again], b = W second [; again]
    e_ij = F(a_i) . F(b_j)                                   attend
    v_1i = G([a_i; ã_i]), v_2j = G([b_j; b̃_j])               compare
    logits = V H([sum_i v_1i; sum_j v_2j]) + c               aggregate

    F, G and H are two layers of rectifiers each.
    """

    def __init__(self, *, input_size: int, classes: int, hidden: int = 200, again_size: int = 0, dropout: float = 0.2):
        super().__init__()
        self.again_size = again_size
        size = hidden + again_size
        self.words = nn.Linear(input_size, hidden, bias=False)
        self.attend = MLP(size, [hidden, hidden], dropout=dropout)
        self.compare = MLP(2 * size, [hidden, hidden], dropout=dropout)
        self.aggregate = MLP(2 * hidden, [hidden, hidden], dropout=dropout)
        self.output = nn.Linear(hidden, classes)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Two times B sentences -> logits (B, C)."""
        a, b = self.projected(first), self.projected(second)  # (B, S, H + E), (B, T, H + E)
        e = self.attend(a) @ self.attend(b).transpose(1, 2)  # (B, S, T)
        aligned = soft_align(a, b, first.lengths, second.lengths, e)
        v_1 = blank(self.compare(torch.cat([a, aligned.first], dim=2)), first.lengths).sum(dim=1)  # (B, H)
        v_2 = blank(self.compare(torch.cat([b, aligned.second], dim=2)), second.lengths).sum(dim=1)
        return self.output(self.aggregate(torch.cat([v_1, v_2], dim=1)))

    def projected(self, sentence: Encoded) -> Tensor:
        """The words' vectors in the network's own size."""
        x = self.words(blank(sentence.x, sentence.lengths))
        return with_again(x, sentence.lengths, sentence.again, self.again_size)
