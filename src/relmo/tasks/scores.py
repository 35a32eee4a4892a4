"""Scores of predictions: labels, tags, spans, semantic roles, numbers, answers, generated texts and coreference.

    accuracy, per-label precision, recall and F1, confusion matrix, Matthews correlation        as in scikit-learn
    F1 of spans with exact boundaries and type, over all sentences                              as in seqeval, conlleval
    F1 of semantic roles                                                                        as in srl-eval.pl
    Pearson's and Spearman's correlation                                                        as in scipy
    exact match and F1 of answers (Rajpurkar et al. 2016)                                       as in SQuAD's script
    BLEU and chrF of texts (Post 2018; Popović 2015)                                            by sacreBLEU
    ROUGE (Lin 2004)                                                                            without stemming
    MUC, B³, CEAF-φ4 of coreference clusters and the mean of their F1 (Pradhan et al. 2014)     as in CoNLL-2012

All scores are fractions between 0 and 1: BLEU 38.2 is 0.382. Those of coreference compare the gold clusters K with the
predicted ones R; a cluster is a set of mentions, and no mention is in two of them.

    MUC        recall = Σ_k (|k| - |p(k)|) / Σ_k (|k| - 1)          p(k): the parts into which R divides k
    B³         recall = Σ_k Σ_r |k ∩ r|² / |k|  /  Σ_k |k|
    CEAF-φ4    recall = Σ φ4(k, g(k)) / |K|                         g: the best alignment of clusters
               φ4(k, r) = 2 |k ∩ r| / (|k| + |r|)

Precision is recall with K and R exchanged. Over several documents, numerators and denominators are summed first.
Singletons count in B³ and CEAF, and not in MUC.
"""

import importlib.util
import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np

from relmo.errors import SettingError
from relmo.text.readers.roles import VERB
from relmo.text.readers.tagged import spans

CONTINUATION = "C-"  # prefix of roles
NO_ROLE = "none"
SACREBLEU_METRICS, TEXT_SCORES = ("bleu", "chrf"), ("rouge1", "rouge2", "rougeL", "exact", "prefix")
HAS_SACREBLEU = importlib.util.find_spec("sacrebleu") is not None
METRICS = {"bleu": "bleu", "chrf": "chrf", "rouge": "rougeL", "exact": "exact"}  # of texts: in settings, in reports
LENGTH_BOUNDS = (5, 10, 15, 20, 30, 40, 60, 100, 200)  # maximum source length of each group, in units
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WORDS = re.compile(r"[^\W_]+")  # of ROUGE: runs of letters and digits

References = Sequence[Sequence[str]]
Clusters = Sequence[Sequence[Hashable]]


