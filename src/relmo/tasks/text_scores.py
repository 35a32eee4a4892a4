"""How near written texts come to right ones: BLEU and chrF (by sacrebleu), ROUGE, exact match; and by source length.

    bleu, chrf          sacreBLEU's, of the whole corpus, with their signatures (Post 2018; Popović 2015)
    rouge1, rouge2      F1 of the words, and of the pairs of words, that a text shares with its reference; the mean
    rougeL              F1 of their longest common subsequence (Lin 2004). Words are lower-cased runs of letters and
                        digits, as they are, without stemming; of several references the best counts
    exact               the share of texts that are a reference to the character, spaces at their ends aside
    prefix              the share of a reference's characters that are written before the first mistake; the mean

Shares are from 0 to 1: BLEU 38.2 is 0.382.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relmo.errors import SettingError
from relmo.tasks.scores import TaskReport, f1_score

BY_SACREBLEU = ("bleu", "chrf")
METRICS = {"bleu": "bleu", "chrf": "chrf", "rouge": "rougeL", "exact": "exact"}
BOUNDS = (5, 10, 15, 20, 30, 40, 60, 100, 200)  # of sources' lengths: at most so many units

References = Sequence[Sequence[str]]


class LengthScore(NamedTuple):
    """Sources of at least `least` and at most `most` units: how many there are, the score that matters, exact match,
    and how far they are right."""

    least: int
    most: int | None
    texts: int
    score: float
    exact: float
    prefix: float


@dataclass(frozen=True)
class TextReport(TaskReport):
    """A report of written texts.

    by_length     the scores by the sources' lengths, the shortest first
    signatures    how sacreBLEU has computed its figures
    """

    by_length: list[LengthScore] = field(default_factory=list)
    signatures: dict[str, str] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """All of it, for JSON."""
        rows = [row._asdict() for row in self.by_length]
        return super().summary() | {"by_length": rows, "signatures": self.signatures}


def text_report(
    found: Sequence[str], references: References, lengths: Sequence[int], *, metric: str = "bleu"
) -> TextReport:
    """The report of texts beside their references, whose sources have these lengths. BLEU and chrF are left out where
    sacrebleu is not installed and they do not matter."""
    signatures: dict[str, str] = {}
    wanted = METRICS[metric]
    values: dict[str, float] = {}
    if has_sacrebleu() or wanted in BY_SACREBLEU:
        for name in BY_SACREBLEU:
            values[name], signatures[name] = sacrebleu_score(name, found, references)
    values |= rouge(found, references)
    values |= {"exact": exact_match(found, references), "prefix": right_prefix(found, references)}
    return TextReport(
        metric=wanted,
        values={wanted: values[wanted], **values},
        count=len(found),
        by_length=_by_length(found, references, lengths, wanted),
        signatures=signatures,
    )


def _by_length(found: Sequence[str], references: References, lengths: Sequence[int], metric: str) -> list[LengthScore]:
    rows = []
    least = 0
    for most in (*BOUNDS, None):
        which = [i for i, length in enumerate(lengths) if least <= length and (most is None or length <= most)]
        if which:
            texts, right = [found[i] for i in which], [references[i] for i in which]
            scores = _value(metric, texts, right), exact_match(texts, right), right_prefix(texts, right)
            rows.append(LengthScore(least, most, len(which), *scores))
        least = most + 1 if most is not None else least
    return rows


def _value(metric: str, found: Sequence[str], references: References) -> float:
    if metric in BY_SACREBLEU:
        return sacrebleu_score(metric, found, references)[0]
    return exact_match(found, references) if metric == "exact" else rouge(found, references)[metric]


def has_sacrebleu() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("sacrebleu") is not None


def check_metric(metric: str) -> None:
    """An error where what computes a score is not there."""
    if METRICS[metric] in BY_SACREBLEU and not has_sacrebleu():
        raise SettingError(
            f"metric {metric} needs the sacrebleu package: pip install 'relmo[translate]'; --metric rouge and exact do "
            "without"
        )


def sacrebleu_score(name: str, found: Sequence[str], references: References) -> tuple[float, str]:
    """BLEU or chrF of a corpus, from 0 to 1, and its signature."""
    check_metric(name)
    from sacrebleu.metrics import BLEU, CHRF

    scorer: Any = BLEU() if name == "bleu" else CHRF()
    most = max((len(each) for each in references), default=1)
    columns = [[each[i] if i < len(each) else None for each in references] for i in range(most)]
    score = scorer.corpus_score(list(found), columns).score if found else 0.0
    return score / 100, str(scorer.get_signature()) if found else ""


def exact_match(found: Sequence[str], references: References) -> float:
    """The share of texts that are one of their references."""
    right = sum(text.strip() in [r.strip() for r in each] for text, each in zip(found, references, strict=True))
    return right / max(len(found), 1)


def right_prefix(found: Sequence[str], references: References) -> float:
    """How far texts are right: the mean share of a reference, of several the best, before the first mistake."""
    pairs = zip(found, references, strict=True)
    shares = [
        max((_agreed(text.strip(), r.strip()) / max(len(r), 1) for r in each), default=0.0) for text, each in pairs
    ]
    return sum(shares) / max(len(found), 1)


def _agreed(a: str, b: str) -> int:
    """How many characters both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def rouge(found: Sequence[str], references: References) -> dict[str, float]:
    """The means of ROUGE-1, ROUGE-2 and ROUGE-L."""
    sums = dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)
    for text, right in zip(found, references, strict=True):
        words = rouge_words(text)
        scores = [_rouge_of(words, rouge_words(each)) for each in right]
        for name in sums:
            sums[name] += max((score[name] for score in scores), default=0.0)
    return {name: value / max(len(found), 1) for name, value in sums.items()}


def rouge_words(text: str) -> list[str]:
    """Lower-cased runs of letters and digits."""
    return re.findall(r"[^\W_]+", text.lower())


def _rouge_of(found: list[str], right: list[str]) -> dict[str, float]:
    scores = {}
    for n in (1, 2):
        ours, theirs = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (found, right))
        scores[f"rouge{n}"] = f1_score((ours & theirs).total(), ours.total(), theirs.total())[2]
    scores["rougeL"] = f1_score(common_subsequence(found, right), len(found), len(right))[2]
    return scores


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence.

    L(i, j) = L(i-1, j-1) + 1 where a_i = b_j, otherwise max(L(i-1, j), L(i, j-1))
    """
    above = [0] * (len(b) + 1)
    for word in a:
        row = [0]
        for j, other in enumerate(b, start=1):
            row.append(above[j - 1] + 1 if word == other else max(above[j], row[j - 1]))
        above = row
    return above[-1]
