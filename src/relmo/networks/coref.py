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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding, pad

from relmo.networks.cells import cell_of
from relmo.networks.inputs import Encoded, append_elmo, run_recurrent
from relmo.nn.dropout import MLP, SequenceDropout, drop
from relmo.nn.recurrence import initialise
from relmo.nn.recurrence.stack import Recurrent
from relmo.settings.tasks import CorefModelSettings

NUM_ROWS = {"cpu": 32, "cuda": 128}  # mentions whose antecedents are scored at once: a GPU needs few and large steps
BUCKET_STARTS = (2, 3, 4, 5, 8, 16, 32, 64)  # distances of 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more


class DocumentBatch(NamedTuple):
    """Document of T words."""

    positions: Tensor  # (T,): index of each word in the flattened, padded sentences of the batch
    num_left: Tensor  # (T,): number of words from this one to the end of its sentence
    speakers: Tensor  # (T,): numbers of speakers; 0 for unknown
    genre: Tensor  # (): its number; 0 for unknown
    num_spans: int  # within sentences
    num_kept: int  # number of spans to keep


class SpanLinks(NamedTuple):
    """Scores of the spans of a document."""

    all_mentions: Tensor  # (T, L): m of the span of l + 1 words from word t on; -inf if it crosses a sentence's end
    kept: Tensor  # (M,): kept spans, t * L + l
    scores: Tensor  # (M, K): s(i, j) where j is the (k + 1)-th kept span before i; -inf if there is none


