"""BiDAF++: extraction of the answer to a question from a passage.

    p, q  = dropout(BiGRU(dropout(x))) [; ELMo]               passage and question, one BiGRU for both
    m     = relu(W [p; a; p * a; p * h] + b)                  passage attends to question, and back
    g     = dropout(BiGRU(dropout(m)))
    m     = dropout(m + relu(V [g; b; g * b] + c))            self-attention of the passage
    start = softmax_i(u . f_i),    f = BiGRU(m)
    end   = softmax_i(v . e_i),    e = BiGRU([f; m])

a, h and b are attentions (`nn/trilinear.py`). Dropout is variational: one mask for all words of a text. The loss is
-log start_i - log end_j of the right span. The answer is the span with the greatest start_i * end_j up to a maximal
length.

    Clark & Gardner 2017, Simple and effective multi-paragraph reading comprehension
    Peters et al. 2018, Deep contextualized word representations (ELMo at input and output of the first BiGRU)
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from relmo.networks.inputs import Encoded, SentenceEncoder, append_elmo
from relmo.nn.attention import PassageQuestionAttention, PassageSelfAttention
from relmo.nn.dropout import SequenceDropout
from relmo.nn.pooling import length_mask, mask_padding
from relmo.nn.recurrence import initialise
from relmo.settings.kinds import cell_options
from relmo.settings.tasks import ReaderModelSettings


class SpanScores(NamedTuple):
    """Log-probabilities of each word to be the first and the last one of the answer, (B, T) each."""

    start: Tensor
    end: Tensor


class SpanReader(nn.Module):
    """Network behind the word inputs; `elmo_size` is that of ELMo vectors at the output of the shared encoder."""

    def __init__(self, settings: ReaderModelSettings, *, input_size: int, elmo_size: int = 0):
        super().__init__()
        hidden, dropout = settings.hidden, settings.dropout
        layer: dict[str, Any] = {"hidden": hidden, "cell": settings.cell, "cell_options": cell_options(settings)}
        size = 2 * hidden
        self.elmo_size = elmo_size
        self.dropout = SequenceDropout(dropout, variational=True)
        self.encoder = SentenceEncoder(input_size=input_size, dropout=dropout, **layer)
        self.attention = PassageQuestionAttention(size + elmo_size)
        self.merge = nn.Linear(self.attention.output_size, size)
        self.passage = SentenceEncoder(input_size=size, dropout=dropout, **layer)
        self.self_attention = PassageSelfAttention(size)
        self.residual = nn.Linear(self.self_attention.output_size, size)
        self.first = SentenceEncoder(input_size=size, **layer)
        self.last = SentenceEncoder(input_size=2 * size, **layer)
        self.start, self.end = nn.Linear(size, 1, bias=False), nn.Linear(size, 1, bias=False)
        initialise(self)

    def forward(self, passages: Encoded, questions: Encoded, passage_index: Tensor) -> SpanScores:
        """Score the answers to B questions about P passages; `passage_index` (B,) is the passage of each question."""
        words = []  # (P, T, 2H + E), (B, Q, 2H + E)
        for x, lengths, elmo in (passages, questions):
            y = self.dropout(self.encoder(x, lengths))
            words.append(append_elmo(y, lengths, elmo, self.elmo_size))
        p, q = words[0][passage_index], words[1]
        lengths = passages.lengths[passage_index]
        m = relu(self.merge(self.attention(p, q, lengths, questions.lengths)))  # (B, T, 2H)
        g = self.dropout(self.passage(m, lengths))
        m = self.dropout(m + relu(self.residual(self.self_attention(g, lengths))))
        f = self.first(m, lengths)
        e = self.last(torch.cat([f, mask_padding(m, lengths)], dim=2), lengths)
        padding = ~length_mask(lengths.to(m.device), m.shape[1])
        logits = (scores.squeeze(2).float() for scores in (self.start(f), self.end(e)))  # (B, T) each
        filled = (scores.masked_fill(padding, torch.finfo(scores.dtype).min) for scores in logits)
        return SpanScores(*(torch.log_softmax(scores, dim=1) for scores in filled))

    def loss(self, scores: SpanScores, targets: Tensor) -> Tensor:
        """Return the mean of -log start_i - log end_j for targets (B, 2)."""
        start, end = (log.gather(1, word.unsqueeze(1)) for log, word in zip(scores, targets.unbind(1), strict=True))
        return -(start + end).mean()


class BestSpans(NamedTuple):
    """Best spans of B passages, best first: first word, last word and score, (B, N) each."""

    first: Tensor
    last: Tensor
    score: Tensor  # log(start_i * end_j); -inf if a passage has no further span


def best_spans(scores: SpanScores, lengths: Tensor, *, longest: int, count: int = 1) -> BestSpans:
    """Return the non-overlapping spans of at most `longest` words with the greatest start_i * end_j."""
    steps = scores.start.shape[1]
    width = min(longest, steps)
    start = torch.arange(steps, device=scores.start.device).unsqueeze(1)  # (T, 1)
    end = start + torch.arange(width, device=start.device)  # (T, W)
    sums = scores.start.unsqueeze(2) + scores.end[:, end.clamp(max=steps - 1)]  # (B, T, W)
    sums = sums.masked_fill(end >= lengths.to(start.device).view(-1, 1, 1), -torch.inf)
    spans = []
    for _ in range(count):
        score, flat_index = sums.flatten(1).max(dim=1)
        i = flat_index // width
        j = i + flat_index % width
        spans.append((i, j, score))
        overlaps = (start <= j.view(-1, 1, 1)) & (end >= i.view(-1, 1, 1))
        sums = sums.masked_fill(overlaps, -torch.inf)
    return BestSpans(*(torch.stack(parts, dim=1) for parts in zip(*spans, strict=True)))
