"""Skip-gram with negative sampling: a vector for each word that tells its neighbours from random words.

    Mikolov et al. 2013, Distributed representations of words and phrases and their compositionality
    Ji et al. 2016, Parallelizing word2vec in shared and distributed memory: neighbouring words share their negatives

The text is split into groups of consecutive words. One matrix product scores all words of a group against all words in
and around it and against shared negatives; scores of no pair have weight zero. These are several times more scores than
needed, but this is much faster than gathering the vectors of each pair. Gradients are sparse: the cost of a step
depends on its words, not on the size of the vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from relmo.networks.language_model import Loss
from relmo.nn.recurrence import State
from relmo.settings.lm import SkipgramModelSettings


class Groups(NamedTuple):
    """G groups of S consecutive words, with the C words in and around each and K negatives."""

    centres: Tensor  # (G, S)
    contexts: Tensor  # (G, C)
    pairs: Tensor  # (G, S, C): whether a centre should predict a context
    negatives: Tensor  # (G, K)
    predictions: int  # number of pairs


class SkipGram(nn.Module):
    """Two vectors for each word: u as a centre (the word vectors that are saved), v as a context."""

    def __init__(self, settings: SkipgramModelSettings, *, vocab_size: int):
        super().__init__()
        size = settings.dimensions
        self.words = nn.Embedding(vocab_size, size, sparse=True)
        self.contexts = nn.Embedding(vocab_size, size, sparse=True)
        self.negatives = settings.negatives
        nn.init.uniform_(self.words.weight, -0.5 / size, 0.5 / size)
        nn.init.zeros_(self.contexts.weight)

    def loss(self, groups: Groups, carry: State | None) -> Loss:
        """Return the mean over the pairs (w, c) of

            -log s(u_w . v_c) - k E_n [log s(-u_w . v_n)],    n ~ count(n)^0.75,    s the logistic function

        where the mean over the K negatives of the group estimates the expectation, and k is `negatives`.

        Its gradient is that of the sum over the pairs, as in word2vec: a rare word learns as much from a pair in a
        large batch as in a small one.
        """
        u = self.words(groups.centres)  # (G, S, D)
        v = self.contexts(torch.cat([groups.contexts, groups.negatives], dim=1))  # (G, C + K, D)
        scores = u @ v.transpose(1, 2)  # (G, S, C + K)
        true, noise = scores.split([groups.contexts.shape[1], groups.negatives.shape[1]], dim=2)
        pairs = groups.pairs.to(u.dtype)
        total = (pairs * softplus(-true)).sum()  # softplus(x) = -log s(-x)
        total = total + self.negatives * (pairs.sum(dim=2) * softplus(noise).mean(dim=2)).sum()
        mean = total.detach() / max(groups.predictions, 1)
        return Loss(mean + (total - total.detach()), groups.predictions, ())
