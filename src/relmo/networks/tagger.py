"""Tagger: bidirectional recurrent layers, then a softmax per word or a CRF over the sentence.

h = biLSTM(x)  [; ELMo]
e_t = W dropout(h_t) + b                                       a score for each tag
softmax: p(y_t) = softmax(e_t);   crf: p(y) over whole sequences (`nn/crf.py`)

Huang et al. 2015, Bidirectional LSTM-CRF models for sequence tagging;  Ma & Hovy 2016
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from relmo.networks.inputs import IGNORED, Encoded, SentenceEncoder, encoder_options
from relmo.nn.crf import CRF
from relmo.nn.dropout import SequenceDropout
from relmo.nn.recurrence import initialise
from relmo.settings.tasks import TaggerModelSettings


class Emissions(NamedTuple):
    """Scores of the tags of each word (B, T, K), and the lengths (B,)."""

    scores: Tensor
    lengths: Tensor


class DecodedTags(NamedTuple):
    """Tags of a sentence of T words, with probabilities; those of a CRF are marginals."""

    tags: list[int]
    unary: list[float]  # of each tag
    pairwise: list[float]  # of each pair of neighbours, (T - 1,); with a softmax they are independent

    def joint(self, start: int, end: int) -> float:
        """Return p(y_start … y_end-1): for a chain p(y_start, y_start+1) p(y_start+1, y_start+2) … / p(y_start+1) …"""
        if end - start < 2:
            return self.unary[start]
        inner = prod(self.unary[start + 1 : end - 1])
        return min(1.0, prod(self.pairwise[start : end - 1]) / inner) if inner else 0.0


class TaggerNetwork(nn.Module):
    """Network of a tagger. Dropout is variational, on the input, between layers and on the output."""

    def __init__(
        self,
        settings: TaggerModelSettings,
        *,
        input_size: int,
        num_tags: int,
        elmo_size: int = 0,
        legal: Tensor | None = None,  # (K + 2, K + 2), bool: which tags may follow each other, for a CRF
    ):
        super().__init__()
        options = encoder_options(settings)
        self.encoder = SentenceEncoder(input_size=input_size, elmo_size=elmo_size, **options)
        self.dropout = SequenceDropout(settings.dropout, variational=True)
        self.output = nn.Linear(self.encoder.output_size, num_tags)
        initialise(self)
        self.crf = CRF(num_tags, legal=legal) if settings.decoder == "crf" else None

    def forward(self, sentences: Encoded) -> Emissions:
        """Return the scores of the tags of each word."""
        return Emissions(self.output(self.dropout(self.encoder(*sentences))), sentences.lengths)

    def loss(self, emissions: Emissions, tags: Tensor) -> Tensor:
        """Return the mean of -log p over words or, with a CRF, sentences; tags (B, T) of other words are IGNORED."""
        if self.crf is not None:
            return self.crf.loss(emissions.scores, tags, emissions.lengths)
        return cross_entropy(emissions.scores.transpose(1, 2), tags, ignore_index=IGNORED)

    @torch.no_grad()
    def decode(self, emissions: Emissions) -> list[DecodedTags]:
        """Return the tags of each sentence, with their probabilities."""
        scores, lengths = emissions
        if self.crf is not None:
            paths = self.crf.decode(scores, lengths)
            tags = scores.new_zeros(scores.shape[:2], dtype=torch.int64)
            for row, path in zip(tags, paths, strict=True):
                row[: len(path)] = torch.tensor(path, dtype=torch.int64)
            unary, pairwise = (log.clamp(max=0.0) for log in self.crf.log_marginals(scores, tags, lengths))
        else:
            best = torch.log_softmax(scores.float(), dim=2).max(dim=2)
            tags, unary = best.indices, best.values
            pairwise = unary[:, 1:] + unary[:, :-1]
        rows = zip(tags.tolist(), unary.exp().tolist(), pairwise.exp().tolist(), lengths.tolist(), strict=True)
        return [DecodedTags(path[:n], single[:n], pairs[: max(n - 1, 0)]) for path, single, pairs, n in rows]
