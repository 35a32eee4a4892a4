"""Coreference, end to end: every span of a document is a mention or is not, and has one antecedent or none.

    x_t                     a word;   h = biLSTM(x), each sentence by itself
    a_st = softmax over the words t of span s of  w_a . h_t
    g_s = [h_start; h_end; sum_t a_st x_t; width]                    a span
    m(s) = FFNN_m(g_s)                                               is it a mention?
    c(i, j) = FFNN_c([g_i; g_j; g_i * g_j; distance; speaker; genre])     is j the antecedent of i?
    s(i, j) = m(i) + m(j) + c(i, j),   s(i, none) = 0
    loss = - sum_i log sum_{j in gold(i)} p(j | i),   p = softmax_j s(i, j)

gold(i) are the antecedents in i's cluster, or `none`. Of T words the best λT spans by m are kept, no two of which
cross; antecedents are the K kept spans before i.

Choices:
- m is computed for all spans without any g_s: the first layer of FFNN_m is linear, so that W g_s is a sum of parts
  that belong to words. Only the spans that are kept get a g_s.
- Pairs of some rows i are computed at once, without g_i * g_j: W (g_i * g_j) = (W diag(g_i)) g_j.
- Dropout on the vectors of widths, distances, speakers and genres has one mask a document.
- m learns only from the spans that are kept, so that it is slow to find others. A loss of its own for m, over all
  spans, is quicker where documents are few (`mention_loss`); the paper has none.
- A genre is left out now and then in training, so that the network can do without.

    Lee et al. 2017, End-to-end neural coreference resolution
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding, pad

from relmo.networks.inputs import TaskNetwork, WordBatch
from relmo.networks.sentence_encoder import Encoded, read, with_again
from relmo.nn.cells import make_cell
from relmo.nn.dropout import SequenceDropout, drop
from relmo.nn.initialise import initialise
from relmo.nn.mlp import MLP
from relmo.nn.recurrent import Recurrent
from relmo.nn.spans import BUCKETS, distance_buckets, keep_spans
from relmo.settings.cells import CellName

ROWS = {"cpu": 32, "cuda": 128}  # mentions whose antecedents are scored at once: a GPU wants few and large steps


class DocumentBatch(NamedTuple):
    """A document of T words.

    places      (T,): where each word stands among the sentences of the batch, one behind the other with their padding
    left        (T,): how many words its sentence has from it on
    speakers    (T,): numbers of speakers; 0 where nobody knows
    genre       (): its number; 0 where nobody knows
    spans       how many spans there are within sentences;  keep  how many of them are kept
    """

    places: Tensor
    left: Tensor
    speakers: Tensor
    genre: Tensor
    spans: int
    keep: int


class CorefBatch(NamedTuple):
    """Documents: all their sentences, each document's words; in training the number of the cluster of each span (T, L)
    of each document, 0 for none, and how many spans have an antecedent chosen."""

    words: WordBatch
    documents: list[DocumentBatch]
    targets: list[Tensor] | None = None
    predictions: int = 0


class SpanLinks(NamedTuple):
    """What is said of a document's spans.

    all_mentions   (T, L): m of the span of l + 1 words from word t on; -inf where a sentence ends in it
    kept           (M,): the spans that are kept, t * L + l
    scores         (M, K): s(i, j) where j is the (k + 1)-th kept span before i; -inf where there is none
    """

    all_mentions: Tensor
    kept: Tensor
    scores: Tensor


class SpanScorer(MLP):
    """A score of vectors that stand side by side: FFNN([a; b; …]). The parts of the first layer's weight, a part for
    each vector, may also be applied one by one."""

    def __init__(self, parts: Sequence[int], sizes: Sequence[int], *, dropout: float):
        super().__init__(sum(parts), sizes, dropout=dropout)
        self.parts = list(parts)
        self.output = nn.Linear(self.output_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) -> (…)."""
        return self.output(super().forward(x)).squeeze(-1)

    def first_weights(self) -> tuple[Tensor, ...]:
        """Of each vector: (D, H)."""
        return tuple(part.T for part in self.layers[0].weight.split(self.parts, dim=1))  # type: ignore[operator]

    def finish(self, first: Tensor) -> Tensor:
        """(…, H), the first layer's product without its bias -> (…)."""
        x = drop(self.activation(first + self.layers[0].bias), self.dropout, self.training)  # type: ignore[operator]
        for layer in self.layers[1:]:
            x = drop(self.activation(layer(x)), self.dropout, self.training)
        return self.output(x).squeeze(-1)


