"""End-to-end coreference: every span of a document is a mention or not, and has one antecedent or none.

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
  that belong to words. Only the kept spans get a g_s.
- Pairs of some rows i are computed at once, without g_i * g_j: W (g_i * g_j) = (W diag(g_i)) g_j.
- Dropout on the embeddings of widths, distances, speakers and genres has one mask per document.
- m learns from the kept spans only, so that it is slow to find others. A second loss for m over all spans is faster
  with few documents (`mention_loss`); the paper has none.
- A genre is sometimes dropped in training, so that the network can do without.

    Lee et al. 2017, End-to-end neural coreference resolution
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding, pad

from relmo.networks.inputs import TaskNetwork, WordBatch
from relmo.networks.sentence_encoder import Encoded, append_elmo, run_recurrent
from relmo.nn.cells import initialise, make_cell
from relmo.nn.dropout import MLP, SequenceDropout, drop
from relmo.nn.recurrent import Recurrent
from relmo.nn.spans import BUCKETS, distance_buckets, keep_spans
from relmo.settings.coref import CorefModelSettings

NUM_ROWS = {"cpu": 32, "cuda": 128}  # mentions whose antecedents are scored at once: a GPU needs few and large steps


class DocumentBatch(NamedTuple):
    """Document of T words.

    positions   (T,): index of each word in the flattened, padded sentences of the batch
    num_left    (T,): number of words from this one to the end of its sentence
    speakers    (T,): numbers of speakers; 0 for unknown
    genre       (): its number; 0 for unknown
    num_spans   number of spans within sentences;  num_kept  number of spans to keep
    """

    positions: Tensor
    num_left: Tensor
    speakers: Tensor
    genre: Tensor
    num_spans: int
    num_kept: int


class CorefBatch(NamedTuple):
    """Documents: all their sentences, and the words of each document; in training the cluster of each span (T, L) of
    each document, 0 for none, and the number of spans with an antecedent."""

    words: WordBatch
    documents: list[DocumentBatch]
    targets: list[Tensor] | None = None
    predictions: int = 0


class SpanLinks(NamedTuple):
    """Scores of the spans of a document.

    all_mentions   (T, L): m of the span of l + 1 words from word t on; -inf if it crosses the end of a sentence
    kept           (M,): kept spans, t * L + l
    scores         (M, K): s(i, j) where j is the (k + 1)-th kept span before i; -inf if there is none
    """

    all_mentions: Tensor
    kept: Tensor
    scores: Tensor


class SpanScorer(MLP):
    """Score of concatenated vectors, FFNN([a; b; …]), whose first layer can also be applied to each vector alone."""

    def __init__(self, parts: Sequence[int], sizes: Sequence[int], *, dropout: float):
        super().__init__(sum(parts), sizes, dropout=dropout)
        self.parts = list(parts)
        self.output = nn.Linear(self.output_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Score vectors (…, I); (…)."""
        return self.output(super().forward(x)).squeeze(-1)

    def input_weights(self) -> tuple[Tensor, ...]:
        """Return the weights (D, H) of the first layer for each vector."""
        return tuple(part.T for part in self.layers[0].weight.split(self.parts, dim=1))  # type: ignore[operator]

    def finish(self, products: Tensor) -> Tensor:
        """Score from the products (…, H) of the first layer, without its bias; (…)."""
        x = drop(self.activation(products + self.layers[0].bias), self.dropout, self.training)  # type: ignore[operator]
        for layer in self.layers[1:]:
            x = drop(self.activation(layer(x)), self.dropout, self.training)
        return self.output(x).squeeze(-1)


