"""The most frequent words of a text, for `relmo train bilm --vocabulary`: several models then predict the same words.

python recipes/vocabulary.py out/text/pretrain-*.txt --size 50000 --out out/vocabulary.txt

Words are split as relmo splits them, and counted in the text as it is. The sentence marks and <UNK> count towards the
size, as they do in a vocabulary that `relmo train` makes.
"""

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from relmo.disk.outputs import atomic
from relmo.text.tokenize import words
from relmo.text.vocabulary import SentenceVocabulary


def counted(part: Path) -> Counter[str]:
    """How often each word stands in a file."""
    counts: Counter[str] = Counter()
    with part.open(encoding="utf-8") as file:
        for line in file:
            counts.update(words(line))
    return counts


def main() -> None:
    """Counts all files, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--size", type=int, default=50000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    total: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        for counts in pool.map(counted, given.parts):
            total.update(counts)
    symbols = list(total)
    vocabulary = SentenceVocabulary.from_counts(
        symbols, np.array([total[s] for s in symbols]), min_count=1, size=given.size
    )
    with atomic(given.out) as temporary:
        vocabulary.save(temporary)
    known = sum(total[symbol] for symbol in vocabulary.symbols)
    print(f"{len(vocabulary):,} of {len(total):,} words, {known / total.total():.2%} of the text")


if __name__ == "__main__":
    main()
