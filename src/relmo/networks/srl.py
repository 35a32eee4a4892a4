"""Semantic roles: for each predicate of a sentence, a tag for each word that says which role it plays.

x_t = [word; m]        m is one of two learned vectors: of the predicate, or of any other word
h   = AlternatingLSTM(x)  [; ELMo]                               (`nn/highway_lstm.py`)
p(y_t) = softmax(W h_t + b)                                      tags in BIO
y   = the legal sequence with the greatest sum of log p(y_t)     at prediction (Viterbi)

Beside it a small biLSTM, which reads the words once, finds the predicates:

u   = biLSTM(word)  [; ELMo],   p(t is a predicate) = sigmoid(w . u_t + b)

Choices:
- A sentence's words become vectors once, and each of its predicates is a row of the deep network's batch.
- Where nothing is to be learned, the roles of all predicates that are given or found are read.
- The predicate's own word is tagged B-V, and no other word is.

    He et al. 2017, Deep semantic role labeling: what works and what's next
    Zhou & Xu 2015, End-to-end learning of semantic role labeling using recurrent neural networks
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from relmo.networks.inputs import IGNORED, TaskNetwork, WordBatch
from relmo.networks.sentence_encoder import Encoded, SentenceEncoder, with_again
from relmo.nn.crf import NEVER, best_legal
from relmo.nn.dropout import SequenceDropout
from relmo.nn.highway_lstm import AlternatingLSTM
from relmo.nn.initialise import initialise
from relmo.nn.pooling import inside

AT_ONCE = 8192  # words, those of each predicate counted, whose roles are predicted together; it bounds memory only


class Predicates(NamedTuple):
    """P predicates of a batch: the number of their sentence (P,) and of their word (P,)."""

    rows: Tensor
    places: Tensor


class RoleTargets(NamedTuple):
    """What is to be learned: the tags for each predicate (P, T), IGNORED past the end, and which words are predicates
    (B, T)."""

    tags: Tensor
    predicates: Tensor


class RoleBatch(NamedTuple):
    """Sentences, the predicates that are given, and in training what is to be learned, and how many tags that is."""

    words: WordBatch
    predicates: Predicates
    targets: RoleTargets | None = None
    predictions: int = 0


class RoleScores(NamedTuple):
    """Scores of the tags (P, T, K) for each predicate, the lengths of its sentence (P,), and the logarithm of the odds
    that a word is a predicate (B, T), -inf past the end; None where the network does not look for them."""

    predicates: Predicates
    tags: Tensor
    lengths: Tensor
    odds: Tensor | None


class PredicateDetector(nn.Module):
    """A biLSTM that finds the predicates of a sentence."""

    def __init__(self, *, input_size: int, hidden: int, again_size: int, dropout: float):
        super().__init__()
        self.encoder = SentenceEncoder(input_size=input_size, hidden=hidden, dropout=dropout, again_size=again_size)
        self.dropout = SequenceDropout(dropout, variational=True)
        self.output = nn.Linear(self.encoder.output_size, 1)

    def forward(self, sentences: Encoded) -> Tensor:
        """B sentences -> the logarithm of the odds for each word, (B, T), -inf past the end."""
        odds = self.output(self.dropout(self.encoder(*sentences))).squeeze(2)
        return odds.masked_fill(~inside(sentences.lengths.to(odds.device), odds.shape[1]), -torch.inf)


class SRLNetwork(nn.Module):
    """The network.

    layers, hidden   of the deep LSTM; dropout is its z
    mark_dim         the size of the vectors that tell the predicate from other words
    detector         units, in each direction, of the network that finds predicates; 0 for none
    legal            which tags may follow each other: bool (K + 2, K + 2)
    verb             the number of the tag B-V
    """

    legal: Tensor

    def __init__(
        self,
        *,
        input_size: int,
        legal: Tensor,
        verb: int,
        hidden: int = 300,
        layers: int = 8,
        mark_dim: int = 100,
        dropout: float = 0.1,
        detector: int = 100,
        again_size: int = 0,
    ):
        super().__init__()
        self.verb, self.again_size = verb, again_size
        self.detector = (
            PredicateDetector(input_size=input_size, hidden=detector, again_size=again_size, dropout=dropout)
            if detector
            else None
        )
        self.marks = nn.Parameter(torch.empty(2, mark_dim))
        nn.init.xavier_uniform_(self.marks)
        self.encoder = AlternatingLSTM(input_size=input_size + mark_dim, hidden=hidden, layers=layers, dropout=dropout)
        self.output = nn.Linear(hidden + again_size, len(legal) - 2)
        self.register_buffer("legal", legal, persistent=False)
        initialise(self)

    def find(self, sentences: Encoded) -> Tensor | None:
        """The logarithm of the odds that a word is a predicate, (B, T)."""
        return None if self.detector is None else self.detector(sentences)

    def label(self, sentences: Encoded, predicates: Predicates) -> Tensor:
        """The scores of the tags of all words for each predicate, (P, T, K)."""
        rows, places = predicates
        x = sentences.x[rows]  # (P, T, D)
        marked = torch.arange(x.shape[1], device=x.device) == places.unsqueeze(1)  # (P, T)
        marks = torch.where(marked.unsqueeze(2), self.marks[1], self.marks[0])
        lengths = sentences.lengths.to(x.device)[rows]
        h = self.encoder(torch.cat([x, marks.to(x.dtype)], dim=2), lengths)
        again = None if sentences.again is None else sentences.again[rows]
        return self.output(with_again(h, lengths, again, self.again_size))

    def loss(self, scores: RoleScores, targets: RoleTargets) -> Tensor:
        """The mean of -log p of the tags, and of -log p of being a predicate or none."""
        tags = (targets.tags != IGNORED).sum().clamp(min=1)  # a batch may have no predicate
        total = cross_entropy(scores.tags.flatten(0, 1), targets.tags.flatten(), ignore_index=IGNORED, reduction="sum")
        loss = total / tags
        if scores.odds is None:
            return loss
        words = scores.odds > -torch.inf
        odds = scores.odds.masked_fill(~words, 0.0)
        found = binary_cross_entropy_with_logits(odds, targets.predicates.to(odds.dtype), words, reduction="sum")
        return loss + found / words.sum().clamp(min=1)

    @torch.no_grad()
    def decode(self, scores: RoleScores) -> list[list[int]]:
        """The tags of each predicate's sentence."""
        tags = scores.tags.float().clone()
        at = torch.arange(tags.shape[1], device=tags.device) == scores.predicates.places.unsqueeze(1)  # (P, T)
        is_verb = torch.arange(tags.shape[2], device=tags.device) == self.verb  # (K,)
        tags.masked_fill_(at.unsqueeze(2) ^ is_verb, NEVER)
        return best_legal(tags, scores.lengths, self.legal)


class RoleNetwork(TaskNetwork):
    """A task's network whose batches hold predicates."""

    body: SRLNetwork

    def forward(self, batch: RoleBatch) -> RoleScores:
        """The scores for the predicates of the batch; where nothing is to be learned, for those that are found too."""
        sentences = self.inputs(batch.words)
        odds = self.body.find(sentences)
        predicates = batch.predicates if batch.targets is not None else with_found(batch.predicates, odds)
        if torch.is_grad_enabled():
            tags = self.body.label(sentences, predicates)
        else:
            some = max(1, AT_ONCE // max(sentences.x.shape[1], 1))
            portions = zip(*(part.split(some) for part in predicates), strict=True)
            tags = torch.cat([self.body.label(sentences, Predicates(*each)) for each in portions])
        return RoleScores(predicates, tags, batch.words.lengths.to(tags.device)[predicates.rows], odds)


def with_found(given: Predicates, odds: Tensor | None) -> Predicates:
    """The predicates that are given and those that are more probable than not, each once, sentence by sentence."""
    if odds is None:
        return given
    chosen = odds > 0
    chosen[given.rows, given.places] = True
    return Predicates(*chosen.nonzero(as_tuple=True))
