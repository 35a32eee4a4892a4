"""Semantic role labelling: for each predicate of a sentence, a tag for each word that says which role it plays.

x_t = [word; m]        m is one of two learned embeddings: of the predicate, or of any other word
h   = AlternatingLSTM(x)  [; ELMo]            or layers of another cell (`nn/recurrence/highway_lstm.py`)
p(y_t) = softmax(W h_t + b)                                      tags in BIO
y   = the legal sequence with the greatest sum of log p(y_t)     at prediction (Viterbi)

A separate small biLSTM, which reads the words once, finds the predicates:

u   = biLSTM(word)  [; ELMo],   p(t is a predicate) = sigmoid(w . u_t + b)

Choices:
- The words of a sentence are embedded once, and each of its predicates is a row of the deep network's batch.
- At prediction, the roles of all given and all detected predicates are predicted.
- The word of the predicate is tagged B-V, and no other word is.

    He et al. 2017, Deep semantic role labeling: what works and what's next
    Zhou & Xu 2015, End-to-end learning of semantic role labeling using recurrent neural networks
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from relmo.networks.cells import cell_of
from relmo.networks.inputs import IGNORED, Encoded, SentenceEncoder, append_elmo
from relmo.nn.crf import NEVER, best_legal
from relmo.nn.dropout import SequenceDropout
from relmo.nn.pooling import length_mask
from relmo.nn.recurrence import initialise
from relmo.nn.recurrence.highway_lstm import AlternatingLayers, AlternatingLSTM
from relmo.settings.tasks import SRLModelSettings

MAX_WORDS = 8192  # per forward pass in evaluation, counted for each predicate; bounds the memory


class Predicates(NamedTuple):
    """P predicates of a batch: the index of the sentence (P,) and of the word (P,)."""

    rows: Tensor
    positions: Tensor


class RoleTargets(NamedTuple):
    """Tags for each predicate (P, T), IGNORED in the padding, and which words are predicates (B, T)."""

    tags: Tensor
    predicates: Tensor


class RoleScores(NamedTuple):
    """Scores of the tags for each predicate, and of each word to be a predicate."""

    predicates: Predicates
    tags: Tensor  # (P, T, K)
    lengths: Tensor  # (P,): of the predicate's sentence
    odds: Tensor | None  # (B, T): log-odds, -inf in the padding; None without a detector


class PredicateDetector(nn.Module):
    """biLSTM that finds the predicates of a sentence."""

    def __init__(self, *, input_size: int, hidden: int, elmo_size: int, dropout: float):
        super().__init__()
        self.encoder = SentenceEncoder(input_size=input_size, hidden=hidden, dropout=dropout, elmo_size=elmo_size)
        self.dropout = SequenceDropout(dropout, variational=True)
        self.output = nn.Linear(self.encoder.output_size, 1)

    def forward(self, sentences: Encoded) -> Tensor:
        """Return the log-odds of each word, (B, T), -inf in the padding."""
        odds = self.output(self.dropout(self.encoder(*sentences))).squeeze(2)
        return odds.masked_fill(~length_mask(sentences.lengths.to(odds.device), odds.shape[1]), -torch.inf)


class SRLNetwork(nn.Module):
    """Network of a semantic role labeller; `legal` are the pairs of tags that may follow each other, `verb` is B-V."""

    legal: Tensor  # (K + 2, K + 2), bool

    def __init__(self, settings: SRLModelSettings, *, input_size: int, legal: Tensor, verb: int, elmo_size: int = 0):
        super().__init__()
        self.verb, self.elmo_size = verb, elmo_size
        self.detector = None
        if settings.detector:
            self.detector = PredicateDetector(
                input_size=input_size, hidden=settings.detector, elmo_size=elmo_size, dropout=settings.dropout
            )
        self.marks = nn.Parameter(torch.empty(2, settings.mark_dim))
        nn.init.xavier_uniform_(self.marks)
        sizes: dict[str, Any] = {"input_size": input_size + settings.mark_dim, "layers": settings.layers}
        self.encoder: AlternatingLSTM | AlternatingLayers
        if settings.cell == "highway":
            self.encoder = AlternatingLSTM(hidden=settings.hidden, dropout=settings.dropout, **sizes)
        else:
            self.encoder = AlternatingLayers(cell_of(settings), dropout=settings.dropout, **sizes)
        self.output = nn.Linear(self.encoder.output_size + elmo_size, len(legal) - 2)
        self.register_buffer("legal", legal, persistent=False)
        initialise(self)

    def forward(self, sentences: Encoded, predicates: Predicates, detect: bool) -> RoleScores:
        """Score the tags for the given predicates and, with `detect`, for those with positive log-odds, each once."""
        odds = None if self.detector is None else self.detector(sentences)
        if detect and odds is not None:
            is_predicate = odds > 0
            is_predicate[predicates.rows, predicates.positions] = True
            predicates = Predicates(*is_predicate.nonzero(as_tuple=True))
        if torch.is_grad_enabled():
            tags = self.label(sentences, predicates)
        else:
            batch_size = max(1, MAX_WORDS // max(sentences.x.shape[1], 1))
            chunks = zip(*(part.split(batch_size) for part in predicates), strict=True)
            tags = torch.cat([self.label(sentences, Predicates(*chunk)) for chunk in chunks])
        return RoleScores(predicates, tags, sentences.lengths.to(tags.device)[predicates.rows], odds)

    def label(self, sentences: Encoded, predicates: Predicates) -> Tensor:
        """Return the scores of the tags of all words for each predicate, (P, T, K)."""
        rows, positions = predicates
        x = sentences.x[rows]  # (P, T, D)
        is_predicate = torch.arange(x.shape[1], device=x.device) == positions.unsqueeze(1)  # (P, T)
        marks = torch.where(is_predicate.unsqueeze(2), self.marks[1], self.marks[0])
        lengths = sentences.lengths.to(x.device)[rows]
        h = self.encoder(torch.cat([x, marks.to(x.dtype)], dim=2), lengths)
        elmo = None if sentences.elmo is None else sentences.elmo[rows]
        return self.output(append_elmo(h, lengths, elmo, self.elmo_size))

    def loss(self, scores: RoleScores, targets: RoleTargets) -> Tensor:
        """Return the mean of -log p over tags, plus the mean of -log p over words of being a predicate or not."""
        num_tags = (targets.tags != IGNORED).sum().clamp(min=1)  # a batch may have no predicate
        total = cross_entropy(scores.tags.flatten(0, 1), targets.tags.flatten(), ignore_index=IGNORED, reduction="sum")
        loss = total / num_tags
        if scores.odds is None:
            return loss
        words = scores.odds > -torch.inf
        odds = scores.odds.masked_fill(~words, 0.0)
        detection = binary_cross_entropy_with_logits(odds, targets.predicates.to(odds.dtype), words, reduction="sum")
        return loss + detection / words.sum().clamp(min=1)

    @torch.no_grad()
    def decode(self, scores: RoleScores) -> list[list[int]]:
        """Return the best legal tags for each predicate."""
        tags = scores.tags.float().clone()
        is_predicate = torch.arange(tags.shape[1], device=tags.device) == scores.predicates.positions.unsqueeze(1)
        is_verb = torch.arange(tags.shape[2], device=tags.device) == self.verb  # (K,)
        tags.masked_fill_(is_predicate.unsqueeze(2) ^ is_verb, NEVER)  # (P, T, K)
        return best_legal(tags, scores.lengths, self.legal)
