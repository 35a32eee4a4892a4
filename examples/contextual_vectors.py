"""Train a tiny ELMo on the text that ships with relmo. Then find the lines that use a word most alike, and least.

All vectors of one word have much in common, so the mean of them is taken away first: what is left is the context.
"""

import tempfile
from importlib import resources
from pathlib import Path

import numpy as np

import relmo
from relmo.config import build, read_preset
from relmo.runs.train_bilm import train_bilm
from relmo.settings.bilm import BiLMSettings

WORD = "like"
text = resources.files("relmo") / "data" / "alice.txt"
settings = build(BiLMSettings, read_preset("tiny", "bilm"), {"train": {"epochs": 4, "batch": 8, "lr": 0.2}})

with tempfile.TemporaryDirectory() as folder:
    results = train_bilm([str(text)], settings, Path(folder) / "elmo")
    elmo = relmo.load(Path(folder) / "elmo", device="cpu")
print(f"perplexity on the held-out lines: {results['valid_average_perplexity']:.0f}")

lines = [line for line in text.read_text(encoding="utf-8").splitlines() if WORD in elmo.tokens(line)]
places = [elmo.tokens(line).index(WORD) for line in lines]
vectors = elmo.embed(lines, layers=1)  # a (words, dimensions) array for each line
found = np.stack([array[place] for array, place in zip(vectors, places, strict=True)])
found -= found.mean(axis=0)
found /= np.linalg.norm(found, axis=1, keepdims=True)
cosines = found @ found.T
for i in (0, 16, 32):
    order = np.argsort(-cosines[i])  # the first is the line itself
    print(f"\n       {lines[i].strip()}")
    print(f" {cosines[i, order[1]]:5.2f} {lines[order[1]].strip()}")
    print(f" {cosines[i, order[-1]]:5.2f} {lines[order[-1]].strip()}")
