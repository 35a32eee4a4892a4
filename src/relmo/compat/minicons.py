"""minicons: scores of a language model under the names of minicons' API.

    scorer = Scorer("prose")                                    # minicons: scorer.IncrementalLMScorer("gpt2")
    scorer.token_score(["The keys are here."], surprisal=True, base_two=True)
    scorer.sequence_score(["The keys are here.", "The keys is here."])

A token is a word, a row of `surprisal`. Each sentence is read without context. The package minicons is not needed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relmo.errors import SettingError
from relmo.loading import FORWARD_KINDS, load

Reduction = Callable[[Tensor], Any]


def _mean(scores: Tensor) -> float:
    return scores.mean(0).item()


class Scorer:
    """Scores of words and sentences under a language model; a bidirectional model reads forward.

    model    a loaded model, or anything that `relmo.load` accepts
    """

    def __init__(self, model: Any, device: str = "auto"):
        self.model = model if hasattr(model, "surprisal") else load(model, kinds=FORWARD_KINDS, device=device)

    def token_score(
        self, batch: str | Sequence[str], *, surprisal: bool = False, prob: bool = False, base_two: bool = False
    ) -> list[list[tuple[str, float]]]:
        """Return for each sentence its words with their log-probabilities given the previous words, or with their
        surprisal or probability. `base_two` gives bits."""
        if surprisal and prob:
            raise SettingError("surprisal and prob cannot be used together")
        sentences = [batch] if isinstance(batch, str) else list(batch)
        scores: list[list[tuple[str, float]]] = [[] for _ in sentences]
        for row in self.model.surprisal(sentences, context="sentence"):
            score = row.surprisal * (1.0 if base_two else math.log(2)) * (1 if surprisal else -1)
            scores[row.line - 1].append((row.word, 2.0**-row.surprisal if prob else score))
        return scores

    def sequence_score(
        self, batch: str | Sequence[str], *, reduction: Reduction = _mean, base_two: bool = False
    ) -> list[Any]:
        """Return the `reduction` of each sentence's log-probabilities, a tensor; by default their mean."""
        scores = self.token_score(batch, base_two=base_two)
        return [reduction(torch.tensor([score for _, score in sentence])) for sentence in scores]

    def conditional_score(
        self,
        prefix: str | Sequence[str],
        stimuli: str | Sequence[str],
        *,
        separator: str = " ",
        reduction: Reduction = _mean,
        base_two: bool = False,
    ) -> list[Any]:
        """Return the `reduction` of the log-probabilities of each stimulus after its prefix, without the prefix's."""
        prefixes = [prefix] if isinstance(prefix, str) else list(prefix)
        continuations = [stimuli] if isinstance(stimuli, str) else list(stimuli)
        if len(prefixes) != len(continuations):
            raise SettingError(f"{len(prefixes)} prefixes and {len(continuations)} stimuli; give a prefix for each")
        joined = [separator.join(pair) for pair in zip(prefixes, continuations, strict=True)]
        scores: list[list[float]] = [[] for _ in joined]
        for row in self.model.surprisal(joined, context="sentence"):
            if row.start >= len(prefixes[row.line - 1]) + len(separator):
                scores[row.line - 1].append(-row.surprisal * (1.0 if base_two else math.log(2)))
        return [reduction(torch.tensor(sentence)) for sentence in scores]
