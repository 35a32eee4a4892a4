"""Copies text with some of its lines as people type them: a network that reads characters learns words in every shape.

python recipes/as_typed.py out/text/pretrain-*.txt --out out/text-typed

- `--lower` of the lines are wholly in lower case; half of these are written in haste: no full stop at the end, no
  apostrophes, some words as in short messages.
- In `--upper` of them each word is in capitals with probability one half, so that its neighbours, which are what the
  network predicts, are mostly words of its vocabulary.
- `--posted` of all lines have what posts have: a name with @ before them, a word with #, an address, a sign of mood.
"""

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path

SHORT = {
    "you": "u", "are": "r", "your": "ur", "because": "cuz", "please": "plz", "thanks": "thx", "people": "ppl",
    "though": "tho", "through": "thru", "tonight": "2nite", "tomorrow": "tmrw", "before": "b4", "great": "gr8",
    "and": "n", "with": "w/", "what": "wat", "the": "da", "love": "luv", "really": "rly", "about": "abt",
}  # fmt: skip
MOODS = [":)", ":(", ":D", ";)", ":P", "<3", "xD", "lol", "LOL", "haha", "omg", "wow", "!!", "!!!", "...", "??"]
MOODS += ["😂", "😊", "😍", "👍", "🙏", "🔥", "😭", "❤️", "🎉", "🤔"]
SIGNS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
SITES = ("http://t.co/", "https://t.co/", "http://bit.ly/", "https://youtu.be/", "http://tinyurl.com/")


def as_typed(line: str, chance: random.Random, *, lower: float, upper: float, posted: float) -> str:
    """The line as it is or in another case, and perhaps as a post."""
    drawn = chance.random()
    if drawn < lower / 2:
        line = in_haste(line.lower(), chance)
    elif drawn < lower:
        line = line.lower()
    elif drawn < lower + upper:
        line = re.sub(r"\S+", lambda word: word[0].upper() if chance.random() < 0.5 else word[0], line)
    return as_post(line, chance) if chance.random() < posted else line


def in_haste(line: str, chance: random.Random) -> str:
    """Without the last full stop and apostrophes; one in ten of the words that have a short form in it; now and then a
    letter that is held down."""
    line = re.sub(r"\.$", "", re.sub(r"(?<=\w)['’](?=\w)", "", line))

    def word(found: re.Match[str]) -> str:
        text = found[0]
        drawn = chance.random()
        if drawn < 0.1:
            return SHORT.get(text, text)
        if drawn < 0.105:
            return re.sub(r"[aeiouhy]", lambda letter: letter[0] * chance.randint(2, 5), text, count=1)
        return text

    return re.sub(r"[a-z]+", word, line)


def as_post(line: str, chance: random.Random) -> str:
    """With one or two of the marks of posts."""
    words = line.split(" ")
    for _ in range(chance.randint(1, 2)):
        kind, place = chance.randrange(4), chance.randrange(len(words))
        if kind == 0:
            words.insert(
                0, "@" + re.sub(r"\W", "", chance.choice(words))[:12] + str(chance.randrange(100)) * chance.randrange(2)
            )
        elif kind == 1:
            words[place] = re.sub(r"^(?=\w)", "#", words[place])
        elif kind == 2:
            words.append(chance.choice(SITES) + "".join(chance.choices(SIGNS, k=chance.randint(5, 10))))
        else:
            words.append(chance.choice(MOODS))
    return " ".join(words)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a file for each one given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lower", type=float, default=0.16)
    parser.add_argument("--upper", type=float, default=0.06)
    parser.add_argument("--posted", type=float, default=0.04)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    shares = {"lower": given.lower, "upper": given.upper, "posted": given.posted}
    for part in given.parts:
        chance = random.Random(part.name)
        temporary = given.out / f"{part.name}.partial"
        with part.open(encoding="utf-8") as file, temporary.open("w", encoding="utf-8") as target:
            target.writelines(as_typed(line.rstrip("\n"), chance, **shares) + "\n" for line in file)
        temporary.replace(given.out / part.name)


if __name__ == "__main__":
    main()
