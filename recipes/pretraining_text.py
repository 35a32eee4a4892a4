"""Makes the text that the bundled models are trained on: paragraphs in, one or a few sentences a line out.

python recipes/pretraining_text.py data/lm/pretrain-[0-7].txt --held-out data --out out/text --aside 2000

- A paragraph that shares 8 words in a row with any text we evaluate on (`HELD_OUT`, under the folder `--held-out`) is
  left out, and so is one that stood before, word for word. Words are compared in lower case, by letters and digits
  alone. A sentence of fewer than 8 words can hide no paragraph.
- A paragraph is cut at every other of its sentence ends, chosen at random: the network learns how sentences begin and
  end, and that they may follow one another.

- The last `--aside` paragraphs of the last part are not learned from: they are validation text, in aside.txt.

Writes a file for each part, and report.json: what was read, left out and why.
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

import numpy as np

from relmo.text.sentence_ends import sentence_ends
from relmo.text.tokenize import tokenize

GRAM = 8  # words in a row that may not be shared
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
COLUMN = {".conllu": 1, ".iob2": 1, ".conll": 3}  # where the word stands; .conll is CoNLL-2012


def words(text: str) -> list[str]:
    """What texts are compared by."""
    return re.findall(r"[^\W_]+", text.lower())


@cache
def number(word: str) -> int:
    """64 bits of a word's hash, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def grams(text: list[str]) -> np.ndarray:
    """A number for every GRAM words in a row; (len(text) - GRAM + 1,), or none."""
    if len(text) < GRAM:
        return np.zeros(0, dtype=np.uint64)
    numbers = np.array([number(word) for word in text], dtype=np.uint64)
    return np.lib.stride_tricks.sliding_window_view(numbers, GRAM) @ FACTORS


def held_out_text(path: Path) -> Iterator[str]:
    """The running text of a file of any of the formats we evaluate on, in pieces that belong together."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in COLUMN:
        for sentence in text.split("\n\n"):
            rows = [line.split() for line in sentence.splitlines() if line.strip() and not line.startswith("#")]
            column = COLUMN[path.suffix] if rows and len(rows[0]) > 3 else 0
            yield " ".join(row[column] for row in rows if len(row) > column)
    elif path.suffix in (".json", ".jsonl"):
        for line in [text] if path.suffix == ".json" else text.splitlines():
            yield from strings(json.loads(line))
    elif path.suffix == ".xml":
        for sentence in text.split("</sentence>"):
            yield html.unescape(" ".join(re.sub(r"<[^>]*>", " ", sentence).split()))
    elif path.parent.name == "sst5":
        yield from (re.sub(r"\(\d|\)", " ", line) for line in text.splitlines())
    else:
        yield from (field for line in text.splitlines() for field in line.split("\t"))


def strings(value: object) -> Iterator[str]:
    """Every text in a JSON value; a list of words is one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield " ".join(value)
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def held_out_grams(folder: Path, aside: Sequence[str]) -> tuple[np.ndarray, dict[str, int]]:
    """All that may not be shared, sorted; and how much of it each of HELD_OUT gives, and the paragraphs set aside."""
    found = [grams(words(paragraph)) for paragraph in aside]
    sizes = {"aside": sum(map(len, found))}
    for pattern in HELD_OUT:
        files = sorted(folder.glob(pattern))
        if not files:
            raise SystemExit(f"{folder}: there is no {pattern}; text that is evaluated on could not be left out")
        own = [grams(words(piece)) for file in files for piece in held_out_text(file)]
        found += own
        sizes[pattern] = sum(map(len, own))
    return np.unique(np.concatenate(found)), sizes


def set_aside(part: Path, count: int, target: Path) -> list[str]:
    """Writes the last paragraphs of a part, and gives them back."""
    with part.open(encoding="utf-8") as file:
        last = list(deque(file, maxlen=count))
    if last:
        target.write_text("".join(last), encoding="utf-8")
    return last


def lines(paragraph: str, chance: random.Random) -> Iterator[str]:
    """The paragraph, cut at half of its sentence ends."""
    start, tokens = 0, tokenize(paragraph)
    for last in sentence_ends(tokens):
        if chance.random() < 0.5:
            yield paragraph[start : tokens[last].end]
            start = tokens[last + 1].start
    yield paragraph[start:]


def repeated(parts: Iterable[Path]) -> list[set[int]]:
    """The numbers of the lines of each part that stood before, word for word, in it or in an earlier one."""
    seen: set[bytes] = set()
    found = []
    for part in parts:
        again = set()
        with part.open(encoding="utf-8") as file:
            for i, line in enumerate(file):
                key = hashlib.blake2b(" ".join(words(line)).encode(), digest_size=8).digest()
                if line.strip() and key in seen:
                    again.add(i)
                seen.add(key)
        found.append(again)
    return found


def make_part(held_out: np.ndarray, out: Path, part: Path, again: set[int]) -> dict[str, int]:
    """Writes what is left of a part. -> how many words were read, and left out for each reason"""
    counts: Counter[str] = Counter()
    chance = random.Random(part.name)
    temporary = out / f"{part.name}.partial"
    with part.open(encoding="utf-8") as file, temporary.open("w", encoding="utf-8") as target:
        for i, line in enumerate(file):
            text = words(line)
            counts["words read"] += len(text)
            if i in again:
                counts["words in repeated paragraphs"] += len(text)
            elif shares(grams(text), held_out):
                counts["words in paragraphs shared with held-out text"] += len(text)
                counts["paragraphs shared with held-out text"] += 1
            elif text:
                kept = [sentence.strip() for sentence in lines(line.strip(), chance)]
                counts["lines written"] += len(kept)
                counts["words written"] += len(text)
                target.write("\n".join(kept) + "\n")
    temporary.replace(out / part.name)
    return dict(counts)


def shares(own: np.ndarray, held_out: np.ndarray) -> bool:
    """Whether any number stands in the sorted ones."""
    places = np.minimum(np.searchsorted(held_out, own), len(held_out) - 1)
    return bool((held_out[places] == own).any())


def main() -> None:
    """Makes all parts, each by a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--held-out", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--aside", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    aside = set_aside(given.parts[-1], given.aside, given.out / "aside.txt")
    held_out, sizes = held_out_grams(given.held_out, aside)
    with ProcessPoolExecutor() as pool:
        made = list(pool.map(partial(make_part, held_out, given.out), given.parts, repeated(given.parts)))
    report = {"held out": sizes, "parts": {part.name: counts for part, counts in zip(given.parts, made, strict=True)}}
    report["total"] = dict(sum(map(Counter, made), Counter()))
    (given.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report["total"], indent=2))


if __name__ == "__main__":
    main()
