"""Split a file of pairs so that no source is in both parts, such as Tatoeba, where a source has several translations.

    python -m experiments.recipes.split_pairs data/tasks/tatoeba/fra.txt --held-out 2000 --out pairs

pairs/train.tsv has one pair per line, pairs/held-out.jsonl one source per line with all its translations, any of which
is correct. Sources are chosen by checksum, so that the same are held out whatever else the file contains.
"""

import argparse
import hashlib
import json
from pathlib import Path

from relmo.text.readers.parallel import TextToText, read_parallel

HEADER = "source\ttarget\n"


def group_targets(pairs: list[TextToText]) -> dict[str, list[str]]:
    """Return all targets of each source, in the order of the file."""
    groups: dict[str, list[str]] = {}
    for source, targets, _ in pairs:
        groups.setdefault(source, []).extend(target for target in targets if target not in groups.get(source, []))
    return groups


def split(pairs: list[TextToText], held_out: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the training sources and the held-out sources, with their targets."""
    groups = group_targets(pairs)
    chosen = set(sorted(groups, key=lambda source: hashlib.sha256(source.encode()).digest())[:held_out])
    return {s: t for s, t in groups.items() if s not in chosen}, {s: t for s, t in groups.items() if s in chosen}


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Split pairs of texts by their sources.")
    parser.add_argument("file")
    parser.add_argument("--held-out", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    train, held_out = split(list(read_parallel(arguments.file)), arguments.held_out)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = [f"{source}\t{target}\n" for source, targets in train.items() for target in targets]
    (arguments.out / "train.tsv").write_text(HEADER + "".join(rows), encoding="utf-8")
    lines = [json.dumps({"source": s, "target": t}, ensure_ascii=False) + "\n" for s, t in held_out.items()]
    (arguments.out / "held-out.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{len(rows):,} training pairs, {len(held_out):,} held-out sources")


if __name__ == "__main__":
    main()
