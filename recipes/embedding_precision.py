"""What a lower precision of embedding costs: cosine to float32, and the accuracy of a linear part-of-speech tagger.

python recipes/embedding_precision.py MODEL TRAIN.conllu DEV.conllu

The tagger is a ridge regression from a word's vectors (all layers side by side) to its universal tag, fitted and
scored with vectors of the same precision.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import relmo
from relmo.text.conllu import read_conllu_sentences

RIDGE = 1.0
AT_ONCE = 500  # sentences


def read(file: Path) -> tuple[list[list[str]], list[str]]:
    """The words of each sentence of a CoNLL-U file, and the universal tags of all words."""
    sentences = list(read_conllu_sentences(file))
    return [[word.form for word in sentence] for sentence in sentences], [w.upos for each in sentences for w in each]


def vectors(model: relmo.BiLM, words: list[list[str]]) -> Iterator[np.ndarray]:
    """The vectors of all words of some sentences at a time, layers side by side; (tokens, layers * dim)."""
    for start in range(0, len(words), AT_ONCE):
        found = model.embed(words[start : start + AT_ONCE])
        yield np.concatenate([array.transpose(1, 0, 2).reshape(array.shape[1], -1) for array in found])


def fit(model: relmo.BiLM, words: list[list[str]], labels: np.ndarray, classes: int) -> np.ndarray:
    """The regression's weights, constant included, from sums over all of the text."""
    size = len(model.embed([["a"]])[0]) * model.network.size + 1
    squares, products, at = np.zeros((size, size)), np.zeros((size, classes)), 0
    for x in vectors(model, words):
        x = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
        squares += x.T @ x
        products += x.T @ np.eye(classes)[labels[at : at + len(x)]]
        at += len(x)
    return np.linalg.solve(squares + RIDGE * np.eye(size), products)


def main() -> None:
    """Prints a line for each precision."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of words that are cut, in every piece
    (train, train_tags), (dev, dev_tags) = read(given.train), read(given.dev)
    tags = sorted(set(train_tags))
    number = {tag: i for i, tag in enumerate(tags)}
    known, wanted = (np.array([number.get(tag, -1) for tag in part]) for part in (train_tags, dev_tags))
    exact: np.ndarray | None = None
    print("precision   mean cosine   smallest   tagging accuracy")
    for precision in ("float32", "bfloat16", "int8"):
        model = relmo.load(given.model, device="cpu", dtype=precision)
        weights = fit(model, train, known, len(tags))
        x = np.concatenate(list(vectors(model, dev)))
        right = ((np.column_stack([x, np.ones(len(x))]) @ weights).argmax(axis=1) == wanted).mean()
        exact = x if exact is None else exact
        cosine = (x * exact).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(exact, axis=1)
        print(f"{precision:<12}{cosine.mean():<14.6f}{cosine.min():<11.6f}{100 * right:.2f}", flush=True)


if __name__ == "__main__":
    main()
