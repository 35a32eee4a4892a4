"""Cost of a lower embedding precision: cosine to float32, and the accuracy of a linear part-of-speech tagger.

    python -m experiments.embedding_precision MODEL TRAIN.conllu DEV.conllu

The tagger is a ridge regression from a word's vectors (all layers side by side) to its universal tag, fitted and
scored with vectors of the same precision.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import relmo
from relmo.text.trees import read_conllu_sentences

RIDGE = 1.0
BLOCK_SENTENCES = 500


def read_tagged(file: Path) -> tuple[list[list[str]], list[str]]:
    """Return the words of each sentence of a CoNLL-U file, and the universal tags of all words."""
    sentences = list(read_conllu_sentences(file))
    return [[word.form for word in sentence] for sentence in sentences], [w.upos for s in sentences for w in s]


def embed_blocks(model: relmo.BiLM, words: list[list[str]]) -> Iterator[np.ndarray]:
    """Yield the vectors of blocks of sentences, layers concatenated; (tokens, layers * dim)."""
    for start in range(0, len(words), BLOCK_SENTENCES):
        arrays = model.embed(words[start : start + BLOCK_SENTENCES])
        yield np.concatenate([array.transpose(1, 0, 2).reshape(array.shape[1], -1) for array in arrays])


def fit(model: relmo.BiLM, words: list[list[str]], labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the regression weights, with a constant, from sums over the whole text."""
    size = len(model.embed([["a"]])[0]) * model.network.size + 1
    squares, products, start = np.zeros((size, size)), np.zeros((size, classes)), 0
    for x in embed_blocks(model, words):
        x = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
        squares += x.T @ x
        products += x.T @ np.eye(classes)[labels[start : start + len(x)]]
        start += len(x)
    return np.linalg.solve(squares + RIDGE * np.eye(size), products)


def main() -> None:
    """Print one line per precision."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # about truncated words, in every block
    (train, train_tags), (dev, dev_tags) = read_tagged(arguments.train), read_tagged(arguments.dev)
    tags = sorted(set(train_tags))
    index = {tag: i for i, tag in enumerate(tags)}
    train_labels, dev_labels = (np.array([index.get(tag, -1) for tag in part]) for part in (train_tags, dev_tags))
    reference: np.ndarray | None = None
    print("precision   mean cosine   smallest   tagging accuracy")
    for precision in ("float32", "bfloat16", "int8"):
        model = relmo.load(arguments.model, device="cpu", dtype=precision)
        weights = fit(model, train, train_labels, len(tags))
        x = np.concatenate(list(embed_blocks(model, dev)))
        accuracy = ((np.column_stack([x, np.ones(len(x))]) @ weights).argmax(axis=1) == dev_labels).mean()
        reference = x if reference is None else reference
        cosine = (x * reference).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(reference, axis=1)
        print(f"{precision:<12}{cosine.mean():<14.6f}{cosine.min():<11.6f}{100 * accuracy:.2f}", flush=True)


if __name__ == "__main__":
    main()
