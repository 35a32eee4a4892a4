"""How deep in its tree each word of a sentence stands, from CoNLL-U and from trees in brackets.

    read_depths("dev.conllu")                 dependencies: words read whose head, or a dependent, is still to come
    read_depths("dev.conllu", "depth")        dependencies: words between a word and the root
    read_depths("trees.txt")                  phrases that are open after a word
    read_depths("trees.txt", "depth")         phrases around a word

A tree in brackets stands on one line and has any labels: (S (NP (DT The) (NN cat)) (VP sleeps)).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.errors import CorpusError
from relmo.text.conllu import ConlluWord, read_conllu_sentences
from relmo.text.corpus import is_conllu
from relmo.text.readers.labelled import TREE, parse_tree
from relmo.text.readers.lines import whole_lines

Measure = Literal["open", "depth"]


class DepthSentence(NamedTuple):
    """The words of a sentence, and a number for each."""

    words: list[str]
    values: list[int]


def read_depths(path: str | Path, measure: Measure = "open") -> list[DepthSentence]:
    """The sentences of a file with a number for each word."""
    if is_conllu(path):
        count = open_dependencies if measure == "open" else dependency_depths
        return [DepthSentence([w.form for w in words], count(words)) for words in read_conllu_sentences(path)]
    found = [phrase_depths(text, place, measure) for text, place in whole_lines(path, "strict") if text.strip()]
    if not found:
        raise CorpusError(f"{path}: has no trees")
    return found


def dependency_depths(words: Sequence[ConlluWord]) -> list[int]:
    """Words between each word of a sentence and the root, whose depth is 0."""
    found = []
    for word in words:
        steps, head = 0, word.head
        while head and steps <= len(words):
            steps, head = steps + 1, words[head - 1].head if head <= len(words) else 0
        found.append(steps)
    return found


def open_dependencies(words: Sequence[ConlluWord]) -> list[int]:
    """After each word of a sentence, the words read whose head, or a dependent, is still to come."""
    reach = [max(place, (word.head or 0) - 1) for place, word in enumerate(words)]
    for place, word in enumerate(words):
        if word.head and word.head <= len(words):
            reach[word.head - 1] = max(reach[word.head - 1], place)
    return [sum(far > place for far in reach[: place + 1]) for place in range(len(words))]


def phrase_depths(text: str, place: str, measure: Measure) -> DepthSentence:
    """The sentence of a tree in brackets. A phrase is open if it has begun and does not end before the next word."""
    words = list(parse_tree(text, place)[-1].words)  # which raises where the tree is broken
    around, after, depth = [], [], 0
    for label, word, _ in TREE.findall(text.rstrip()):
        depth += 1 if label else 0 if word else -1
        if word:
            around.append(depth)
            after.append(depth)
        elif not label:
            after[-1] = depth
    return DepthSentence(words, after if measure == "open" else around)
