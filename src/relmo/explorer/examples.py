"""What ships to explore: models, and texts that suit them."""

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

DATA = Path(str(resources.files("relmo"))) / "data"
OWN = DATA / "examples"


@dataclass(frozen=True)
class ShippedModel:
    """A model that ships, and the text it is opened on; a model that translates has examples of its own instead."""

    name: str
    folder: Path
    about: str
    text: str = ""
    alike: str = ""
    """Models that were taught the same, to be set side by side."""


@dataclass(frozen=True)
class Passage:
    """A text that a page offers by name."""

    name: str
    title: str
    text: str
    language: Literal["python", "c"] | None = None


EXAMPLES = (
    ShippedModel("prose", OWN / "prose", "a network that has read War and Peace, letter by letter", "story"),
    ShippedModel("code", OWN / "code", "a network that has read SQLite's source, in C, letter by letter", "code"),
    ShippedModel(
        "prose-elman",
        OWN / "prose-elman",
        "an Elman network of 256 cells that has read War and Peace",
        "story",
        "prose",
    ),
    ShippedModel("prose-gru", OWN / "prose-gru", "a GRU of 256 cells that has read War and Peace", "story", "prose"),
    ShippedModel(
        "prose-lstm", OWN / "prose-lstm", "an LSTM of 256 cells that has read War and Peace", "story", "prose"
    ),
    ShippedModel(
        "anbn-lstm", OWN / "anbn-lstm", "an LSTM that learned to count a's and b's", "counting", alike="counting"
    ),
    ShippedModel("anbn-gru", OWN / "anbn-gru", "a GRU that was taught the same", "counting", alike="counting"),
    ShippedModel("hello", OWN / "hello", "an Elman network to compute by hand", "hello", alike="hello"),
    ShippedModel("hello-gru", OWN / "hello-gru", "a GRU to compute by hand", "hello", alike="hello"),
    ShippedModel("hello-lstm", OWN / "hello-lstm", "an LSTM to compute by hand", "hello", alike="hello"),
    ShippedModel("small", DATA / "small", "ELMo, which reads words in both directions", "sentences"),
    ShippedModel("english-french", OWN / "english-french", "a network that translates English into French"),
    ShippedModel("addition", OWN / "addition", "a network that adds numbers, digit by digit"),
)
COUNTING = OWN / "counting.json"
"""What small networks made of counting, measured before."""


def example(name: str) -> ShippedModel | None:
    """The example of this name, where its model is there."""
    return next((each for each in EXAMPLES if each.name == name and (each.folder / "config.json").is_file()), None)


def shipped() -> list[str]:
    """The names of the models that are there."""
    return [each.name for each in EXAMPLES if example(each.name) is not None]


def passages() -> list[Passage]:
    """The texts that ship."""
    files = (
        ("alice", "Alice's Adventures in Wonderland", DATA / "alice.txt", None),
        ("code", "A small C program", DATA / "shelf.c", "c"),
        ("kernel", "An LSTM written in C, from relmo", DATA.parent / "nn" / "kernels" / "lstm.c", "c"),
        ("sentences", "Sentences", DATA / "sentences.txt", None),
    )
    found = [
        Passage(name, title, path.read_text(encoding="utf-8"), language)  # type: ignore[arg-type]
        for name, title, path, language in files
    ]
    alice = found[0].text
    chapters = alice[alice.index("CHAPTER I") : alice.index("CHAPTER III")]
    story = Passage("story", "Alice, chapters I and II", printed(chapters))
    made = [
        Passage("counting", "60 a's, then 60 b's; and shorter words", _words()),
        Passage("thousand", "1,000 a's, then 1,000 b's", "a" * 1000 + "b" * 1000),
        Passage("hello", "hello", "hello"),
    ]
    return [story, *found, *made]


def _words() -> str:
    """Words of a's and as many b's, the longest first."""
    return "".join("a" * n + "b" * n for n in (60, 25, 8, 40))


def printed(text: str) -> str:
    """A text typed on a keyboard with the quotation marks, apostrophes and dashes of a printed book, since the model of
    prose has read printed books: `so' becomes “so”, "so" ‘so’, isn't isn’t, and -- —."""
    text = re.sub(r" {2,}", " ", re.sub(r"^ +", "", text, flags=re.MULTILINE))
    text = re.sub(r'"([^"]*)"', "‘\\1’", re.sub(r"(?<=\w)'(?=\w)", "’", text))
    return re.sub(r"\n{3,}", "\n\n", text.replace("`", "“").replace("'", "”").replace("--", "—")).strip() + "\n"
