"""Sentences of CoNLL-U with all columns, and the syntactic depth of words, from CoNLL-U and from bracketed trees."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.errors import CorpusError, quote
from relmo.text.corpus import EMPTY_FORM, MAX_DIGITS, conllu_rows, is_conllu, numbered_lines, require
from relmo.text.readers.labelled import TREE, parse_tree


class ConlluWord(NamedTuple):
    """Word of a sentence. `head` is the number of its head from 1, 0 for the root, None for `_`."""

    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: int | None
    deprel: str
    deps: str
    misc: str

    def value(self, column: str) -> str:
        """Return the value of a column or of a part of one (upos, feats.Number, misc.SpaceAfter); "" if it has none."""
        name, _, key = column.partition(".")
        field = getattr(self, name)
        if not key:
            return "" if field is None else str(field)
        pairs = (part.partition("=") for part in str(field).split("|"))
        return next((value for part_key, _, value in pairs if part_key == key), "")


class DepthSentence(NamedTuple):
    """Words of a sentence, and a number for each."""

    words: list[str]
    values: list[int]


def read_conllu_sentences(path: str | Path) -> Iterator[list[ConlluWord]]:
    """Yield sentences with all columns of their words, without ranges (3-4) and empty nodes (5.1)."""
    for rows, _ in conllu_rows(path, "strict"):
        sentence = []
        for (number, form, lemma, upos, xpos, feats, head, *columns), place in rows:
            if not number.isdecimal():
                continue
            require(form, place, EMPTY_FORM)
            if not (head == "_" or (head.isdecimal() and len(head) <= MAX_DIGITS)):
                raise CorpusError(f"{place}: the HEAD, the seventh column, is {quote(head)}; it must be a number or _")
            head_number = None if head == "_" else int(head)
            sentence.append(ConlluWord(form, lemma, upos, xpos, feats, head_number, *columns))
        if sentence:
            yield sentence


def read_depths(path: str | Path, measure: Literal["open", "depth"] = "open") -> list[DepthSentence]:
    """Read sentences with a number for each word. CoNLL-U: words so far with a head or dependent still to come, or the
    depth below the root. Bracketed trees, one per line: phrases that are open after a word, or that contain it."""
    if is_conllu(path):
        count = open_dependencies if measure == "open" else dependency_depths
        return [DepthSentence([w.form for w in words], count(words)) for words in read_conllu_sentences(path)]
    sentences = []
    for text, place in numbered_lines(path, blank=False):
        words = list(parse_tree(text, place)[-1].words)  # raises if the tree is invalid
        depths, open_phrases, depth = [], [], 0
        for label, word, _ in TREE.findall(text.rstrip()):
            depth += 1 if label else 0 if word else -1
            if word:
                depths.append(depth)
                open_phrases.append(depth)
            elif not label:
                open_phrases[-1] = depth
        sentences.append(DepthSentence(words, open_phrases if measure == "open" else depths))
    if not sentences:
        raise CorpusError(f"{path}: has no trees")
    return sentences


def dependency_depths(words: Sequence[ConlluWord]) -> list[int]:
    """Return the number of words between each word of a sentence and the root, whose depth is 0."""
    depths = []
    for word in words:
        steps, head = 0, word.head
        while head and steps <= len(words):
            steps, head = steps + 1, words[head - 1].head if head <= len(words) else 0
        depths.append(steps)
    return depths


def open_dependencies(words: Sequence[ConlluWord]) -> list[int]:
    """Return, after each word of a sentence, the number of words with a head or dependent still to come."""
    reach = [max(place, (word.head or 0) - 1) for place, word in enumerate(words)]
    for place, word in enumerate(words):
        if word.head and word.head <= len(words):
            reach[word.head - 1] = max(reach[word.head - 1], place)
    return [sum(end > place for end in reach[: place + 1]) for place in range(len(words))]
