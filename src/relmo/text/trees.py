"""Syntactic depth of each word of a sentence, from CoNLL-U and from bracketed trees.

    read_depths("dev.conllu")                 dependencies: words so far with a head or dependent still to come
    read_depths("dev.conllu", "depth")        dependencies: words between a word and the root
    read_depths("trees.txt")                  phrases that are open after a word
    read_depths("trees.txt", "depth")         phrases that contain a word

A bracketed tree is on one line and has any labels: (S (NP (DT The) (NN cat)) (VP sleeps)).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from relmo.errors import CorpusError
from relmo.text.conllu import ConlluWord, read_conllu_sentences
from relmo.text.corpus import is_conllu, numbered_lines
from relmo.text.readers.labelled import TREE, parse_tree

Measure = Literal["open", "depth"]


class DepthSentence(NamedTuple):
    """Words of a sentence, and a number for each."""

    words: list[str]
    values: list[int]


def read_depths(path: str | Path, measure: Measure = "open") -> list[DepthSentence]:
    """Read the sentences of a file with a number for each word."""
    if is_conllu(path):
        count = open_dependencies if measure == "open" else dependency_depths
        return [DepthSentence([w.form for w in words], count(words)) for words in read_conllu_sentences(path)]
    sentences = [phrase_depths(text, place, measure) for text, place in numbered_lines(path, "strict") if text.strip()]
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


def phrase_depths(text: str, place: str, measure: Measure) -> DepthSentence:
    """Measure the depths of a bracketed tree. A phrase is open if it does not end before the next word."""
    words = list(parse_tree(text, place)[-1].words)  # raises if the tree is invalid
    depths, open_phrases, depth = [], [], 0
    for label, word, _ in TREE.findall(text.rstrip()):
        depth += 1 if label else 0 if word else -1
        if word:
            depths.append(depth)
            open_phrases.append(depth)
        elif not label:
            open_phrases[-1] = depth
    return DepthSentence(words, open_phrases if measure == "open" else depths)
