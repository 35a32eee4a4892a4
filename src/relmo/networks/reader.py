"""BiDAF++: a network that finds the answer to a question in a passage.

    p, q  = dropout(BiGRU(dropout(x))) [; again]              of the passage and of the question, one BiGRU for both
    m     = relu(W [p; a; p * a; p * h] + b)                  passage and question beside each other
    g     = dropout(BiGRU(dropout(m)))
    m     = dropout(m + relu(V [g; b; g * b] + c))            the passage beside itself
    start = softmax_i(u . f_i),    f = BiGRU(m)
    end   = softmax_i(v . e_i),    e = BiGRU([f; m])

a, h and b are attentions (`nn/trilinear.py`). Dropout is variational: one mask for all words of a text. The loss is
-log start_i - log end_j of the right span. The answer is the span with the greatest start_i * end_j among those that
are not too long.

    Clark & Gardner 2017, Simple and effective multi-paragraph reading comprehension
    Peters et al. 2018, Deep contextualized word representations (ELMo at the input and beside the first BiGRU's output)
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from relmo.networks.inputs import TaskNetwork, WordBatch
from relmo.networks.sentence_encoder import Encoded, SentenceEncoder, with_again
from relmo.nn.dropout import SequenceDropout
from relmo.nn.initialise import initialise
from relmo.nn.pooling import blank, inside
from relmo.nn.trilinear import PassageQuestionAttention, PassageSelfAttention
from relmo.settings.cells import CellName


class ReadingBatch(NamedTuple):
    """Questions side by side, each distinct passage once, which of those a question is about (B,), and in training the
    first and the last word of each answer (B, 2)."""

    passages: WordBatch
    questions: WordBatch
    which: Tensor
    targets: Tensor | None = None
    predictions: int = 0


class SpanScores(NamedTuple):
    """The log probability of each word of the passage to be an answer's first one, and its last one; (B, T) each. Past
    a passage's end they are the lowest number."""

    start: Tensor
    end: Tensor


class SpanReader(nn.Module):
    """The network behind the words' vectors.

    hidden      units of each recurrent layer in each direction
    again_size  the size of the ELMo vectors beside the shared encoder's output; 0 where there are none
    """

    def __init__(
        self, *, input_size: int, hidden: int = 90, cell: CellName = "gru", again_size: int = 0, dropout: float = 0.2
    ):
        super().__init__()
        size = 2 * hidden
        self.again_size = again_size
        self.dropout = SequenceDropout(dropout, variational=True)
        self.encoder = SentenceEncoder(input_size=input_size, hidden=hidden, cell=cell, dropout=dropout)
        self.attention = PassageQuestionAttention(size + again_size)
        self.merge = nn.Linear(self.attention.output_size, size)
        self.passage = SentenceEncoder(input_size=size, hidden=hidden, cell=cell, dropout=dropout)
        self.self_attention = PassageSelfAttention(size)
        self.residual = nn.Linear(self.self_attention.output_size, size)
        self.first = SentenceEncoder(input_size=size, hidden=hidden, cell=cell)
        self.last = SentenceEncoder(input_size=2 * size, hidden=hidden, cell=cell)
        self.start, self.end = nn.Linear(size, 1, bias=False), nn.Linear(size, 1, bias=False)
        initialise(self)

    def forward(self, passages: Encoded, questions: Encoded, which: Tensor) -> SpanScores:
        """P passages, B questions, and which passage each of those is about (B,)."""
        p, q = self.encode(passages)[which], self.encode(questions)  # (B, T, 2H + E), (B, Q, 2H + E)
        lengths = passages.lengths[which]
        m = relu(self.merge(self.attention(p, q, lengths, questions.lengths)))  # (B, T, 2H)
        g = self.dropout(self.passage(m, lengths))
        m = self.dropout(m + relu(self.residual(self.self_attention(g, lengths))))
        f = self.first(m, lengths)
        e = self.last(torch.cat([f, blank(m, lengths)], dim=2), lengths)
        return SpanScores(_log_shares(self.start(f), lengths), _log_shares(self.end(e), lengths))

    def encode(self, texts: Encoded) -> Tensor:
        """Words that know their text, ELMo beside them; (B, T, 2H + E)."""
        y = self.dropout(self.encoder(texts.x, texts.lengths))
        return with_again(y, texts.lengths, texts.again, self.again_size)

    def loss(self, scores: SpanScores, targets: Tensor) -> Tensor:
        """The mean of -log start_i - log end_j; targets (B, 2)."""
        start, end = (log.gather(1, word.unsqueeze(1)) for log, word in zip(scores, targets.unbind(1), strict=True))
        return -(start + end).mean()


class ReadingNetwork(TaskNetwork):
    """A task's network whose batches hold each passage once."""

    def forward(self, batch: ReadingBatch) -> SpanScores:
        """Where answers begin and end."""
        return self.body(self.inputs(batch.passages), self.inputs(batch.questions), batch.which)


def _log_shares(scores: Tensor, lengths: Tensor) -> Tensor:
    """The log softmax over a passage's words of scores (B, T, 1); (B, T)."""
    scores = scores.squeeze(2).float()
    words = inside(lengths.to(scores.device), scores.shape[1])
    return torch.log_softmax(scores.masked_fill(~words, torch.finfo(scores.dtype).min), dim=1)


class BestSpans(NamedTuple):
    """The best spans of B passages, the best first: the first and the last word, and the log of start_i * end_j, which
    is -inf where a passage has no further span; (B, N) each."""

    first: Tensor
    last: Tensor
    score: Tensor


def best_spans(scores: SpanScores, lengths: Tensor, *, longest: int, count: int = 1) -> BestSpans:
    """The spans i to j of at most `longest` words with the greatest start_i * end_j, no two of which share a word."""
    steps = scores.start.shape[1]
    width = min(longest, steps)
    first = torch.arange(steps, device=scores.start.device).unsqueeze(1)  # (T, 1)
    last = first + torch.arange(width, device=first.device)  # (T, W)
    sums = scores.start.unsqueeze(2) + scores.end[:, last.clamp(max=steps - 1)]  # (B, T, W)
    sums = sums.masked_fill(last >= lengths.to(first.device).view(-1, 1, 1), -torch.inf)
    found = []
    for _ in range(count):
        score, place = sums.flatten(1).max(dim=1)
        i = place // width
        j = i + place % width
        found.append((i, j, score))
        shares = (first <= j.view(-1, 1, 1)) & (last >= i.view(-1, 1, 1))  # a word with this span
        sums = sums.masked_fill(shares, -torch.inf)
    return BestSpans(*(torch.stack(parts, dim=1) for parts in zip(*found, strict=True)))