class LabelScore(NamedTuple):
    """Scores of one label; `support` is its number of occurrences."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Confusion:
    """Confusion matrix: counts[i][j] is how often labels[i] was predicted as labels[j]."""

    labels: list[str]
    counts: list[list[int]]

    @classmethod
    def from_pairs(cls, counts: Counter[tuple[str, str]], *, last: str | None = None) -> "Confusion":
        """Build the matrix from counts of (gold, predicted); labels in alphabetical order, then `last` if given."""
        labels = sorted({label for pair in counts for label in pair} - {last}) + ([] if last is None else [last])
        return cls(labels, [[counts[gold, predicted] for predicted in labels] for gold in labels])


@dataclass(frozen=True)
class TaskReport:
    """Scores of the predictions of a task."""

    metric: str  # name of the score that models are selected by; larger is better
    values: dict[str, float]  # all scores by name
    count: int  # number of predictions
    labels: list[LabelScore] = field(default_factory=list)  # scores of each label, or of each type of span
    confusion: Confusion | None = None  # of the labels

    @property
    def score(self) -> float:
        """Value of the metric."""
        return self.values[self.metric]

    def summary(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        confusion = None if self.confusion is None else asdict(self.confusion)
        labels = [label._asdict() for label in self.labels]
        return {"metric": self.metric, **self.values, "count": self.count, "labels": labels, "confusion": confusion}


def f1_score(correct: int, predicted: int, gold: int) -> tuple[float, float, float]:
    """Return precision, recall and F1 of these counts; 0 where a denominator is 0."""
    precision, recall = correct / max(predicted, 1), correct / max(gold, 1)
    return precision, recall, 2 * correct / max(predicted + gold, 1)


def score_labels(correct: Counter[str], predicted: Counter[str], gold: Counter[str]) -> list[LabelScore]:
    """Return the scores of each label by its counts, in alphabetical order."""
    return [
        LabelScore(label, *f1_score(correct[label], predicted[label], gold[label]), gold[label])
        for label in sorted(gold | predicted)
    ]


def class_report(gold: Sequence[str], predicted: Sequence[str], *, metric: str = "accuracy") -> TaskReport:
    """Score one label per example or word: accuracy, macro F1, Matthews correlation, and each label."""
    correct = Counter(g for g, p in zip(gold, predicted, strict=True) if g == p)
    labels = score_labels(correct, Counter(predicted), Counter(gold))
    confusion = Confusion.from_pairs(Counter(zip(gold, predicted, strict=True)))
    counts = np.array(confusion.counts)
    # Matthews correlation of a confusion matrix (K, K) (Gorodkin 2004); 0 if either side is constant
    n, row_sums, column_sums = counts.sum(), counts.sum(axis=1).astype(float), counts.sum(axis=0).astype(float)
    variance = float((n**2 - row_sums @ row_sums) * (n**2 - column_sums @ column_sums))
    covariance = float(np.trace(counts) * n - row_sums @ column_sums)
    values = {
        "accuracy": correct.total() / max(len(gold), 1),
        "macro_f1": sum(label.f1 for label in labels) / max(len(labels), 1),
        "matthews": covariance / variance**0.5 if variance > 0 else 0.0,
    }
    return TaskReport(metric, values, len(gold), labels, confusion)


def span_report(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TaskReport:
    """Score the spans of tagged sentences: F1 over all spans, and each type; the confusion matrix is that of tags."""
    gold_spans, predicted_spans = (
        {(i, span) for i, tags in enumerate(sentences) for span in spans(tags)} for sentences in (gold, predicted)
    )
    correct = gold_spans & predicted_spans
    counts = [Counter(span.label for _, span in group) for group in (correct, predicted_spans, gold_spans)]
    gold_tags, predicted_tags = ([tag for tags in sentences for tag in tags] for sentences in (gold, predicted))
    tag_pairs = Counter(zip(gold_tags, predicted_tags, strict=True))
    num_correct_tags = sum(count for (tag, predicted_tag), count in tag_pairs.items() if tag == predicted_tag)
    values = _score_sets(gold_spans, predicted_spans) | {"accuracy": num_correct_tags / max(len(gold_tags), 1)}
    return TaskReport("f1", values, len(gold_spans), score_labels(*counts), Confusion.from_pairs(tag_pairs))


def _score_sets(gold: Set[Any], predicted: Set[Any]) -> dict[str, float]:
    precision, recall, f1 = f1_score(len(gold & predicted), len(predicted), len(gold))
    return {"f1": f1, "precision": precision, "recall": recall}


def number_report(gold: Sequence[float], predicted: Sequence[float]) -> TaskReport:
    """Score numbers: Pearson's and Spearman's correlation, and the mean squared error."""
    x, y = np.asarray(gold, dtype=float), np.asarray(predicted, dtype=float)
    ranks = []
    for side in (x, y):  # from 1; ties share their mean rank
        _, inverse, counts = np.unique(side, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    values = {
        "pearson": pearson(x, y),
        "spearman": pearson(*ranks),
        "squared_error": float(np.square(x - y).mean()) if len(x) else 0.0,
    }
    return TaskReport("pearson", values, len(x))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the linear correlation; 0 if either side is constant."""
    dx, dy = x - x.mean(), y - y.mean()
    norm = float(np.linalg.norm(dx) * np.linalg.norm(dy))
    return float(dx @ dy) / norm if norm > 0 else 0.0


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (n - 1) of the scores of several runs; 0 for a single run."""
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def normalize_answer(answer: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and the articles a, an, the."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def answer_report(answers: Sequence[str], references: References) -> TaskReport:
    """Score answers by exact match and word F1 against the closest reference; also over answerable questions alone."""
    f1, exact = 0.0, 0
    for answer, texts in zip(answers, references, strict=True):
        words, gold = normalize_answer(answer), [normalize_answer(text) for text in texts]
        shared = ((Counter(words) & Counter(reference)).total() for reference in gold)
        f1 += max((f1_score(n, len(words), len(ref))[2] for n, ref in zip(shared, gold, strict=True)), default=0.0)
        exact += words in gold
    count, num_answerable = max(len(answers), 1), sum(map(bool, references))
    values = {"f1": f1 / count, "exact_match": exact / count}
    if 0 < num_answerable < len(references):
        values |= {"answerable_f1": f1 / num_answerable, "answerable_exact_match": exact / num_answerable}
    return TaskReport("f1", values, len(answers))


class Argument(NamedTuple):
    """Label of a role and the spans of words that fill it."""

    label: str
    parts: tuple[tuple[int, int], ...]


class PredicateTags(NamedTuple):
    """Tags for the predicate at `place` in a sentence, and whether it is a verb."""

    sentence: int
    place: int
    tags: Sequence[str]
    verb: bool | None = None


def find_arguments(tags: Sequence[str]) -> list[Argument]:
    """Return the arguments that BIO tags mark, without V, in the order in which they begin.

    C-X continues the last X before it: both are one argument. Without an X before it, C-X is an X. C-V is a part of V.
    R-X is a label of its own.
    """
    arguments: list[Argument] = []
    index_by_label: dict[str, int] = {}
    for start, end, tag_label in spans(tags):
        label = tag_label.removeprefix(CONTINUATION)
        if label == tag_label or label not in index_by_label:
            index_by_label[label] = len(arguments)
            arguments.append(Argument(label, ()))
        i = index_by_label[label]
        arguments[i] = Argument(label, (*arguments[i].parts, (start, end)))
    return [argument for argument in arguments if argument.label != VERB]


def role_report(
    gold: Sequence[PredicateTags], predicted: Sequence[PredicateTags], detected: Sequence[PredicateTags] | None
) -> TaskReport:
    """Score the roles that were predicted for the gold predicates and, unless None, for the detected predicates.

    f1, precision, recall       roles of the gold predicates
    verb_f1, …                  roles of verbs alone, if the files tell which predicates are verbs
    found_f1                    roles of the detected predicates
    predicate_f1                the detected predicates themselves

    Arguments are counted as by the CoNLL-2005 script srl-eval.pl: one is correct if its label and all its words are;
    the predicate itself, V, is not counted. Stricter than the script, arguments of a wrongly detected predicate count
    as errors; the script ignores them.

        Carreras & Marquez 2005, Introduction to the CoNLL-2005 shared task: semantic role labeling
    """
    gold_roles, roles, detected_roles = (
        {(sentence, place, role) for sentence, place, tags, _ in group for role in find_arguments(tags)}
        for group in (gold, predicted, detected or ())
    )
    values = _score_sets(gold_roles, roles)
    if any(predicate.verb is not None for predicate in gold):
        verbs = {(predicate.sentence, predicate.place) for predicate in gold if predicate.verb}
        gold_verbs, verb_roles = ({role for role in group if role[:2] in verbs} for group in (gold_roles, roles))
        values |= {f"verb_{name}": value for name, value in _score_sets(gold_verbs, verb_roles).items()}
    if detected is not None:
        values["found_f1"] = _score_sets(gold_roles, detected_roles)["f1"]
        gold_places, places = ({predicate[:2] for predicate in group} for group in (gold, detected))
        values["predicate_f1"] = _score_sets(gold_places, places)["f1"]
    groups = gold_roles & roles, roles, gold_roles
    labels = score_labels(*(Counter(role.label for *_, role in group) for group in groups))
    # which role was predicted for which over the same words; missing and spurious arguments pair with none
    gold_labels, role_labels = (
        {(sentence, place, role.parts): role.label for sentence, place, role in group} for group in (gold_roles, roles)
    )
    words = gold_labels.keys() | role_labels.keys()
    counts = Counter((gold_labels.get(key, NO_ROLE), role_labels.get(key, NO_ROLE)) for key in words)
    return TaskReport("f1", values, len(gold_roles), labels, Confusion.from_pairs(counts, last=NO_ROLE))


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
    """Report on generated texts."""

    by_length: list[LengthScore] = field(default_factory=list)  # scores by source length, the shortest first
    signatures: dict[str, str] = field(default_factory=dict)  # sacreBLEU's description of how each score was computed

    def summary(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        rows = [row._asdict() for row in self.by_length]
        return super().summary() | {"by_length": rows, "signatures": self.signatures}


def text_report(
    texts: Sequence[str], references: References, lengths: Sequence[int], *, metric: str = "bleu"
) -> TextReport:
    """Score texts by BLEU and chrF (optional without sacrebleu) and means of `score_text`, also by source length."""
    name = METRICS[metric]
    values: dict[str, float] = {}
    signatures: dict[str, str] = {}
    if name in SACREBLEU_METRICS or HAS_SACREBLEU:
        for score_name in SACREBLEU_METRICS:
            values[score_name], signatures[score_name] = sacrebleu_score(score_name, texts, references)
    scores = [score_text(text, group) for text, group in zip(texts, references, strict=True)]
    values |= _mean_scores(scores)
    rows, least = [], 0
    for most in (*LENGTH_BOUNDS, None):
        indices = [i for i, length in enumerate(lengths) if least <= length and (most is None or length <= most)]
        if indices:
            means = _mean_scores([scores[i] for i in indices])
            if name in SACREBLEU_METRICS:
                means[name], _ = sacrebleu_score(name, [texts[i] for i in indices], [references[i] for i in indices])
            rows.append(LengthScore(least, most, len(indices), means[name], means["exact"], means["prefix"]))
        least = most + 1 if most is not None else least
    values = {name: values[name], **values}
    return TextReport(metric=name, values=values, count=len(texts), by_length=rows, signatures=signatures)


def _mean_scores(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(values[name] for values in scores) / max(len(scores), 1) for name in TEXT_SCORES}


def score_text(text: str, references: Sequence[str]) -> dict[str, float]:
    """Return the scores of a text against its best reference.

    rouge1, rouge2   F1 of the words, and of the word bigrams, that they share
    rougeL           F1 of their longest common subsequence. Words are lower-cased runs of letters and digits
    exact            1 if the text equals a reference, apart from surrounding whitespace, otherwise 0
    prefix           fraction of the reference's characters that are correct before the first error
    """
    best = dict.fromkeys(TEXT_SCORES, 0.0)
    words = _WORDS.findall(text.lower())
    for reference in references:
        reference_words = _WORDS.findall(reference.lower())
        # length of the longest common subsequence of a and b:
        # L(i, j) = L(i-1, j-1) + 1 if a_i = b_j, otherwise max(L(i-1, j), L(i, j-1))
        lengths = [0] * (len(reference_words) + 1)
        for word in words:
            row = [0]
            for j, reference_word in enumerate(reference_words, start=1):
                row.append(lengths[j - 1] + 1 if word == reference_word else max(lengths[j], row[j - 1]))
            lengths = row
        pairs = zip(text.strip(), reference.strip(), strict=False)
        num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        scores = {
            "rougeL": f1_score(lengths[-1], len(words), len(reference_words))[2],
            "exact": float(text.strip() == reference.strip()),
            "prefix": num_equal / max(len(reference), 1),
        }
        for n in (1, 2):
            ngrams, reference_ngrams = (
                Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in (words, reference_words)
            )
            num_shared = (ngrams & reference_ngrams).total()
            scores[f"rouge{n}"] = f1_score(num_shared, ngrams.total(), reference_ngrams.total())[2]
        best = {name: max(best[name], scores[name]) for name in best}
    return best


def check_metric(metric: str) -> None:
    """Raise `SettingError` if the package that computes a metric is not installed."""
    if METRICS[metric] in SACREBLEU_METRICS and not HAS_SACREBLEU:
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


class Fractions(NamedTuple):
    """Numerator and denominator of recall and of precision."""

    recalled: float
    gold: float
    correct: float
    predicted: float

    def divide(self) -> tuple[float, float, float]:
        """Return precision, recall and F1; 0 where a denominator is 0."""
        precision = self.correct / self.predicted if self.predicted else 0.0
        recall = self.recalled / self.gold if self.gold else 0.0
        return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def muc(key: Clusters, response: Clusters) -> Fractions:
    """Return the fractions of links; a mention that is in no cluster of the response is a part of its own."""
    fractions: list[float] = []
    for clusters, others in ((key, response), (response, key)):
        index = _index_mentions(others)
        num_links = sum(len(set(k)) - len({index.get(mention, ("alone", mention)) for mention in k}) for k in clusters)
        fractions += [num_links, sum(len(set(k)) - 1 for k in clusters)]
    return Fractions(*fractions)


def b_cubed(key: Clusters, response: Clusters) -> Fractions:
    """Return the fractions of each mention's cluster that key and response share."""
    fractions: list[float] = []
    for clusters, others in ((key, response), (response, key)):
        index, total = _index_mentions(others), 0.0
        for k in clusters:
            overlaps = Counter(index[mention] for mention in k if mention in index)
            total += sum(count**2 for count in overlaps.values()) / len(k)
        fractions += [total, sum(map(len, clusters))]
    return Fractions(*fractions)


