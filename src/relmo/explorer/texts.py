"""Texts of a session: bundled passages, the text given on the command line, and texts added by the user."""

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from relmo.analysis.core.code_features import Language, detect_language
from relmo.analysis.core.features import Document, read, read_source
from relmo.errors import SettingError
from relmo.explorer.examples import DATA
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text.conllu import ConlluWord
from relmo.text.corpus import STDIN

MAX_CHARACTERS, MAX_SENTENCES = 400_000, 5000  # of a text, and of a CoNLL-U file
MAX_USER_TEXTS = 32


@dataclass(frozen=True)
class Passage:
    """A text that the page offers by name."""

    name: str
    title: str
    text: str
    language: Language | None = None


class TextStore:
    """Passages by name.

    initial        name of the passage that the page opens with
    annotations    sentences of the passages that come from CoNLL-U files
    """

    def __init__(self) -> None:
        self.passages: OrderedDict[str, Passage] = OrderedDict((passage.name, passage) for passage in load_passages())
        self.user_passages: OrderedDict[str, Passage] = OrderedDict()
        self.annotations: dict[str, list[list[ConlluWord]]] = {}
        self.initial = next(iter(self.passages))

    def set_text(self, title: str, text: str, language: Language | None = None) -> None:
        """Add the text that the page opens with."""
        self.passages["given"] = Passage("given", title, _clean_text(text), language)
        self.initial = "given"

    def set_annotated(self, title: str, sentences: list[list[ConlluWord]]) -> None:
        """Add the annotated text that the page opens with."""
        self.annotations["given"] = sentences
        self.set_text(title, " ".join(word.form for sentence in sentences for word in sentence)[:MAX_CHARACTERS])

    def set_file(self, file: str) -> None:
        """Open the page with the beginning of a file; - is standard input."""
        title = "standard input" if file == STDIN else Path(file).name
        content = read_source(file, MAX_SENTENCES)
        if isinstance(content, str):
            self.set_text(title, content[:MAX_CHARACTERS], detect_language(file))
        else:
            self.set_annotated(title, content)

    def add(self, text: str, language: str | None = None) -> str:
        """Store a text of the user and return its name, a digest; the least recent texts are dropped."""
        if language not in (None, "python", "c"):
            raise SettingError(f"Unknown language {language[:40]!r}; expected python or c.")
        name = "own-" + hashlib.sha256(f"{language}\0{text}".encode()).hexdigest()[:16]
        self.user_passages[name] = Passage(name, "Your text", _clean_text(text), language)  # type: ignore[arg-type]
        self.user_passages.move_to_end(name)
        while len(self.user_passages) > MAX_USER_TEXTS:
            self.user_passages.popitem(last=False)
        return name

    def get_passage(self, name: str) -> Passage:
        """Return the passage with this name; texts added by the user take precedence."""
        passage = self.user_passages.get(name) or self.passages.get(name)
        if passage is None:
            raise SettingError(f"Unknown text {name[:40]!r}. It may have expired; open it again.")
        return passage

    def get_document(self, name: str, model: LanguageModel | BiLM) -> Document:
        """Return a passage as the model reads it."""
        passage = self.get_passage(name)
        return read(model, self.annotations.get(name, passage.text), language=passage.language)


def _clean_text(text: str) -> str:
    if not text.strip():
        raise SettingError("The text is empty.")
    if len(text) > MAX_CHARACTERS:
        raise SettingError(f"The text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are supported.")
    return text.replace("\r\n", "\n").replace("\0", "\ufffd")


def load_passages() -> list[Passage]:
    """Load the bundled texts."""
    files = (
        ("alice", "Alice's Adventures in Wonderland", DATA / "alice.txt", None),
        ("code", "A small C program", DATA / "shelf.c", "c"),
        ("kernel", "An LSTM written in C, from relmo", DATA.parent / "nn" / "kernels" / "lstm.c", "c"),
        ("sentences", "Sentences", DATA / "sentences.txt", None),
    )
    bundled = [
        Passage(name, title, path.read_text(encoding="utf-8"), language)  # type: ignore[arg-type]
        for name, title, path, language in files
    ]
    alice = bundled[0].text
    chapters = alice[alice.index("CHAPTER I") : alice.index("CHAPTER III")]
    return [
        Passage("story", "Alice, chapters I and II", use_typographic_marks(chapters)),
        *bundled,
        Passage(
            "counting", "60 a's, then 60 b's; and shorter words", "".join("a" * n + "b" * n for n in (60, 25, 8, 40))
        ),
        Passage("thousand", "1,000 a's, then 1,000 b's", "a" * 1000 + "b" * 1000),
        Passage("hello", "hello", "hello"),
    ]


def use_typographic_marks(text: str) -> str:
    """Replace typewriter quotation marks, apostrophes and dashes by those of printed books, as in the training text.

    `so' becomes “so”, "so" becomes ‘so’, isn't becomes isn’t, and -- becomes —.
    """
    text = re.sub(r" {2,}", " ", re.sub(r"^ +", "", text, flags=re.MULTILINE))
    text = re.sub(r'"([^"]*)"', "‘\\1’", re.sub(r"(?<=\w)'(?=\w)", "’", text))
    return re.sub(r"\n{3,}", "\n\n", text.replace("`", "“").replace("'", "”").replace("--", "—")).strip() + "\n"
