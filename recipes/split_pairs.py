"""Splits a file of pairs so that no source stands on both sides, such as Tatoeba, where one has several translations.

    python recipes/split_pairs.py data/tasks/tatoeba/fra.txt --held-out 2000 --out pairs

pairs/train.tsv has a pair a line, pairs/held-out.jsonl a source a line with all its translations. Any of them counts as
right. Sources are drawn by their checksums, so that the same are held out whatever else the file has.
"""

import argparse
import hashlib
import json
from pathlib import Path

from relmo.text.readers.parallel import TextToText, read_parallel

HEADER = "source\ttarget\n"


def grouped(pairs: list[TextToText]) -> dict[str, list[str]]:
    """Each source with all its targets, in the order of the file."""
    found: dict[str, list[str]] = {}
    for source, targets, _ in pairs:
        found.setdefault(source, []).extend(target for target in targets if target not in found.get(source, []))
    return found


def split(pairs: list[TextToText], held_out: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Sources to learn from and those that are held out, with their targets."""
    every = grouped(pairs)
    drawn = sorted(every, key=lambda source: hashlib.sha256(source.encode()).digest())[:held_out]
    held = set(drawn)
    return {s: t for s, t in every.items() if s not in held}, {s: t for s, t in every.items() if s in held}


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description="Split pairs of texts by their sources.")
    parser.add_argument("file")
    parser.add_argument("--held-out", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    train, held = split(list(read_parallel(given.file)), given.held_out)
    given.out.mkdir(parents=True, exist_ok=True)
    rows = [f"{source}\t{target}\n" for source, targets in train.items() for target in targets]
    (given.out / "train.tsv").write_text(HEADER + "".join(rows), encoding="utf-8")
    lines = [json.dumps({"source": s, "target": t}, ensure_ascii=False) + "\n" for s, t in held.items()]
    (given.out / "held-out.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{len(rows):,} pairs to learn from, {len(held):,} sources held out")


if __name__ == "__main__":
    main()
