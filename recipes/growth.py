"""Draws how the cost of a token grows: with the length of its sentence, with how many sentences are read side by side,
and with how many different words there are. One curve is relmo's, in float32 and with all words new; the other is that
of the textbook loop.

    python recipes/growth.py growth.png [--geometry small] [--device cpu]

Sentences are made of the words of alice.txt. All have the same length, so that sorting helps nobody.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.bench.clock import Case, measure
from relmo.bench.embedding import EmbeddingBench, vectors
from relmo.bench.machine import Calibration, describe
from relmo.bench.table import GEOMETRIES, read_text
from relmo.config import build, read_preset
from relmo.settings.bilm import BiLMSettings

LENGTHS = (1, 2, 5, 10, 20, 40, 80)  # of 16 sentences
BATCHES = (1, 2, 4, 8, 16, 32)  # out of 32
VOCABULARIES = (10, 30, 100, 300, 1000)  # in 50
SENTENCES = {"length": 16, "batch": 32, "vocabulary": 50}
LENGTH, WORDS = 20, 200  # what stays as it is while another one grows
ROUNDS = 2
PANELS = {
    "length": "words in a sentence",
    "batch": "sentences side by side",
    "vocabulary": "different words in the text",
}


def growth(settings: BiLMSettings, words: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Microseconds a token, by panel: a list of [size, relmo's, the textbook's]."""
    found: dict[str, Any] = {}
    calibration = Calibration(device)
    for panel, sizes in (("length", LENGTHS), ("batch", BATCHES), ("vocabulary", VOCABULARIES)):
        found[panel] = []
        for size in sizes:
            at = {"length": LENGTH, "batch": SENTENCES[panel], "vocabulary": WORDS} | {panel: size}
            text = made_of(words, SENTENCES[panel], at["length"], at["vocabulary"])
            cases = growth_cases(settings, text, at["batch"], device)
            timed = measure(cases, rounds=ROUNDS, device=device, calibration=calibration)
            found[panel].append([size, *(1e6 / entry.rate for entry in timed)])
            print(f"{PANELS[panel]}: {size:>5}  microseconds a token: {found[panel][-1][1:]}", flush=True)
    return found


def made_of(words: Sequence[str], count: int, length: int, vocabulary: int) -> list[list[str]]:
    """So many sentences of this length from the first words of the vocabulary, each of them there if there is room."""
    generator = np.random.default_rng(0)
    places = generator.permutation(np.arange(count * length) % min(vocabulary, len(words)))
    return [[words[i] for i in row] for row in places.reshape(count, length)]


def growth_cases(settings: BiLMSettings, sentences: list[list[str]], batch: int, device: torch.device) -> list[Case]:
    """relmo and the textbook loop, `batch` sentences side by side."""
    bench = EmbeddingBench(settings, sentences, device=device, peer="float32", precisions=["float32"])
    columns = settings.model.max_characters

    def relmo() -> object:
        return bench.models["float32"].embed(sentences, batch_size=batch)

    def textbook(count: int = len(sentences)) -> object:
        return vectors(bench.textbook, sentences[:count], columns, device, batch=batch)

    return [
        Case("relmo", bench.tokens, relmo, prepare=lambda: bench.renew("float32")),
        Case("textbook loop", bench.tokens, textbook, warm=lambda: textbook(1)),
    ]


def draw(points: dict[str, Any], title: str, path: Path) -> None:
    """The three panels, as .png or .svg."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, (panel, label) in zip(figure.subplots(1, 3, sharey=True), PANELS.items(), strict=True):
        sizes, ours, theirs = zip(*points[panel], strict=True)
        axes.loglog(sizes, theirs, "s--", label="textbook loop")
        axes.loglog(sizes, ours, "o-", label="relmo, words new")
        axes.set_xlabel(label)
        axes.grid(True, which="both", alpha=0.3)
    figure.axes[0].set_ylabel("microseconds a token")
    figure.axes[0].legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("picture", type=Path, help="a .png or .svg file")
    parser.add_argument("--geometry", default="small", choices=GEOMETRIES)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    settings = build(BiLMSettings, read_preset(arguments.geometry, "bilm"))
    words = [word for word, _ in Counter(word for sentence in read_text(None) for word in sentence).most_common()]
    points = growth(settings, words, device)
    draw(points, f"{arguments.geometry}, {describe(device)['machine']}", arguments.picture)


if __name__ == "__main__":
    main()