class CorefNetwork(nn.Module):
    """Coreference network; `num_genres` includes the unknown one."""

    def __init__(self, settings: CorefModelSettings, *, input_size: int, num_genres: int = 1, elmo_size: int = 0):
        super().__init__()
        p, size = settings.dropout, settings.feature_dim
        self.elmo_size, self.max_width, self.antecedents = elmo_size, settings.max_width, settings.antecedents
        self.lexical_dropout, self.p, self.mention_weight = settings.lexical_dropout, p, settings.mention_weight
        self.recurrent = Recurrent(
            make_cell(settings.cell, settings.hidden),
            input_size=input_size,
            layers=settings.layers,
            bidirectional=True,
            dropout=p,
            variational=True,
        )
        self.dropout = SequenceDropout(p, variational=True)
        word_size = self.recurrent.output_size + elmo_size
        span = [word_size, word_size, input_size, size]
        self.head = nn.Linear(word_size, 1, bias=False)
        self.mention = SpanScorer(span, settings.mlp, dropout=p)
        self.pair = SpanScorer([sum(span)] * 3 + [size] * 3, settings.mlp, dropout=p)
        self.widths = nn.Embedding(settings.max_width, size)
        self.distances = nn.Embedding(BUCKETS, size)
        self.speakers = nn.Embedding(3, size)  # unknown, the same, another
        self.genres = nn.Embedding(num_genres, size)
        initialise(self)
        for table in (self.widths, self.distances, self.speakers, self.genres):
            nn.init.xavier_uniform_(table.weight)

    def forward(self, sentences: Encoded, documents: Sequence[DocumentBatch]) -> list[SpanLinks]:
        """Score the spans of documents; `sentences` are those of all documents."""
        x, lengths, elmo = sentences
        x = drop(x, self.lexical_dropout, self.training)
        h = append_elmo(run_recurrent(self.recurrent, x, lengths), lengths, elmo, self.elmo_size)
        x, h = x.flatten(0, 1), self.dropout(h).flatten(0, 1)
        return [
            self.link(x.index_select(0, document.positions), h.index_select(0, document.positions), document)
            for document in documents
        ]

    def link(self, x: Tensor, h: Tensor, document: DocumentBatch) -> SpanLinks:
        """Score the spans of one document, from its words without context x (T, E) and with context h (T, O)."""
        if not document.num_kept:
            return SpanLinks(h.new_zeros(len(h), self.max_width), document.positions[:0], h.new_zeros(0, 1))
        attention = self.attend(h)
        mentions = self.score_mentions(x, h, attention)
        within = torch.arange(self.max_width, device=h.device) < document.num_left.unsqueeze(1)
        mentions = mentions.float().masked_fill(~within, -torch.inf)  # (T, L)
        order = mentions.detach().flatten().sort(descending=True, stable=True).indices[: document.num_spans]
        spans = keep_spans(order.tolist(), width=self.max_width, max_spans=document.num_kept)
        kept = torch.tensor(spans, device=h.device)  # (M,)
        kept_mentions = mentions.flatten().index_select(0, kept)
        g = self.span_vectors(x, h, attention, kept)
        speakers = document.speakers.index_select(0, kept // self.max_width)
        scores = self.score_pairs(g, speakers, document.genre).float()  # (M, K)
        j = _antecedent_index(scores)
        scores = scores + kept_mentions.unsqueeze(1) + kept_mentions[j.clamp(min=0)]
        return SpanLinks(mentions, kept, scores.masked_fill(j < 0, -torch.inf))

    def attend(self, h: Tensor) -> Tensor:
        """Return the head attention (T, L, L): that of word t + o in the span of l + 1 words from word t on."""
        logits = self.head(h).squeeze(1)[self._following(h)].unsqueeze(1)  # (T, 1, L)
        outside = torch.ones(self.max_width, self.max_width, dtype=torch.bool, device=h.device).triu(1)
        return logits.masked_fill(outside, -torch.inf).softmax(dim=2)

    def score_mentions(self, x: Tensor, h: Tensor, attention: Tensor) -> Tensor:
        """Return m of all spans, (T, L): FFNN_m(g) without g."""
        start, end, head, width = self.mention.input_weights()
        following = self._following(h)
        products = (h @ start).unsqueeze(1) + (h @ end)[following] + attention @ (x @ head)[following]  # (T, L, H)
        return self.mention.finish(products + drop(self.widths.weight, self.p, self.training) @ width)

    def span_vectors(self, x: Tensor, h: Tensor, attention: Tensor, spans: Tensor) -> Tensor:
        """Return g of some spans, (M, G)."""
        start, offset = spans // self.max_width, spans % self.max_width
        words = x[self._following(h).index_select(0, start)]  # (M, L, E)
        head = (attention[start, offset].unsqueeze(1) @ words).squeeze(1)
        width = drop(self.widths.weight, self.p, self.training)[offset]
        return torch.cat([h[start], h[start + offset], head, width], dim=1)

    def score_pairs(self, g: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        """Return c(i, j), (M, K), where j is the (k + 1)-th span before i: FFNN_c([g_i; g_j; g_i * g_j; …]) for R rows
        i at once, with all C columns of j that one of them needs."""
        count = len(g)
        most = max(1, min(self.antecedents, count - 1))  # K
        w_i, w_j, w_product, *w_features = self.pair.input_weights()
        distance, speaker, genre_product = self._feature_products(genre, w_features)
        before = pad(g, (0, 0, most, 0))  # (K + M, G): g_j is in row j + K
        product_i, product_j = g @ w_i + genre_product, before @ w_j
        speakers_j = pad(speakers, (most, 0))
        num_rows = NUM_ROWS.get(g.device.type, 32)
        row = torch.arange(min(num_rows, count), device=g.device).unsqueeze(1)
        distances = row - torch.arange(len(row) + most - 1, device=g.device) + most  # i - j, the same for any R rows
        product_distance = embedding(distance_buckets(distances.clamp(1, most)), distance)  # (R, C, H)
        nearest = row + most - 1 - torch.arange(most, device=g.device)  # the column of the (k + 1)-th before a row
        scores = []
        for i in range(0, count, num_rows):
            rows = min(num_rows, count - i)
            columns = slice(i, i + rows + most - 1)
            products = (g[i : i + rows].unsqueeze(1) * w_product.T).flatten(0, 1) @ before[columns].T  # (R * H, C)
            total = products.view(rows, w_product.shape[1], -1).transpose(1, 2) + product_i[i : i + rows].unsqueeze(1)
            same = _compare_speakers(speakers[i : i + rows].unsqueeze(1), speakers_j[columns])
            total = total + product_j[columns] + product_distance[:rows, : rows + most - 1] + embedding(same, speaker)
            scores.append(self.pair.finish(total).gather(1, nearest[:rows]))
        return torch.cat(scores)

    def _feature_products(self, genre: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the parts of distances, speakers and the genre in the first layer of FFNN_c: (9, H), (3, H), (H)."""
        if self.training and self.p:
            genre = genre * (torch.rand((), device=genre.device) >= self.p)
        tables = (self.distances.weight, self.speakers.weight, self.genres(genre))
        return [drop(table, self.p, self.training) @ w for table, w in zip(tables, weights, strict=True)]

    def _following(self, h: Tensor) -> Tensor:
        """Return (T, L): the indices of the L words from each one on, at most that of the last word."""
        words = torch.arange(len(h), device=h.device)
        return (words.unsqueeze(1) + torch.arange(self.max_width, device=h.device)).clamp(max=len(h) - 1)

    def loss(self, links: Sequence[SpanLinks], clusters: Sequence[Tensor]) -> Tensor:
        """Return the mean over all kept spans of -log p(a right antecedent), plus the weighted loss of m."""
        parts = [antecedent_loss(*document) for document in zip(links, clusters, strict=True)]
        if self.mention_weight:
            parts += [self.mention_weight * mention_loss(*document) for document in zip(links, clusters, strict=True)]
        return torch.stack(parts).sum() / sum(len(document.kept) for document in links)


def antecedent_loss(links: SpanLinks, clusters: Tensor) -> Tensor:
    """Return - sum_i log sum_{j in gold(i)} p(j | i) for the clusters of all spans (T, L)."""
    cluster = clusters.flatten().index_select(0, links.kept)  # (M,)
    j = _antecedent_index(links.scores)
    gold = (j >= 0) & (cluster.unsqueeze(1) > 0) & (cluster[j.clamp(min=0)] == cluster.unsqueeze(1))  # (M, K)
    gold = torch.cat([~gold.any(dim=1, keepdim=True), gold], dim=1)
    scores = pad(links.scores, (1, 0))  # that of `none` is 0
    return (scores.logsumexp(dim=1) - scores.masked_fill(~gold, -torch.inf).logsumexp(dim=1)).sum()


def mention_loss(links: SpanLinks, clusters: Tensor) -> Tensor:
    """Return - sum log p(s is a mention or not) over all spans, p = sigmoid(m(s))."""
    within = links.all_mentions > -torch.inf
    scores = links.all_mentions.masked_fill(~within, 0.0)
    return binary_cross_entropy_with_logits(scores, (clusters > 0).float(), weight=within.float(), reduction="sum")


def _antecedent_index(scores: Tensor) -> Tensor:
    """Return the index j of the (k + 1)-th kept span before each span i, (M, K); negative if there is none."""
    rows, steps = (torch.arange(size, device=scores.device) for size in scores.shape)
    return rows.unsqueeze(1) - steps - 1


def _compare_speakers(speakers: Tensor, others: Tensor) -> Tensor:
    """Return 1 for the same speaker, 2 for different ones, 0 if one of them is unknown."""
    return torch.where(speakers == others, 1, 2) * (speakers > 0) * (others > 0)


class DocumentNetwork(TaskNetwork):
    """Word inputs and the coreference network."""

    def forward(self, batch: CorefBatch) -> list[SpanLinks]:
        """Return the links of each document."""
        return self.body(self.inputs(batch.words), batch.documents)
