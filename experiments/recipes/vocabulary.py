"""Vocabulary of the most frequent words of a text, for `relmo train bilm --vocabulary` of several models.

    python -m experiments.recipes.vocabulary out/text/pretrain-*.txt --size 50000 --out out/vocabulary.txt

Words are split by relmo's tokenizer, without a change of case. The sentence marks and <UNK> count towards the size, as
in a vocabulary of `relmo train`.
"""

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from relmo.disk.outputs import atomic
from relmo.text.tokenize import words
from relmo.text.vocabulary import SentenceVocabulary


def count_words(part: Path) -> Counter[str]:
    """Return the number of occurrences of each word of a file."""
    counts: Counter[str] = Counter()
    with part.open(encoding="utf-8") as file:
        for line in file:
            counts.update(words(line))
    return counts


def main() -> None:
    """Count all files in parallel processes and write the vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--size", type=int, default=50000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        for counts in pool.map(count_words, arguments.parts):
            total.update(counts)
    symbols = list(total)
    vocabulary = SentenceVocabulary.from_counts(
        symbols, np.array([total[s] for s in symbols]), min_count=1, size=arguments.size
    )
    with atomic(arguments.out) as temporary:
        vocabulary.save(temporary)
    num_covered = sum(total[symbol] for symbol in vocabulary.symbols)
    print(f"{len(vocabulary):,} of {len(total):,} words, {num_covered / total.total():.2%} of the text")


if __name__ == "__main__":
    main()
