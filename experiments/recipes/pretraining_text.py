"""Make the training text of the bundled models: paragraphs in, one or a few sentences per line out.

    python -m experiments.recipes.pretraining_text data/lm/pretrain-[0-7].txt --held-out data --out out/text --aside
    2000

- A paragraph that shares an 8-gram with any evaluation text (`HELD_OUT`, under the folder `--held-out`) is left out,
  and so is an exact repetition. Words are compared in lower case, by letters and digits alone. A held-out sentence of
  fewer than 8 words excludes no paragraph.
- A paragraph is split at a random half of its sentence ends: the network learns how sentences begin and end, and that
  they may follow one another.
- The last `--aside` paragraphs of the last part are not used for training: they are validation text, in aside.txt.

Writes one file per part, and report.json: words read, and left out by reason.
"""

import argparse
import hashlib
import html
import json
import random
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from relmo.text.tokenize import sentence_ends, tokenize

GRAM = 8  # order of the n-grams that may not be shared
FACTORS = np.array([pow(0x9E3779B97F4A7C15, i + 1, 1 << 64) for i in range(GRAM)], dtype=np.uint64)
HELD_OUT = [
    "lm/pretrain-valid.txt",
    "lm/wikitext-2/*valid*",
    "lm/wikitext-2/*test*",
    "lm/wikitext-103/*valid*",
    "tasks/pos_ud/en_ewt/*dev*",
    "tasks/wsd/*.data.xml",
    "tasks/agreement/*/*",
    "tasks/cola/*dev*",
    "tasks/stsb/*dev*",
    "tasks/snli/*dev*",
    "tasks/sst5/dev*",
    "tasks/ner_uner_en/*dev*",
    "tasks/ner_wnut17/*dev*",
    "tasks/srl_propbank_ewt/*dev.jsonl",
    "tasks/squad/dev*",
    "tasks/coref_gum/*dev*",
    "tasks/coref_litbank/conll/*",
    "tasks/multi30k/val.en",
    "tasks/scitldr/dev*",
]
WORD_COLUMNS = {".conllu": 1, ".iob2": 1, ".conll": 3}  # .conll is CoNLL-2012


def words(text: str) -> list[str]:
    """Return the words by which texts are compared."""
    return re.findall(r"[^\W_]+", text.lower())


@cache
def hash_word(word: str) -> int:
    """Return a 64-bit hash, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def grams(text: list[str]) -> np.ndarray:
    """Return a hash of every n-gram; (len(text) - GRAM + 1,), or empty."""
    if len(text) < GRAM:
        return np.zeros(0, dtype=np.uint64)
    hashes = np.array([hash_word(word) for word in text], dtype=np.uint64)
    return np.lib.stride_tricks.sliding_window_view(hashes, GRAM) @ FACTORS


def read_held_out(path: Path) -> Iterator[str]:
    """Yield the texts of an evaluation file of any format."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in WORD_COLUMNS:
        for sentence in text.split("\n\n"):
            rows = [line.split() for line in sentence.splitlines() if line.strip() and not line.startswith("#")]
            column = WORD_COLUMNS[path.suffix] if rows and len(rows[0]) > 3 else 0
            yield " ".join(row[column] for row in rows if len(row) > column)
    elif path.suffix in (".json", ".jsonl"):
        for line in [text] if path.suffix == ".json" else text.splitlines():
            yield from find_strings(json.loads(line))
    elif path.suffix == ".xml":
        for sentence in text.split("</sentence>"):
            yield html.unescape(" ".join(re.sub(r"<[^>]*>", " ", sentence).split()))
    elif path.parent.name == "sst5":
        yield from (re.sub(r"\(\d|\)", " ", line) for line in text.splitlines())
    else:
        yield from (field for line in text.splitlines() for field in line.split("\t"))