class SpanScorer(MLP):
    """Score of concatenated vectors, FFNN([a; b; …]), whose first layer can also be applied to each vector alone."""

    def __init__(self, parts: Sequence[int], sizes: Sequence[int], *, dropout: float):
        super().__init__(sum(parts), sizes, dropout=dropout)
        self.parts = list(parts)
        self.output = nn.Linear(self.output_size, 1)

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
            cell_of(settings),
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
        self.distances = nn.Embedding(len(BUCKET_STARTS) + 1, size)
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
        max_width = self.max_width
        if not document.num_kept:
            return SpanLinks(h.new_zeros(len(h), max_width), document.positions[:0], h.new_zeros(0, 1))
        words, offsets = torch.arange(len(h), device=h.device), torch.arange(max_width, device=h.device)
        following = (words.unsqueeze(1) + offsets).clamp(max=len(h) - 1)  # (T, L): the L words from each one on
        outside = torch.ones(max_width, max_width, dtype=torch.bool, device=h.device).triu(1)
        logits = self.head(h).squeeze(1)[following].unsqueeze(1)  # (T, 1, L)
        # (T, L, L): that of word t + o in the span of l + 1 words from word t on
        attention = logits.masked_fill(outside, -torch.inf).softmax(dim=2)
        w_start, w_end, w_head, w_width = self.mention.input_weights()
        products = (h @ w_start).unsqueeze(1) + (h @ w_end)[following] + attention @ (x @ w_head)[following]
        widths = drop(self.widths.weight, self.p, self.training)
        mentions = self.mention.finish(products + widths @ w_width)
        mentions = mentions.float().masked_fill(offsets >= document.num_left.unsqueeze(1), -torch.inf)  # (T, L)
        order = mentions.detach().flatten().sort(descending=True, stable=True).indices[: document.num_spans]
        kept = torch.tensor(keep_spans(order.tolist(), width=max_width, max_spans=document.num_kept), device=h.device)
        kept_mentions = mentions.flatten().index_select(0, kept)  # (M,)
        start, offset = kept // max_width, kept % max_width
        heads = (attention[start, offset].unsqueeze(1) @ x[following.index_select(0, start)]).squeeze(1)
        widths = drop(self.widths.weight, self.p, self.training)
        g = torch.cat([h[start], h[start + offset], heads, widths[offset]], dim=1)  # (M, G)
        scores = self.score_pairs(g, document.speakers.index_select(0, start), document.genre).float()  # (M, K)
        j = _antecedent_index(scores)
        scores = scores + kept_mentions.unsqueeze(1) + kept_mentions[j.clamp(min=0)]
        return SpanLinks(mentions, kept, scores.masked_fill(j < 0, -torch.inf))

    def score_pairs(self, g: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        """Return c(i, j), (M, K), j the (k + 1)-th span before i, for R rows i at once and the C columns j of them."""
        count = len(g)
        most = max(1, min(self.antecedents, count - 1))  # K
        w_i, w_j, w_product, *w_features = self.pair.input_weights()
        if self.training and self.p:
            genre = genre * (torch.rand((), device=genre.device) >= self.p)
        tables = (self.distances.weight, self.speakers.weight, self.genres(genre))
        distance, speaker, genre_product = (
            drop(table, self.p, self.training) @ w for table, w in zip(tables, w_features, strict=True)
        )  # (9, H), (3, H), (H)
        before = pad(g, (0, 0, most, 0))  # (K + M, G): g_j is in row j + K
        product_i, product_j = g @ w_i + genre_product, before @ w_j
        speakers_j = pad(speakers, (most, 0))
        num_rows = NUM_ROWS.get(g.device.type, 32)
        row = torch.arange(min(num_rows, count), device=g.device).unsqueeze(1)
        distances = row - torch.arange(len(row) + most - 1, device=g.device) + most  # i - j, the same for any R rows
        edges = torch.tensor(BUCKET_STARTS, dtype=distances.dtype, device=distances.device)  # Clark & Manning 2016
        buckets = torch.bucketize(distances.clamp(1, most), edges, right=True)
        product_distance = embedding(buckets, distance)  # (R, C, H)
        nearest = row + most - 1 - torch.arange(most, device=g.device)  # the column of the (k + 1)-th before a row
        scores = []
        for i in range(0, count, num_rows):
            rows = min(num_rows, count - i)
            columns = slice(i, i + rows + most - 1)
            products = (g[i : i + rows].unsqueeze(1) * w_product.T).flatten(0, 1) @ before[columns].T  # (R * H, C)
            total = products.view(rows, w_product.shape[1], -1).transpose(1, 2) + product_i[i : i + rows].unsqueeze(1)
            one, other = speakers[i : i + rows].unsqueeze(1), speakers_j[columns]
            same = torch.where(one == other, 1, 2) * (one > 0) * (other > 0)  # 0 if one of them is unknown
            total = total + product_j[columns] + product_distance[:rows, : rows + most - 1] + embedding(same, speaker)
            scores.append(self.pair.finish(total).gather(1, nearest[:rows]))
        return torch.cat(scores)

    def loss(self, links: Sequence[SpanLinks], targets: Sequence[Tensor]) -> Tensor:
        """Return the loss per kept span; targets are the clusters of all spans (T, L), 0 for none."""
        antecedent_losses, mention_losses = [], []
        for (mentions, kept, scores), clusters in zip(links, targets, strict=True):
            cluster, j = clusters.flatten().index_select(0, kept), _antecedent_index(scores)  # (M,), (M, K)
            gold = (j >= 0) & (cluster.unsqueeze(1) > 0) & (cluster[j.clamp(min=0)] == cluster.unsqueeze(1))
            gold = torch.cat([~gold.any(dim=1, keepdim=True), gold], dim=1)
            padded = pad(scores, (1, 0))  # the score of `none` is 0
            loss = padded.logsumexp(dim=1) - padded.masked_fill(~gold, -torch.inf).logsumexp(dim=1)
            antecedent_losses.append(loss.sum())
            if self.mention_weight:  # -log p(s is a mention or not) over all spans, p = sigmoid(m(s))
                within = mentions > -torch.inf
                logits, labels = mentions.masked_fill(~within, 0.0), (clusters > 0).float()
                loss = binary_cross_entropy_with_logits(logits, labels, weight=within.float(), reduction="sum")
                mention_losses.append(self.mention_weight * loss)
        return torch.stack(antecedent_losses + mention_losses).sum() / sum(len(document.kept) for document in links)


def _antecedent_index(scores: Tensor) -> Tensor:
    """Return the index j of the (k + 1)-th kept span before each span i, (M, K); negative if there is none."""
    rows, steps = (torch.arange(size, device=scores.device) for size in scores.shape)
    return rows.unsqueeze(1) - steps - 1


def keep_spans(order: Iterable[int], *, width: int, max_spans: int) -> list[int]:
    """Select up to `max_spans` spans in this order that cross no selected one; return them in the order of the text.
    The number of a span of n words from word s is s * width + n - 1."""
    # A span from s to e crosses one that begins in s + 1 … e and ends after e, or that ends in s … e - 1 and begins
    # before s. The longest selected span that begins, or ends, at a word is enough to know.
    end_by_start: dict[int, int] = {}  # end of the longest selected span that begins at a word
    start_by_end: dict[int, int] = {}  # start of the longest that ends at a word
    selected: list[int] = []
    for number in order:
        if len(selected) == max_spans:
            break
        start, extent = divmod(number, width)
        end = start + extent
        if any(end_by_start.get(word, end) > end for word in range(start + 1, end + 1)):
            continue
        if any(start_by_end.get(word, start) < start for word in range(start, end)):
            continue
        selected.append(number)
        end_by_start[start] = max(end, end_by_start.get(start, end))
        start_by_end[end] = min(start, start_by_end.get(end, start))
    return sorted(selected)
