"""Roles and a sense for one predicate of a sentence: words beside a mark, recurrent layers, two outputs."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from relmo.networks.inputs import IGNORED, Encoded, SentenceEncoder
from relmo.nn.recurrence import initialise


class Frames(NamedTuple):
    """What is to be learned: roles (B, T), senses (B,)."""

    roles: Tensor
    senses: Tensor


class FrameScores(NamedTuple):
    """roles (B, T, R), senses (B, S)."""

    roles: Tensor
    senses: Tensor


class PredicateNetwork(nn.Module):
    """h = biLSTM([x; mark]); each role from h_t, the sense from h at the predicate."""

    def __init__(self, *, input_size: int, elmo_size: int, hidden: int, mark_dim: int, roles: int, senses: int):
        super().__init__()
        self.marks = nn.Embedding(2, mark_dim)
        self.encoder = SentenceEncoder(input_size=input_size + mark_dim, hidden=hidden, elmo_size=elmo_size)
        self.roles = nn.Linear(self.encoder.output_size, roles)
        self.senses = nn.Linear(self.encoder.output_size, senses)
        initialise(self)

    def forward(self, sentences: Encoded, predicates: Tensor) -> FrameScores:
        """B sentences and their predicates' places (B,)."""
        x, lengths, again = sentences
        marks = torch.arange(x.shape[1], device=x.device) == predicates.unsqueeze(1)  # (B, T)
        h = self.encoder(torch.cat([x, self.marks(marks.long())], dim=2), lengths, again)
        return FrameScores(self.roles(h), self.senses(h[torch.arange(len(h)), predicates]))

    def loss(self, scores: FrameScores, targets: Frames) -> Tensor:
        """The mean of -log p of both."""
        roles = cross_entropy(scores.roles.transpose(1, 2), targets.roles, ignore_index=IGNORED)
        return roles + cross_entropy(scores.senses, targets.senses)
