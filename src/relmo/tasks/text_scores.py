"""Scores of generated texts: BLEU and chrF (by sacrebleu), ROUGE, exact match; in total and by source length.

    bleu, chrf          corpus scores of sacreBLEU, with their signatures (Post 2018; Popović 2015)
    rouge1, rouge2      mean F1 of the words, and of the word bigrams, that a text shares with its reference
    rougeL              F1 of their longest common subsequence (Lin 2004). Words are lower-cased runs of letters and
                        digits, without stemming; the best of several references counts
    exact               fraction of texts that equal a reference, apart from surrounding whitespace
    prefix              mean fraction of a reference's characters that are correct before the first error

Scores are fractions between 0 and 1: BLEU 38.2 is 0.382.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from relmo.errors import SettingError
from relmo.tasks.scores import TaskReport, f1_score

SACREBLEU_METRICS = ("bleu", "chrf")
METRICS = {"bleu": "bleu", "chrf": "chrf", "rouge": "rougeL", "exact": "exact"}
LENGTH_BOUNDS = (5, 10, 15, 20, 30, 40, 60, 100, 200)  # maximum source length of each group, in units

References = Sequence[Sequence[str]]


class LengthScore(NamedTuple):
    """Scores of the texts whose sources have at least `least` and at most `most` units."""

    least: int
    most: int | None
    texts: int
    score: float
    exact: float
    prefix: float


@dataclass(frozen=True)
class TextReport(TaskReport):
    """Report on generated texts.

    by_length     scores by source length, the shortest first
    signatures    sacreBLEU's description of how each score was computed
    """

    by_length: list[LengthScore] = field(default_factory=list)
    signatures: dict[str, str] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        rows = [row._asdict() for row in self.by_length]
        return super().summary() | {"by_length": rows, "signatures": self.signatures}


def text_report(
    texts: Sequence[str], references: References, lengths: Sequence[int], *, metric: str = "bleu"
) -> TextReport:
    """Score texts against their references; `lengths` are those of the sources.

    BLEU and chrF are left out if sacrebleu is not installed and neither is the metric.
    """
    name = METRICS[metric]
    values: dict[str, float] = {}
    signatures: dict[str, str] = {}
    if name in SACREBLEU_METRICS or _has_sacrebleu():
        for score_name in SACREBLEU_METRICS:
            values[score_name], signatures[score_name] = sacrebleu_score(score_name, texts, references)
    values |= rouge(texts, references)
    values |= {"exact": exact_match(texts, references), "prefix": correct_prefix(texts, references)}
    rows, least = [], 0
    for most in (*LENGTH_BOUNDS, None):
        indices = [i for i, length in enumerate(lengths) if least <= length and (most is None or length <= most)]
        if indices:
            group, group_references = [texts[i] for i in indices], [references[i] for i in indices]
            exact, prefix = exact_match(group, group_references), correct_prefix(group, group_references)
            if name in SACREBLEU_METRICS:
                score, _ = sacrebleu_score(name, group, group_references)
            else:
                score = exact if name == "exact" else rouge(group, group_references)[name]
            rows.append(LengthScore(least, most, len(indices), score, exact, prefix))
        least = most + 1 if most is not None else least
    return TextReport(
        metric=name,
        values={name: values[name], **values},
        count=len(texts),
        by_length=rows,
        signatures=signatures,
    )


def _has_sacrebleu() -> bool:
    return importlib.util.find_spec("sacrebleu") is not None


def check_metric(metric: str) -> None:
    """Raise `SettingError` if the package that computes a metric is not installed."""
    if METRICS[metric] in SACREBLEU_METRICS and not _has_sacrebleu():
        raise SettingError(
            f"metric {metric} needs the sacrebleu package: pip install 'relmo[translate]'. "
            "--metric rouge and --metric exact do not need it."
        )


def sacrebleu_score(name: str, texts: Sequence[str], references: References) -> tuple[float, str]:
    """Return BLEU or chrF of a corpus, from 0 to 1, and its signature."""
    check_metric(name)
    from sacrebleu.metrics import BLEU, CHRF

    if not texts:
        return 0.0, ""
    scorer: Any = BLEU() if name == "bleu" else CHRF()
    # sacrebleu takes the first reference of every text, then the second of every text, and so on
    num_references = max(map(len, references), default=1)
    columns = [[group[i] if i < len(group) else None for group in references] for i in range(num_references)]
    score = scorer.corpus_score(list(texts), columns).score
    return score / 100, str(scorer.get_signature())


def exact_match(texts: Sequence[str], references: References) -> float:
    """Return the fraction of texts that equal one of their references."""
    pairs = zip(texts, references, strict=True)
    count = sum(text.strip() in [reference.strip() for reference in group] for text, group in pairs)
    return count / max(len(texts), 1)


def correct_prefix(texts: Sequence[str], references: References) -> float:
    """Return the mean fraction of the best reference that a text has before its first error."""
    total = 0.0
    for text, group in zip(texts, references, strict=True):
        best = 0.0
        for reference in group:
            pairs = zip(text.strip(), reference.strip(), strict=False)
            num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            best = max(best, num_equal / max(len(reference), 1))
        total += best
    return total / max(len(texts), 1)


def rouge(texts: Sequence[str], references: References) -> dict[str, float]:
    """Return the means of ROUGE-1, ROUGE-2 and ROUGE-L."""
    sums = dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)
    for text, group in zip(texts, references, strict=True):
        words = rouge_words(text)
        scores = [_rouge_scores(words, rouge_words(reference)) for reference in group]
        for name in sums:
            sums[name] += max((score[name] for score in scores), default=0.0)
    return {name: value / max(len(texts), 1) for name, value in sums.items()}


def rouge_words(text: str) -> list[str]:
    """Return the lower-cased runs of letters and digits."""
    return re.findall(r"[^\W_]+", text.lower())


def _rouge_scores(words: list[str], reference: list[str]) -> dict[str, float]:
    scores = {}
    for n in (1, 2):
        ngrams, reference_ngrams = (
            Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in (words, reference)
        )
        num_shared = (ngrams & reference_ngrams).total()
        scores[f"rouge{n}"] = f1_score(num_shared, ngrams.total(), reference_ngrams.total())[2]
    scores["rougeL"] = f1_score(common_subsequence(words, reference), len(words), len(reference))[2]
    return scores


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    L(i, j) = L(i-1, j-1) + 1 if a_i = b_j, otherwise max(L(i-1, j), L(i, j-1))
    """
    above = [0] * (len(b) + 1)
    for x in a:
        row = [0]
        for j, y in enumerate(b, start=1):
            row.append(above[j - 1] + 1 if x == y else max(above[j], row[j - 1]))
        above = row
    return above[-1]
