"""Writes the words that a bidirectional model is to predict, one a line, the most frequent of some text first.

python recipes/vocabulary.py out/text/pretrain-*.txt --size 50000 --out out/vocabulary.txt

`relmo train bilm` makes its own where none is given. Here it is that of the text before some lines were typed anew: no
place in it goes to a word in another case.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from relmo.settings.bilm import BiLMTextSettings
from relmo.text.sentences import read_sentence_words
from relmo.text.vocabulary import SentenceVocabulary


def count(part: Path) -> Counter[str]:
    """How often each word stands in a file."""
    return Counter(word for _, words in read_sentence_words(str(part), BiLMTextSettings()) for word in words)


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts the files, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        for own in pool.map(count, given.parts):
            counts.update(own)
    vocabulary = SentenceVocabulary.from_counts(
        list(counts), np.array(list(counts.values())), min_count=1, size=given.size
    )
    vocabulary.save(given.out)


if __name__ == "__main__":
    main()
