"""Train a tiny ELMo on the bundled text, and find the most and least similar contexts of a word.

The mean vector of the word is subtracted first, so that the cosine compares only the contexts.
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
positions = [elmo.tokens(line).index(WORD) for line in lines]
vectors = elmo.embed(lines, layers=1)  # one array per line: (tokens, dim)
occurrences = np.stack([array[position] for array, position in zip(vectors, positions, strict=True)])
occurrences -= occurrences.mean(axis=0)
occurrences /= np.linalg.norm(occurrences, axis=1, keepdims=True)
cosines = occurrences @ occurrences.T
for i in (0, 16, 32):
    order = np.argsort(-cosines[i])  # the first entry is the line itself
    print(f"\n       {lines[i].strip()}")
    print(f" {cosines[i, order[1]]:5.2f} {lines[order[1]].strip()}")
    print(f" {cosines[i, order[-1]]:5.2f} {lines[order[-1]].strip()}")
