"""How well questions were answered: exact match and F1, as SQuAD's own script has them.

Answers are compared in lower case, without punctuation and without the articles a, an, the. F1 is that of their words;
of several right answers the best counts. A question that has no right answer gives zero points to whatever was said.

    Rajpurkar et al. 2016, SQuAD: 100,000+ questions for machine comprehension of text
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from relmo.tasks.scores import TaskReport, f1_score

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def plain_words(answer: str) -> list[str]:
    """The words of an answer that are compared."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where an answer is one of the right ones, 0 otherwise."""
    return float(plain_words(answer) in map(plain_words, right))


def word_f1(answer: str, right: Sequence[str]) -> float:
    """F1 of an answer's words and those of the right answer that it is closest to."""
    return max((_f1(plain_words(answer), plain_words(each)) for each in right), default=0.0)


def _f1(given: list[str], wanted: list[str]) -> float:
    shared = (Counter(given) & Counter(wanted)).total()
    return f1_score(shared, len(given), len(wanted))[2]


def answer_report(answers: Sequence[str], right: Sequence[Sequence[str]]) -> TaskReport:
    """Exact match and F1 over all questions; where some have no answer (SQuAD 2.0), those of the others as well."""
    f1s = [word_f1(*each) for each in zip(answers, right, strict=True)]
    exact = [exact_match(*each) for each in zip(answers, right, strict=True)]
    values = {"f1": sum(f1s) / max(len(f1s), 1), "exact_match": sum(exact) / max(len(exact), 1)}
    possible = sum(map(bool, right))
    if 0 < possible < len(right):
        values |= {"answerable_f1": sum(f1s) / possible, "answerable_exact_match": sum(exact) / possible}
    return TaskReport("f1", values, len(answers))
