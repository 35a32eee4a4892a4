"""Train a tiny ELMo on the text that ships with relmo, and find the occurrences of a word that are used most alike."""

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
settings = build(BiLMSettings, read_preset("tiny", "bilm"), {"train": {"epochs": 4, "batch": 16}})

with tempfile.TemporaryDirectory() as folder:
    results = train_bilm([str(text)], settings, Path(folder) / "elmo")
    elmo = relmo.load(Path(folder) / "elmo", device="cpu")
print(f"perplexity on the held-out lines: {results['valid_average_perplexity']:.0f}")

lines = [line for line in text.read_text(encoding="utf-8").splitlines() if WORD in elmo.tokens(line)]
places = [elmo.tokens(line).index(WORD) for line in lines]
vectors = elmo.embed(lines, layers="top")  # a (words, dimensions) array for each line
found = np.stack([array[place] for array, place in zip(vectors, places, strict=True)])
found /= np.linalg.norm(found, axis=1, keepdims=True)
alike = found @ found.T - 2 * np.eye(len(found))
for i in np.argsort(-alike.max(axis=1))[:6:2]:
    j = int(alike[i].argmax())
    print(f"\n{alike[i, j]:.2f}  {lines[i].strip()}\n      {lines[j].strip()}")
