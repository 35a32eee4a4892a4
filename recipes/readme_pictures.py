"""Draws the two pictures of `small` in the README: the surprise of a garden path, and one word in three meanings.

python recipes/readme_pictures.py docs [MODEL]        garden-path.png and meanings.png in that folder
"""

import sys
from importlib import resources
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from relmo.loading import load
from relmo.models.bilm import BiLM

GARDEN_PATH = (
    "While the man hunted the deer ran into the woods.",
    "While the man hunted, the deer ran into the woods.",
)
MEANINGS = {
    "season": ("tab:green", 6),
    "coil": ("tab:orange", 4),
    "water": ("tab:blue", 3),
}  # as sentences.txt has them


def draw_garden_path(model: BiLM, target: Path) -> None:
    """The bits of each word, with the comma and without."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 1, sharey=True)
    for panel, sentence in zip(panels, GARDEN_PATH, strict=True):
        rows = list(model.surprisal([sentence], context="sentence"))
        colours = ["tab:orange" if row.word == "ran" else "tab:blue" for row in rows]
        panel.bar(range(len(rows)), [row.surprisal for row in rows], color=colours)
        panel.set_xticks(range(len(rows)), [row.word for row in rows], fontsize=7)
        panel.set_ylabel("bits")
    panels[0].set_title('surprisal: a missing comma makes "ran" a surprise', fontsize=9)
    figure.savefig(target, dpi=90)


def draw_meanings(model: BiLM, target: Path) -> None:
    """The top layer's vectors of "spring", of length 1, by their two main components."""
    text = (resources.files("relmo") / "data" / "sentences.txt").read_text(encoding="utf-8")
    sentences = [tokens for line in text.splitlines() if "spring" in (tokens := model.tokens(line))]
    places = [tokens.index("spring") for tokens in sentences]
    vectors = np.stack([v[i] for v, i in zip(model.embed(sentences, layers="top"), places, strict=True)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    u, s, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    points = (u * s)[:, :2]
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    begin = 0
    for name, (colour, count) in MEANINGS.items():
        panel.scatter(*points[begin : begin + count].T, color=colour, label=name)
        begin += count
    for point, tokens, i in zip(points, sentences, places, strict=True):
        shown = " ".join(tokens[max(0, i - 2) : i + 3])
        below = "replaced" in tokens  # it would stand on another
        note = panel.annotate(shown, point, (4, -11 if below else 3), textcoords="offset points", fontsize=7)
        note.set_in_layout(False)
    low, high = points[:, 0].min(), points[:, 0].max()
    panel.set_xlim(low - 0.05 * (high - low), high + 0.42 * (high - low))  # room for the words
    panel.set_xticks([])
    panel.set_yticks([])
    panel.legend(frameon=False, loc="upper center")
    panel.set_title('"spring" in thirteen sentences: its vectors, in two dimensions', fontsize=9)
    figure.savefig(target, dpi=90)


def main() -> None:
    """Both."""
    model = load(sys.argv[2] if len(sys.argv) > 2 else "small", device="cpu")
    assert isinstance(model, BiLM)
    draw_garden_path(model, Path(sys.argv[1]) / "garden-path.png")
    draw_meanings(model, Path(sys.argv[1]) / "meanings.png")


if __name__ == "__main__":
    main()
