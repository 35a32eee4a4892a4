"""Figure of the cost of a token by sentence length, batch size and vocabulary size, for relmo (float32, cold cache) and
the textbook loop.

    python -m benchmarks.growth growth.png [--geometry small] [--device cpu]

Sentences consist of words of alice.txt and all have the same length, so that sorting makes no difference.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.clock import Case, measure
from benchmarks.embedding import EmbeddingBench, embed_batches
from benchmarks.machine import Calibration, describe
from benchmarks.table import GEOMETRIES, read_text
from relmo.analysis.core.show import save_figure
from relmo.config import build, read_preset
from relmo.settings.bilm import BiLMSettings

LENGTHS = (1, 2, 5, 10, 20, 40, 80)
BATCHES = (1, 2, 4, 8, 16, 32)
VOCABULARIES = (10, 30, 100, 300, 1000)
NUM_SENTENCES = {"length": 16, "batch": 32, "vocabulary": 50}
DEFAULT_LENGTH, DEFAULT_VOCABULARY = 20, 200  # while another size grows
ROUNDS = 2
PANELS = {"length": "words per sentence", "batch": "batch size", "vocabulary": "distinct words in the text"}


def measure_growth(settings: BiLMSettings, words: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Return microseconds per token by panel, as lists of [size, relmo, textbook]."""
    points: dict[str, Any] = {}
    calibration = Calibration(device)
    for panel, sizes in (("length", LENGTHS), ("batch", BATCHES), ("vocabulary", VOCABULARIES)):
        points[panel] = []
        for size in sizes:
            count = NUM_SENTENCES[panel]
            chosen = {"length": DEFAULT_LENGTH, "batch": count, "vocabulary": DEFAULT_VOCABULARY} | {panel: size}
            sentences = make_sentences(words, count, chosen["length"], chosen["vocabulary"])
            cases = make_cases(settings, sentences, chosen["batch"], device)
            timings = measure(cases, rounds=ROUNDS, device=device, calibration=calibration)
            points[panel].append([size, *(1e6 / timing.rate for timing in timings)])
            print(f"{PANELS[panel]}: {size:>5}  microseconds per token: {points[panel][-1][1:]}", flush=True)
    return points


def make_sentences(words: Sequence[str], count: int, length: int, vocabulary: int) -> list[list[str]]:
    """Return random sentences of this length from the first words, each of which occurs if there is room."""
    generator = np.random.default_rng(0)
    indices = generator.permutation(np.arange(count * length) % min(vocabulary, len(words)))
    return [[words[i] for i in row] for row in indices.reshape(count, length)]


def make_cases(settings: BiLMSettings, sentences: list[list[str]], batch: int, device: torch.device) -> list[Case]:
    """Return the cases of relmo and the textbook loop with this batch size."""
    bench = EmbeddingBench(settings, sentences, device=device, peer="float32", precisions=["float32"])
    columns = settings.model.max_characters

    def relmo() -> object:
        return bench.models["float32"].embed(sentences, batch_size=batch)

    def textbook(count: int = len(sentences)) -> object:
        return embed_batches(bench.textbook, sentences[:count], columns, device, batch_size=batch)

    return [
        Case("relmo", bench.tokens, relmo, prepare=lambda: bench.renew("float32")),
        Case("textbook loop", bench.tokens, textbook, warm_up=lambda: textbook(1)),
    ]


def draw(points: dict[str, Any], title: str, path: Path) -> None:
    """Draw the three panels, as .png or .svg."""

    with save_figure(path, 12, 4.2) as figure:
        figure.suptitle(title)
        for axes, (panel, label) in zip(figure.subplots(1, 3, sharey=True), PANELS.items(), strict=True):
            sizes, ours, theirs = zip(*points[panel], strict=True)
            axes.loglog(sizes, theirs, "s--", label="textbook loop")
            axes.loglog(sizes, ours, "o-", label="relmo, cold cache")
            axes.set_xlabel(label)
            axes.grid(True, which="both", alpha=0.3)
        figure.axes[0].set_ylabel("microseconds per token")
        figure.axes[0].legend()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("picture", type=Path, help="a .png or .svg file")
    parser.add_argument("--geometry", default="small", choices=GEOMETRIES)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    settings = build(BiLMSettings, read_preset(arguments.geometry, "bilm"))
    words = [word for word, _ in Counter(word for sentence in read_text(None) for word in sentence).most_common()]
    points = measure_growth(settings, words, device)
    draw(points, f"{arguments.geometry}, {describe(device)['machine']}", arguments.picture)


if __name__ == "__main__":
    main()
