"""Networks for sentence pairs, which compare sentence vectors or words.

Type I networks encode each sentence by itself (`EncoderPair`, `CosineRegression`); in type II networks the words of one
sentence attend to those of the other (`ESIM`, `DecomposableAttention`). All have `forward(first, second)` and
`loss(output, labels)`.

    Bowman et al. 2015, A large annotated corpus for learning natural language inference
    Mou et al. 2016, Natural language inference by tree-based convolution and heuristic matching ([u; v; |u-v|; u*v])
    Conneau et al. 2017, Supervised learning of universal sentence representations
    Chen et al. 2017, Enhanced LSTM for natural language inference (ESIM)
    Parikh et al. 2016, A decomposable attention model for natural language inference
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss

from relmo.networks.classifier import ClassNetwork
from relmo.networks.sentence_encoder import Encoded, SentenceEncoder, append_elmo, make_encoder
from relmo.nn.attention import soft_align
from relmo.nn.cells import initialise
from relmo.nn.dropout import MLP, drop
from relmo.nn.pooling import mask_padding, maximum, mean
from relmo.settings.pairs import PairsModelSettings


class EncoderPair(ClassNetwork):
    """One encoder for both sentences, u and v; [u; v; |u - v|; u * v] -> MLP -> classes.

    InferSent is a biLSTM with pool max.
    """

    def __init__(self, settings: PairsModelSettings, *, input_size: int, num_classes: int, elmo_size: int = 0):
        super().__init__()
        self.dropout = settings.dropout
        self.sentences = make_encoder(settings, input_size=input_size, elmo_size=elmo_size)
        self.mlp = MLP(4 * self.sentences.output_size, settings.mlp, dropout=settings.dropout)
        self.output = nn.Linear(self.mlp.output_size, num_classes)
        initialise(self)

    def forward(self, first: Encoded, second: Encoded) -> Tensor:
        """Return logits (B, C)."""
        u, v = self.sentences(*first), self.sentences(*second)  # (B, O)
        features = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
        return self.output(self.mlp(drop(features, self.dropout, self.training)))


class CosineRegression(nn.Module):
    """Similarity of two sentences, low + (high - low) (1 + cos(u, v)) / 2, with one encoder for both.

    It is symmetric. An empty sentence has no direction: its cosine with any other is zero.
    """

    def __init__(self, settings: PairsModelSettings, *, input_size: int, elmo_size: int = 0):
        super().__init__()
        self.low, self.high = settings.low, settings.high
        self.sentences = make_encoder(settings, input_size=input_size, elmo_size=elmo_size)
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
        pooled = [
            *self.compose(a, aligned.first, first.lengths),
            *self.compose(b, aligned.second, second.lengths),
        ]
        return self.output(self.mlp(drop(torch.cat(pooled, dim=1), self.dropout, self.training)))

    def compose(self, a: Tensor, aligned: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and maximum, (B, 2H) each, of the composition layer over words and their alignments."""
        m = self.projection(torch.cat([a, aligned, a - aligned, a * aligned], dim=2))  # (B, T, H)
        v = self.composition(m, lengths)
        return mean(v, lengths), maximum(v, lengths)


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
        a, b = self.project(first), self.project(second)  # (B, S, H + E), (B, T, H + E)
        e = self.attend(a) @ self.attend(b).transpose(1, 2)  # (B, S, T)
        aligned = soft_align(a, b, first.lengths, second.lengths, e)
        v_1 = mask_padding(self.compare(torch.cat([a, aligned.first], dim=2)), first.lengths).sum(dim=1)  # (B, H)
        v_2 = mask_padding(self.compare(torch.cat([b, aligned.second], dim=2)), second.lengths).sum(dim=1)
        return self.output(self.aggregate(torch.cat([v_1, v_2], dim=1)))

    def project(self, sentence: Encoded) -> Tensor:
        """Return the word vectors (B, T, H + E) that are compared."""
        x = self.words(mask_padding(sentence.x, sentence.lengths))
        return append_elmo(x, sentence.lengths, sentence.elmo, self.elmo_size)