def ceaf(key: Clusters, response: Clusters) -> Fractions:
    """Return the sums of φ4 over the best alignment of clusters."""
    index = _index_mentions(response)
    phi = np.zeros((len(key), len(response)))
    for i, k in enumerate(key):
        for j, overlap in Counter(index[mention] for mention in k if mention in index).items():
            phi[i, j] = 2 * overlap / (len(k) + len(response[j]))
    best = float(sum(phi[i, j] for i, j in best_pairs(phi)))
    return Fractions(best, len(key), best, len(response))


def mentions(key: Clusters, response: Clusters) -> Fractions:
    """Return the fractions of mentions that are in any cluster."""
    gold, predicted = _index_mentions(key).keys(), _index_mentions(response).keys()
    num_shared = len(gold & predicted)
    return Fractions(num_shared, len(gold), num_shared, len(predicted))


def _index_mentions(clusters: Clusters) -> dict[Hashable, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def best_pairs(values: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs (row, column), each row and column at most once, whose values (N, M) have the largest sum.

    The Hungarian algorithm, one row at a time: the shortest path from the new row through the pairs so far to a free
    column, under costs that a price u of each row and v of each column keeps non-negative (Jonker & Volgenant 1987).
    """
    if values.shape[0] > values.shape[1]:
        return [(i, j) for j, i in best_pairs(values.T)]
    count, columns = values.shape
    u, v = np.zeros(count), np.zeros(columns + 1)
    owner = np.full(columns + 1, -1)  # row of each column; the last column stands for the new row
    for row in range(count):
        owner[columns] = row
        column, visited = columns, np.zeros(columns + 1, dtype=bool)
        least, previous = np.full(columns, np.inf), np.zeros(columns, dtype=int)
        while owner[column] >= 0:
            visited[column] = True
            i = owner[column]
            costs = -values[i] - u[i] - v[:columns]
            nearer = (costs < least) & ~visited[:columns]
            least[nearer], previous[nearer] = costs[nearer], column
            column = int(np.where(visited[:columns], np.inf, least).argmin())
            step = least[column]
            u[owner[visited]] += step
            v[visited] -= step
            least[~visited[:columns]] -= step
        while column != columns:
            owner[column], column = owner[previous[column]], previous[column]
    return [(int(row), j) for j, row in enumerate(owner[:columns]) if row >= 0]


MEASURES = {"muc": muc, "b3": b_cubed, "ceaf": ceaf, "mentions": mentions}
AVERAGED = ("muc", "b3", "ceaf")


def coref_report(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> TaskReport:
    """Score the clusters of documents: the mean F1 of the three measures, with and without singletons, and each F1."""
    sums, averages = {}, []
    for min_size in (2, 0):  # without singletons, and then with them
        sums = dict.fromkeys(MEASURES, Fractions(0, 0, 0, 0))
        for document in zip(gold, predicted, strict=True):
            key, response = ([cluster for cluster in clusters if len(cluster) >= min_size] for clusters in document)
            for name, measure in MEASURES.items():
                fractions = zip(sums[name], measure(key, response), strict=True)
                sums[name] = Fractions(*(a + b for a, b in fractions))
        averages.append(sum(sums[name].divide()[2] for name in AVERAGED) / len(AVERAGED))
    labels = [LabelScore(name, *fractions.divide(), round(fractions.gold)) for name, fractions in sums.items()]
    values = {"average_f1": averages[1]} | {f"{label.label}_f1": label.f1 for label in labels}
    values["average_f1_no_singletons"] = averages[0]
    return TaskReport("average_f1", values, sum(len(cluster) for clusters in gold for cluster in clusters), labels)