def find_strings(value: object) -> Iterator[str]:
    """Yield every text in a JSON value; a list of words is one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield " ".join(value)
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from find_strings(item)


def held_out_grams(folder: Path, aside: Sequence[str]) -> tuple[np.ndarray, dict[str, int]]:
    """Return the n-grams that may not be shared, sorted, and their number by pattern of HELD_OUT and in `aside`."""
    held_out = [grams(words(paragraph)) for paragraph in aside]
    sizes = {"aside": sum(map(len, held_out))}
    for pattern in HELD_OUT:
        files = sorted(folder.glob(pattern))
        if not files:
            raise SystemExit(f"{folder}: no {pattern}; evaluation text could not be left out")
        pattern_grams = [grams(words(text)) for file in files for text in read_held_out(file)]
        held_out += pattern_grams
        sizes[pattern] = sum(map(len, pattern_grams))
    return np.unique(np.concatenate(held_out)), sizes


def set_aside(part: Path, count: int, target: Path) -> list[str]:
    """Write the last paragraphs of a part to a file and return them."""
    with part.open(encoding="utf-8") as file:
        paragraphs = list(deque(file, maxlen=count))
    if paragraphs:
        target.write_text("".join(paragraphs), encoding="utf-8")
    return paragraphs


def split_paragraph(paragraph: str, rng: random.Random) -> Iterator[str]:
    """Yield the paragraph, split at half of its sentence ends."""
    start, tokens = 0, tokenize(paragraph)
    for last in sentence_ends(tokens):
        if rng.random() < 0.5:
            yield paragraph[start : tokens[last].end]
            start = tokens[last + 1].start
    yield paragraph[start:]


def find_repetitions(parts: Iterable[Path]) -> list[set[int]]:
    """Return the line indices of each part that repeat an earlier line of any part."""
    seen: set[bytes] = set()
    repetitions = []
    for part in parts:
        indices = set()
        with part.open(encoding="utf-8") as file:
            for i, line in enumerate(file):
                key = hashlib.blake2b(" ".join(words(line)).encode(), digest_size=8).digest()
                if line.strip() and key in seen:
                    indices.add(i)
                seen.add(key)
        repetitions.append(indices)
    return repetitions


def make_part(held_out: np.ndarray, out: Path, part: Path, repetitions: set[int]) -> dict[str, int]:
    """Write the remaining text of a part; return the number of words read, and left out by reason."""
    counts: Counter[str] = Counter()
    rng = random.Random(part.name)
    temporary = out / f"{part.name}.partial"
    with part.open(encoding="utf-8") as file, temporary.open("w", encoding="utf-8") as target:
        for i, line in enumerate(file):
            text = words(line)
            counts["words read"] += len(text)
            if i in repetitions:
                counts["words in repeated paragraphs"] += len(text)
            elif has_common(grams(text), held_out):
                counts["words in paragraphs shared with held-out text"] += len(text)
                counts["paragraphs shared with held-out text"] += 1
            elif text:
                lines = [sentence.strip() for sentence in split_paragraph(line.strip(), rng)]
                counts["lines written"] += len(lines)
                counts["words written"] += len(text)
                target.write("\n".join(lines) + "\n")
    temporary.replace(out / part.name)
    return dict(counts)


def has_common(hashes: np.ndarray, held_out: np.ndarray) -> bool:
    """Return whether any hash is among the sorted ones."""
    indices = np.minimum(np.searchsorted(held_out, hashes), len(held_out) - 1)
    return bool((held_out[indices] == hashes).any())


def main() -> None:
    """Make all parts in parallel processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--held-out", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--aside", type=int, default=0)
    arguments = parser.parse_args()
    parts, out = arguments.parts, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    aside = set_aside(parts[-1], arguments.aside, out / "aside.txt")
    held_out, sizes = held_out_grams(arguments.held_out, aside)
    with ProcessPoolExecutor() as pool:
        counts = list(pool.map(partial(make_part, held_out, out), parts, find_repetitions(parts)))
    by_part = {part.name: part_counts for part, part_counts in zip(parts, counts, strict=True)}
    report: dict[str, Any] = {"held out": sizes, "parts": by_part}
    report["total"] = dict(sum(map(Counter, counts), Counter()))
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report["total"], indent=2))


if __name__ == "__main__":
    main()