class CorefNetwork(nn.Module):
    """The network.

    again_size        the size of the ELMo vectors beside the biLSTM's output
    max_width         L, words of the longest span;  antecedents  K, how many are looked at
    mlp               sizes of the layers of both FFNNs
    genres            how many there are, the unknown one included
    lexical_dropout   on words;  dropout  on everything else
    mention_weight    of a loss of its own that m has: whether a span is a mention
    """

    def __init__(
        self,
        *,
        input_size: int,
        again_size: int = 0,
        hidden: int = 200,
        cell: CellName = "lstm",
        layers: int = 1,
        max_width: int = 10,
        antecedents: int = 250,
        mlp: Sequence[int] = (150, 150),
        feature_dim: int = 20,
        genres: int = 1,
        lexical_dropout: float = 0.5,
        dropout: float = 0.2,
        mention_weight: float = 0.0,
    ):
        super().__init__()
        self.again_size, self.max_width, self.antecedents = again_size, max_width, antecedents
        self.lexical_dropout, self.p, self.mention_weight = lexical_dropout, dropout, mention_weight
        self.recurrent = Recurrent(
            make_cell(cell, hidden),
            input_size=input_size,
            layers=layers,
            bidirectional=True,
            dropout=dropout,
            variational=True,
        )
        self.dropout = SequenceDropout(dropout, variational=True)
        size = self.recurrent.output_size + again_size
        span = [size, size, input_size, feature_dim]
        self.head = nn.Linear(size, 1, bias=False)
        self.mention = SpanScorer(span, mlp, dropout=dropout)
        self.pair = SpanScorer([sum(span)] * 3 + [feature_dim] * 3, mlp, dropout=dropout)
        self.widths = nn.Embedding(max_width, feature_dim)
        self.distances = nn.Embedding(BUCKETS, feature_dim)
        self.speakers = nn.Embedding(3, feature_dim)  # nobody knows, the same, another
        self.genres = nn.Embedding(genres, feature_dim)
        initialise(self)
        for table in (self.widths, self.distances, self.speakers, self.genres):
            nn.init.xavier_uniform_(table.weight)

    def forward(self, sentences: Encoded, documents: Sequence[DocumentBatch]) -> list[SpanLinks]:
        """All sentences of the documents, and the documents."""
        x = drop(sentences.x, self.lexical_dropout, self.training)
        h = with_again(read(self.recurrent, x, sentences.lengths), sentences.lengths, sentences.again, self.again_size)
        x, h = x.flatten(0, 1), self.dropout(h).flatten(0, 1)
        return [
            self.link(x.index_select(0, document.places), h.index_select(0, document.places), document)
            for document in documents
        ]

    def link(self, x: Tensor, h: Tensor, document: DocumentBatch) -> SpanLinks:
        """The spans of one document: its words (T, E) as they are and (T, O) as their sentences show them."""
        if not document.keep:
            return SpanLinks(h.new_zeros(len(h), self.max_width), document.places[:0], h.new_zeros(0, 1))
        attention = self.attend(h)
        every = self.score_mentions(x, h, attention)
        within = torch.arange(self.max_width, device=h.device) < document.left.unsqueeze(1)
        every = every.float().masked_fill(~within, -torch.inf)  # (T, L)
        order = every.detach().flatten().sort(descending=True, stable=True).indices[: document.spans]
        numbers = keep_spans(order.tolist(), width=self.max_width, most=document.keep)
        kept = torch.tensor(numbers, device=h.device)  # (M,)
        mentions = every.flatten().index_select(0, kept)
        g = self.span_vectors(x, h, attention, kept)
        speakers = document.speakers.index_select(0, kept // self.max_width)
        scores = self.score_pairs(g, speakers, document.genre).float()  # (M, K)
        before = torch.arange(len(kept), device=h.device).unsqueeze(1) - _steps(scores) - 1  # j
        scores = scores + mentions.unsqueeze(1) + mentions[before.clamp(min=0)]
        return SpanLinks(every, kept, scores.masked_fill(before < 0, -torch.inf))

    def attend(self, h: Tensor) -> Tensor:
        """(T, L, L): for the span of l + 1 words from word t on, how much the word t + o is its head."""
        logits = self.head(h).squeeze(1)[self._reach(h)].unsqueeze(1)  # (T, 1, L)
        behind = torch.ones(self.max_width, self.max_width, dtype=torch.bool, device=h.device).triu(1)
        return logits.masked_fill(behind, -torch.inf).softmax(dim=2)

    def score_mentions(self, x: Tensor, h: Tensor, attention: Tensor) -> Tensor:
        """m of all spans, (T, L): FFNN_m(g) without g."""
        start, end, head, width = self.mention.first_weights()
        reach = self._reach(h)
        first = (h @ start).unsqueeze(1) + (h @ end)[reach] + attention @ (x @ head)[reach]  # (T, L, H)
        return self.mention.finish(first + drop(self.widths.weight, self.p, self.training) @ width)

    def span_vectors(self, x: Tensor, h: Tensor, attention: Tensor, kept: Tensor) -> Tensor:
        """g of some spans, (M, G)."""
        start, more = kept // self.max_width, kept % self.max_width
        words = x[self._reach(h).index_select(0, start)]  # (M, L, E)
        head = (attention[start, more].unsqueeze(1) @ words).squeeze(1)
        width = drop(self.widths.weight, self.p, self.training)[more]
        return torch.cat([h[start], h[start + more], head, width], dim=1)

    def score_pairs(self, g: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        """c(i, j), (M, K), where j is the (k + 1)-th before i: FFNN_c([g_i; g_j; g_i * g_j; …]) for R rows i at once,
        with all C columns of j that one of them needs."""
        count = len(g)
        most = max(1, min(self.antecedents, count - 1))  # K
        here, there, both, *of_features = self.pair.first_weights()
        distance, speaker, kind = self._features(genre, of_features)
        before = pad(g, (0, 0, most, 0))  # (K + M, G): g_j is in row j + K
        of_here, of_there = g @ here + kind, before @ there
        their_speakers = pad(speakers, (most, 0))
        at_once = ROWS.get(g.device.type, 32)
        row = torch.arange(min(at_once, count), device=g.device).unsqueeze(1)
        far = row - torch.arange(len(row) + most - 1, device=g.device) + most  # i - j, the same for any R rows
        of_distance = embedding(distance_buckets(far.clamp(1, most)), distance)  # (R, C, H)
        nearest = row + most - 1 - torch.arange(most, device=g.device)  # the column of the (k + 1)-th before a row
        scores = []
        for i in range(0, count, at_once):
            rows = min(at_once, count - i)
            columns = slice(i, i + rows + most - 1)
            products = (g[i : i + rows].unsqueeze(1) * both.T).flatten(0, 1) @ before[columns].T  # (R * H, C)
            first = products.view(rows, both.shape[1], -1).transpose(1, 2) + of_here[i : i + rows].unsqueeze(1)
            same = _compare(speakers[i : i + rows].unsqueeze(1), their_speakers[columns])
            first = first + of_there[columns] + of_distance[:rows, : rows + most - 1] + embedding(same, speaker)
            scores.append(self.pair.finish(first).gather(1, nearest[:rows]))
        return torch.cat(scores)

    def _features(self, genre: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """What each distance, speaker and the genre add to the first layer of FFNN_c: (9, H), (3, H), (H)."""
        if self.training and self.p:
            genre = genre * (torch.rand((), device=genre.device) >= self.p)
        tables = (self.distances.weight, self.speakers.weight, self.genres(genre))
        return [drop(table, self.p, self.training) @ w for table, w in zip(tables, weights, strict=True)]

    def _reach(self, h: Tensor) -> Tensor:
        """(T, L): the words from each one on; the last word where there are no more."""
        words = torch.arange(len(h), device=h.device)
        return (words.unsqueeze(1) + torch.arange(self.max_width, device=h.device)).clamp(max=len(h) - 1)

    def loss(self, links: Sequence[SpanLinks], clusters: Sequence[Tensor]) -> Tensor:
        """The mean over all kept spans of -log p(a right antecedent); with a `mention_weight` so much of the loss of m
        is added."""
        parts = [antecedent_loss(*each) for each in zip(links, clusters, strict=True)]
        if self.mention_weight:
            parts += [self.mention_weight * mention_loss(*each) for each in zip(links, clusters, strict=True)]
        return torch.stack(parts).sum() / sum(len(each.kept) for each in links)


def antecedent_loss(links: SpanLinks, clusters: Tensor) -> Tensor:
    """- sum_i log sum_{j in gold(i)} p(j | i); the clusters of all spans (T, L)."""
    own = clusters.flatten().index_select(0, links.kept)  # (M,)
    before = torch.arange(len(own), device=own.device).unsqueeze(1) - _steps(links.scores) - 1
    right = (before >= 0) & (own.unsqueeze(1) > 0) & (own[before.clamp(min=0)] == own.unsqueeze(1))  # (M, K)
    right = torch.cat([~right.any(dim=1, keepdim=True), right], dim=1)
    scores = pad(links.scores, (1, 0))  # of `none` 0
    return (scores.logsumexp(dim=1) - scores.masked_fill(~right, -torch.inf).logsumexp(dim=1)).sum()


def mention_loss(links: SpanLinks, clusters: Tensor) -> Tensor:
    """- sum log p(s is a mention, or is none) over all spans, p = sigmoid(m(s))."""
    within = links.all_mentions > -torch.inf
    scores = links.all_mentions.masked_fill(~within, 0.0)
    return binary_cross_entropy_with_logits(scores, (clusters > 0).float(), weight=within.float(), reduction="sum")


def _steps(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[1], device=scores.device)


def _compare(speakers: Tensor, others: Tensor) -> Tensor:
    """1 where both are the same, 2 where they are not, 0 where one of them is unknown."""
    return torch.where(speakers == others, 1, 2) * (speakers > 0) * (others > 0)


class DocumentNetwork(TaskNetwork):
    """Word inputs and the network of coreference."""

    def forward(self, batch: CorefBatch) -> list[SpanLinks]:
        """The links of each document."""
        return self.body(self.inputs(batch.words), batch.documents)
