"""Minimal pairs as sentences in which the subject's number is known, and perhaps that of a noun after it.

    items = number_items(model, read_pairs("nounpp.txt"))
    items.texts[n], items.plural[n], items.attractor[n]

The numbers are the last words of a pair's condition, the subject's first: "nounpp singular plural", "PP", "sg_pl". The
place of a noun is the first at which those in the singular and those in the plural have no word in common.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relmo.analysis.syntax.pair_scores import plan_of
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text.minimal_pairs import MinimalPair

PLURAL = {"singular": False, "plural": True, "sg": False, "pl": True, "sing": False, "plur": True}


@dataclass(frozen=True)
class Items:
    """Sentences of one length up to the verb.

    pairs       those they are of
    texts       what is read before the verb; N of T symbols each
    plural      (N,) whether the subject is
    attractor   (N,) whether the noun after it is; None where there is none
    subject     where the subject stands
    forms       verbs in the singular and in the plural
    left_out    pairs of another length
    """

    pairs: list[MinimalPair]
    texts: list[list[str]]
    plural: np.ndarray
    attractor: np.ndarray | None
    subject: int
    forms: tuple[list[str], list[str]]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def words(self) -> list[str]:
        """Names for the places from the subject on: "subject", "attractor", else the commonest word there, in brackets
        where fewer than half of the sentences have it."""
        columns = list(zip(*self.texts, strict=True))
        most = [Counter(column).most_common(1)[0] for column in columns]
        named = [word if 2 * count > len(self) else f"({word})" for word, count in most]
        named[self.subject] = "subject"
        if self.attractor is not None:
            place = _noun_place([text[self.subject + 1 :] for text in self.texts], self.attractor)
            if place is not None:
                named[self.subject + 1 + place] = "attractor"
        return named[self.subject :]

    @property
    def subjects(self) -> list[str]:
        """The subject of each."""
        return [text[self.subject] for text in self.texts]

    @property
    def tested(self) -> np.ndarray:
        """(N,) those with an attractor of the other number, or all where there is none."""
        return np.ones(len(self), dtype=bool) if self.attractor is None else self.attractor != self.plural

    @property
    def conditions(self) -> list[str]:
        """The conditions of the sentences that are tested, in their order."""
        return list(dict.fromkeys(pair.condition for pair, yes in zip(self.pairs, self.tested, strict=True) if yes))


def number_items(model: LanguageModel | BiLM, pairs: Sequence[MinimalPair], *, subject: int | None = None) -> Items:
    """Pairs of one kind as items; pairs that do not have the commonest length are left out. `subject` is the subject's
    place from 0; where it is not given it is found."""
    if not isinstance(model, BiLM) and model.settings.text.unit == "char":
        raise SettingError("number units are looked for at words; this model reads characters")
    _check_one_kind(pairs)
    numbers = [numbers_of(pair.condition)[1] for pair in pairs]
    plan = plan_of(model, pairs)
    there, first = np.unique(plan.item, return_index=True)  # the first prediction stands after the shared beginning
    before = [list(plan.readings[plan.reading[e]][: plan.place[e]]) for e in first]
    length = Counter(map(len, before)).most_common(1)[0][0]
    kept = [(int(item), text) for item, text in zip(there, before, strict=True) if len(text) == length]
    texts = [text for _, text in kept]
    plural = np.array([numbers[item][0] for item, _ in kept])
    if plural.all() or not plural.any():
        raise CorpusError("all subjects have the same number; give singular and plural subjects")
    place = _noun_place(texts, plural) if subject is None else subject
    if place is None or not 0 <= place < length:
        raise SettingError("the subject's place is not seen from the words; say it, from 0: --subject 1")
    several = all(len(each) > 1 for each in numbers)
    forms = _verb_forms([pairs[item] for item, _ in kept], plural, model)
    return Items(
        [pairs[item] for item, _ in kept],
        texts,
        plural,
        np.array([numbers[item][1] for item, _ in kept]) if several else None,
        place,
        forms,
        len(pairs) - len(kept),
    )


def numbers_of(condition: str) -> tuple[str, tuple[bool, ...]]:
    """What a condition is called without the numbers at its end, and whether each noun is in the plural."""
    words, found = re.split(r"[\s_:,./-]+", condition), list[bool]()
    while words and words[-1].lower() in PLURAL:
        found.insert(0, PLURAL[words.pop().lower()])
    if not found and words and re.fullmatch("[SP]{1,2}", words[-1]):
        found = [letter == "P" for letter in words.pop()]
    return " ".join(words), tuple(found[:2])


def _check_one_kind(pairs: Sequence[MinimalPair]) -> None:
    """Raises where conditions say no numbers, or pairs are of several kinds."""
    conditions = {pair.condition: numbers_of(pair.condition) for pair in pairs}
    for condition, (_, numbers) in conditions.items():
        if not numbers:
            raise CorpusError(
                f"condition {condition!r} does not say the subject's number; let it end in singular or plural, and "
                "then that of the noun after it where there is one: 'nounpp singular plural'"
            )
    kinds = {kind for kind, _ in conditions.values()}
    if len(kinds) > 1 or len({len(numbers) for _, numbers in conditions.values()}) > 1:
        raise CorpusError(
            f"pairs are of several kinds ({', '.join(sorted(kinds))}); give those of one, as nounpp.txt has"
        )


def _noun_place(texts: Sequence[Sequence[str]], plural: np.ndarray) -> int | None:
    """The first place at which texts in the singular and in the plural have no word in common."""
    for place, column in enumerate(zip(*texts, strict=True)):
        sides = [{word for word, yes in zip(column, plural, strict=True) if yes == side} for side in (False, True)]
        if not sides[0] & sides[1]:
            return place
    return None


def _verb_forms(
    pairs: Sequence[MinimalPair], plural: np.ndarray, model: LanguageModel | BiLM
) -> tuple[list[str], list[str]]:
    """The verb forms that are compared, singular and plural ones; without forms that the model does not know, or that
    stand on both sides."""
    sides: tuple[set[str], set[str]] = (set(), set())
    for pair, many in zip(pairs, plural.tolist(), strict=True):
        for text, is_plural in ((pair.good, many), (pair.bad, not many)):
            words = text.split() if isinstance(text, str) else text
            sides[is_plural].add(words[-1])
    assert model.vocabulary is not None
    index = model.vocabulary.index
    singular, many_forms = (sorted(w for w in side - sides[1 - n] if w in index) for n, side in enumerate(sides))
    return singular, many_forms
