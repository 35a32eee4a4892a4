"""Copies text with some of its lines in another case: a network that reads characters learns a word in every case.

python recipes/other_case.py out/text/pretrain-*.txt --out out/text-cased --lower 0.16 --upper 0.06

A share of the lines is wholly in lower case; in another share each word is in capitals with probability one half, so
that its neighbours, which are what the network predicts, are mostly words of its vocabulary.
"""

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path


def other_case(line: str, chance: random.Random, *, lower: float, upper: float) -> str:
    """The line as it is, in lower case, or with half of its words in capitals."""
    drawn = chance.random()
    if drawn < lower:
        return line.lower()
    if drawn < lower + upper:
        return re.sub(r"\S+", lambda word: word[0].upper() if chance.random() < 0.5 else word[0], line)
    return line


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a file for each one given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lower", type=float, default=0.16)
    parser.add_argument("--upper", type=float, default=0.06)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for part in given.parts:
        chance = random.Random(part.name)
        temporary = given.out / f"{part.name}.partial"
        with part.open(encoding="utf-8") as file, temporary.open("w", encoding="utf-8") as target:
            target.writelines(other_case(line, chance, lower=given.lower, upper=given.upper) for line in file)
        temporary.replace(given.out / part.name)


if __name__ == "__main__":
    main()
