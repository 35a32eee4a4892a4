"""A tag for each word: recurrent layers in both directions, then each tag by itself or all of a sentence together.

h = biLSTM(x)  [; again]
e_t = W dropout(h_t) + b                                       a score for each tag
softmax: p(y_t) = softmax(e_t);   crf: p(y) over whole sequences (`nn/crf.py`)

Huang et al. 2015, Bidirectional LSTM-CRF models for sequence tagging;  Ma & Hovy 2016
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from relmo.networks.inputs import IGNORED
from relmo.networks.sentence_encoder import Encoded, SentenceEncoder
from relmo.nn.crf import CRF
from relmo.nn.dropout import SequenceDropout
from relmo.nn.initialise import initialise
from relmo.settings.cells import CellName


class Emissions(NamedTuple):
    """A score for each tag of each word (B, T, K), and the sentences' lengths (B,)."""

    scores: Tensor
    lengths: Tensor


class DecodedTags(NamedTuple):
    """The tags of a sentence of T words, the probability of each (T,), and that of each together with the one before it
    (T - 1,). By themselves tags are independent, and the latter is a product; a CRF's are its marginals."""

    tags: list[int]
    each: list[float]
    pairs: list[float]

    def together(self, start: int, end: int) -> float:
        """p(y_start … y_end-1): the probability that all these words have their tags. A chain's is
        p(y_start, y_start+1) p(y_start+1, y_start+2) … / p(y_start+1) …"""
        if end - start < 2:
            return self.each[start]
        inner = prod(self.each[start + 1 : end - 1])
        return min(1.0, prod(self.pairs[start : end - 1]) / inner) if inner else 0.0


class TaggerNetwork(nn.Module):
    """The network.

    dropout      variational, on the input, between layers and on the output
    crf, legal   choose a sentence's tags together, of those that may follow each other: bool (K + 2, K + 2)
    """

    def __init__(
        self,
        *,
        input_size: int,
        tags: int,
        hidden: int = 200,
        cell: CellName = "lstm",
        layers: int = 1,
        again_size: int = 0,
        dropout: float = 0.5,
        crf: bool = False,
        legal: Tensor | None = None,
    ):
        super().__init__()
        self.encoder = SentenceEncoder(
            input_size=input_size, hidden=hidden, cell=cell, layers=layers, dropout=dropout, again_size=again_size
        )
        self.dropout = SequenceDropout(dropout, variational=True)
        self.output = nn.Linear(self.encoder.output_size, tags)
        initialise(self)
        self.crf = CRF(tags, legal=legal) if crf else None

    def forward(self, sentences: Encoded) -> Emissions:
        """B sentences -> a score for each tag of each word."""
        return Emissions(self.output(self.dropout(self.encoder(*sentences))), sentences.lengths)

    def loss(self, emissions: Emissions, tags: Tensor) -> Tensor:
        """Return the mean of -log p: over words, or, with a CRF, over sentences; tags (B, T) are IGNORED past the end
        and for words without a tag."""
        if self.crf is not None:
            return self.crf.loss(emissions.scores, tags, emissions.lengths)
        return cross_entropy(emissions.scores.transpose(1, 2), tags, ignore_index=IGNORED)

    @torch.no_grad()
    def decode(self, emissions: Emissions) -> list[DecodedTags]:
        """The tags of each sentence, with their probabilities."""
        scores, lengths = emissions
        if self.crf is not None:
            found = self.crf.decode(scores, lengths)
            tags = scores.new_zeros(scores.shape[:2], dtype=torch.int64)
            for row, path in zip(tags, found, strict=True):
                row[: len(path)] = torch.tensor(path, dtype=torch.int64)
            each, pairs = (log.clamp(max=0.0) for log in self.crf.log_marginals(scores, tags, lengths))
        else:
            best = torch.log_softmax(scores.float(), dim=2).max(dim=2)
            tags, each = best.indices, best.values
            pairs = each[:, 1:] + each[:, :-1]
        rows = zip(tags.tolist(), each.exp().tolist(), pairs.exp().tolist(), lengths.tolist(), strict=True)
        return [DecodedTags(path[:n], one[:n], two[: max(n - 1, 0)]) for path, one, two, n in rows]
