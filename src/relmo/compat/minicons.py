"""minicons: a language model's scores under the names that scripts for minicons call.

    scorer = Scorer("prose")                                    # minicons: scorer.IncrementalLMScorer("gpt2")
    scorer.token_score(["The keys are here."], surprisal=True, base_two=True)
    scorer.sequence_score(["The keys are here.", "The keys is here."])

A token is a row of `surprisal`: a word. Each sentence is read by itself, from nothing. minicons itself is not needed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relmo.errors import SettingError
from relmo.loading import FORWARDS, load

Reduction = Callable[[Tensor], Any]


def _mean(scores: Tensor) -> float:
    return scores.mean(0).item()


class Scorer:
    """Scores of words and sentences by a language model or a bidirectional one, which reads forwards here."""

    def __init__(self, model: Any, device: str = "auto"):
        """`model` is a model that is loaded, or what `relmo.load` takes."""
        self.model = model if hasattr(model, "surprisal") else load(model, kinds=FORWARDS, device=device)

    def token_score(
        self, batch: str | Sequence[str], *, surprisal: bool = False, prob: bool = False, base_two: bool = False
    ) -> list[list[tuple[str, float]]]:
        """For each sentence its words, each with its log-probability given the words before it; or its surprisal; or
        its probability. `base_two` gives bits."""
        if surprisal and prob:
            raise SettingError("token_score gives surprisals or probabilities; ask for one of them")
        rows = self._rows([batch] if isinstance(batch, str) else list(batch))
        return [[(word, _scaled(bits, surprisal, prob, base_two)) for word, bits in row] for row in rows]

    def sequence_score(
        self, batch: str | Sequence[str], *, reduction: Reduction = _mean, base_two: bool = False
    ) -> list[Any]:
        """For each sentence what `reduction` makes of its words' log-probabilities, a tensor: their mean if it is not
        given."""
        scored = self.token_score(batch, base_two=base_two)
        return [reduction(torch.tensor([score for _, score in row])) for row in scored]

    def conditional_score(
        self,
        prefix: str | Sequence[str],
        stimuli: str | Sequence[str],
        *,
        separator: str = " ",
        reduction: Reduction = _mean,
        base_two: bool = False,
    ) -> list[Any]:
        """The same of each of the stimuli, read after its prefix, whose own words do not count."""
        before = [prefix] if isinstance(prefix, str) else list(prefix)
        after = [stimuli] if isinstance(stimuli, str) else list(stimuli)
        if len(before) != len(after):
            raise SettingError(f"there are {len(before)} prefixes and {len(after)} stimuli; give a prefix for each")
        joined = [f"{first}{separator}{second}" for first, second in zip(before, after, strict=True)]
        table = self.model.surprisal(joined, context="sentence")
        scores: list[list[float]] = [[] for _ in joined]
        for row in table:
            if row.start >= len(before[row.line - 1]) + len(separator):
                scores[row.line - 1].append(_scaled(row.surprisal, False, False, base_two))
        return [reduction(torch.tensor(each)) for each in scores]

    def _rows(self, sentences: list[str]) -> list[list[tuple[str, float]]]:
        """The words of each sentence with their surprisals in bits."""
        found: list[list[tuple[str, float]]] = [[] for _ in sentences]
        for row in self.model.surprisal(sentences, context="sentence"):
            found[row.line - 1].append((row.word, row.surprisal))
        return found


def _scaled(bits: float, surprisal: bool, prob: bool, base_two: bool) -> float:
    """A surprisal in bits as what was asked for."""
    if prob:
        return 2.0**-bits
    size = bits if base_two else bits * math.log(2)
    return size if surprisal else -size
