"""Copies text with some of its lines in another case: a network that reads characters learns a word in every case.

python -m experiments.recipes.other_case out/text/pretrain-*.txt --out out/text-cased --lower 0.16 --upper 0.06

A share of the lines is wholly in lower case; in another share each word is in capitals with probability one half, so
that its neighbours, which are what the network predicts, are mostly words of its vocabulary.
"""

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path


def change_case(line: str, rng: random.Random, *, lower: float, upper: float) -> str:
    """Return the line unchanged, in lower case, or with half of its words in capitals."""
    sample = rng.random()
    if sample < lower:
        return line.lower()
    if sample < lower + upper:
        return re.sub(r"\S+", lambda word: word[0].upper() if rng.random() < 0.5 else word[0], line)
    return line


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one file per input file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lower", type=float, default=0.16)
    parser.add_argument("--upper", type=float, default=0.06)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        rng = random.Random(part.name)
        temporary = options.out / f"{part.name}.partial"
        with part.open(encoding="utf-8") as file, temporary.open("w", encoding="utf-8") as target:
            target.writelines(change_case(line, rng, lower=options.lower, upper=options.upper) for line in file)
        temporary.replace(options.out / part.name)


if __name__ == "__main__":
    main()
