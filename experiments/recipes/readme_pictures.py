"""Draw the two figures of `small` in the README: surprisal of a garden-path sentence, and a word with two senses.

python -m experiments.recipes.readme_pictures docs [MODEL]        garden-path.png and meanings.png in that folder
"""

import sys
from importlib import resources
from pathlib import Path

import numpy as np

from relmo.analysis.core.show import PALETTE, save_figure
from relmo.loading import load
from relmo.models.bilm import BiLM

GARDEN_PATH = (
    "While the man hunted the deer ran into the woods.",
    "While the man hunted, the deer ran into the woods.",
)
WORD = "bark"
SENSES = {"of a tree": 4, "of a dog": 4}  # in the order of sentences.txt


def draw_garden_path(model: BiLM, target: Path) -> None:
    """Draw the surprisal of each word, with and without the comma."""
    with save_figure(target, 7, 4.6) as figure:
        panels = figure.subplots(2, 1, sharey=True)
        for panel, sentence in zip(panels, GARDEN_PATH, strict=True):
            rows = list(model.surprisal([sentence], context="sentence"))
            colours = [PALETTE[1] if row.word == "ran" else PALETTE[0] for row in rows]
            panel.bar(range(len(rows)), [row.surprisal for row in rows], color=colours)
            panel.set_xticks(range(len(rows)), [row.word for row in rows], fontsize=11)
            panel.set_ylabel("bits")
        panels[0].set_title('Surprisal: without the comma, "ran" is unexpected')


def draw_meanings(model: BiLM, target: Path) -> None:
    """Draw the first two principal components of the normalised top-layer vectors of a word with two senses."""
    text = (resources.files("relmo") / "data" / "sentences.txt").read_text(encoding="utf-8")
    sentences = [tokens for line in text.splitlines() if WORD in (tokens := model.tokens(line))]
    positions = [tokens.index(WORD) for tokens in sentences]
    embeddings = model.embed(sentences, layers="top")
    vectors = np.stack([array[i] for array, i in zip(embeddings, positions, strict=True)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    u, s, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    points = (u * s)[:, :2]
    with save_figure(target, 7, 4.6) as figure:
        panel = figure.subplots()
        start = 0
        for sense, count in SENSES.items():
            panel.scatter(*points[start : start + count].T, s=70, label=sense)
            start += count
        middle = (points[:, 0].min() + points[:, 0].max()) / 2
        for point, tokens, i in zip(points, sentences, positions, strict=True):
            is_right = point[0] > middle
            below = points[:, 1] - point[1]
            crowded = bool(((below < 0) & (below > -0.03 * np.ptp(points[:, 1]))).any())  # would overlap the next label
            offset, alignment = (-9 if is_right else 9, 4 if crowded else -4), "right" if is_right else "left"
            context = " ".join(tokens[max(0, i - 2) : i + 3])
            panel.annotate(context, point, offset, textcoords="offset points", ha=alignment, fontsize=11)
        panel.set(xticks=[], yticks=[])
        panel.margins(0.08, 0.12)
        panel.legend(loc="center right")
        panel.set_title(f'"{WORD}" in {len(sentences)} sentences: its contextual vectors')


def main() -> None:
    """Draw both figures."""
    model = load(sys.argv[2] if len(sys.argv) > 2 else "small", device="cpu")
    assert isinstance(model, BiLM)
    draw_garden_path(model, Path(sys.argv[1]) / "garden-path.png")
    draw_meanings(model, Path(sys.argv[1]) / "meanings.png")


if __name__ == "__main__":
    main()
