"""Session: a model, its texts and readers, and the endpoints that answer requests about them.

Answers are plain data and depend only on the model and the parameters: a page can cache them, and a bundle of them
is an exported page. Long computations are in `work`, on a copy of the model, so that interventions are never seen here.
"""

import hashlib
import re
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import numpy as np

from relmo.analysis.core.features import Document, Language, detect_language, read, read_source, tracks
from relmo.analysis.units.cell_report import NamedCell, read_cells
from relmo.errors import ModelError, SettingError
from relmo.explorer.examples import ANSWERS_FILE, DATA, find_example, installed_examples, read_answers
from relmo.explorer.extras import Extras, get_layer_mixes
from relmo.explorer.params import Answer, Params, Query, parse_unit
from relmo.explorer.reader import PagedReader
from relmo.loading import load
from relmo.models.lm import LanguageModel
from relmo.models.sequence_model import SequenceModel
from relmo.store.references import find_installed
from relmo.tasks.task import Task
from relmo.text.corpus import STDIN
from relmo.text.trees import ConlluWord

MAX_READERS = 6  # cached readers
MAX_CHARACTERS, MAX_SENTENCES = 400_000, 5000  # of a text, and of a CoNLL-U file
MAX_USER_TEXTS = 32
NUM_SYMBOLS = 20_000  # in which a feature has to change to be offered
COUNTING_SYMBOLS = "ab\n"
CODE = ("indentation", "depth", "column", "string", "comment", "if")
PROSE = ("quotes", "column", "to_line_end", "word_position", "sentence_position", "capitalised", "number")
WORDS = ("quotes", "sentence_position", "capitalised", "number")


class Passage(NamedTuple):
    """A text that the page offers by name."""

    name: str
    title: str
    text: str
    language: Language | None = None


class TextStore:
    """Passages by name."""

    def __init__(self) -> None:
        self.passages: OrderedDict[str, Passage] = OrderedDict((passage.name, passage) for passage in load_passages())
        self.user_passages: OrderedDict[str, Passage] = OrderedDict()
        self.annotations: dict[str, list[list[ConlluWord]]] = {}  # sentences of passages from CoNLL-U files
        self.initial = next(iter(self.passages))  # name of the passage that the page opens with

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


def _clean_text(text: str) -> str:
    if not text.strip():
        raise SettingError("The text is empty.")
    if len(text) > MAX_CHARACTERS:
        raise SettingError(f"The text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are supported.")
    return text.replace("\r\n", "\n").replace("\0", "\ufffd")


def load_passages() -> list[Passage]:
    """Load the bundled texts."""
    files: tuple[tuple[str, str, Path, Language | None], ...] = (
        ("alice", "Alice's Adventures in Wonderland", DATA / "alice.txt", None),
        ("code", "A small C program", DATA / "shelf.c", "c"),
        ("kernel", "An LSTM written in C, from relmo", DATA.parent / "nn" / "kernels" / "lstm.c", "c"),
        ("sentences", "Sentences", DATA / "sentences.txt", None),
    )
    bundled = [Passage(name, title, path.read_text(encoding="utf-8"), lang) for name, title, path, lang in files]
    # Typographic marks as in the training text: `so' becomes “so”, "so" becomes ‘so’, isn't isn’t, and -- becomes —.
    story = bundled[0].text
    story = story[story.index("CHAPTER I") : story.index("CHAPTER III")]
    story = re.sub(r" {2,}", " ", re.sub(r"^ +", "", story, flags=re.MULTILINE))
    story = re.sub(r'"([^"]*)"', "‘\\1’", re.sub(r"(?<=\w)'(?=\w)", "’", story))
    story = re.sub(r"\n{3,}", "\n\n", story.replace("`", "“").replace("'", "”").replace("--", "—")).strip() + "\n"
    counting = "".join("a" * n + "b" * n for n in (60, 25, 8, 40))
    return [
        Passage("story", "Alice, chapters I and II", story),
        *bundled,
        Passage("counting", "60 a's, then 60 b's; and shorter words", counting),
        Passage("thousand", "1,000 a's, then 1,000 b's", "a" * 1000 + "b" * 1000),
        Passage("hello", "hello", "hello"),
    ]


class Session:
    """State of the explorer for one model.

    kind                kind of the model, such as bilm or lm
    texts               passages, and the name of the initial one
    named               cells with a name, from the model folder
    precomputed_text    name of the text that precomputed answers are about; empty if there are none
    extras              files and models given beside the model
    """

    def __init__(self, model: SequenceModel, name: str, texts: TextStore | None = None):
        self.model, self.name = model, name
        self.kind = model.kind
        self.texts = texts or TextStore()
        self.named: list[NamedCell] = []
        self.folder, self.precomputed_text = Path(), ""
        self.extras = Extras()
        self.states: OrderedDict[tuple[int, ...], Any] = OrderedDict()  # after recent texts of `write`
        self.ngrams: OrderedDict[tuple[str, int], LanguageModel] = OrderedDict()  # by text and order
        self.companions: dict[str, Session] = {}
        self.readers: OrderedDict[str, PagedReader] = OrderedDict()
        self.lock = threading.RLock()  # one thread at a time runs the network and fills the caches
        self._precomputed: Answer | None = None

    @classmethod
    def open(
        cls, source: str, *, device: str = "auto", tokenizer: Literal["words", "whitespace"] | None = None
    ) -> "Session":
        """Open a model folder or an installed model; `tokenizer` overrides how raw text is split into words."""
        bundled = find_example(source)
        folder = find_installed(source) or Path(source)
        model = load(source, device=device)
        mixes = {}
        if isinstance(model, Task) and model.features.bilm is not None:  # of a task with ELMo, explore the biLM
            mixes, model = {source: get_layer_mixes(model)}, model.features.bilm
        if not isinstance(model, SequenceModel):
            raise ModelError(f"{source} is not a language model (lm, bilm); relmo explore needs one.")
        session = cls(model.with_tokenizer(tokenizer), source)
        session.extras.layer_mixes |= mixes
        if session.model.is_recurrent:  # else it can only write
            reader = PagedReader(session.model, read(session.model, "a"))  # fails early if layers cannot be traced
            for cell in read_cells(folder):
                with suppress(SettingError):  # another network's unit
                    reader.check_unit(parse_unit(cell.unit))
                    session.named.append(cell)
        if bundled is not None and bundled.text in session.texts.passages:
            session.texts.initial, session.folder, session.precomputed_text = bundled.text, folder, bundled.text
        elif session.model.reads_sentences:
            session.texts.initial = "sentences"
        return session

    @property
    def initial_unit(self) -> str:
        """Address of the unit that is shown at first: a named cell if there is one."""
        states = self.reader(self.texts.initial).recorder.stack.layers[0].cell.unit_states
        return self.named[0].unit if self.named else f"{states[-1]}0.0"

    def set_text(self, title: str, text: str, language: Language | None = None) -> None:
        """Add the text that the page opens with."""
        self.texts.set_text(title, text, language)

    def add(self, text: str, language: str | None = None) -> Answer:
        """Add a text of the user; the answer has the name by which to request it."""
        with self.lock:
            name = self.texts.add(text, language)
            self.reader(name)  # fails early if the model finds nothing to read
        return {"text": name}

    def document(self, name: str) -> Document:
        """Return a text as the model reads it."""
        passage = self.texts.get_passage(name)
        return read(self.model, self.texts.annotations.get(name, passage.text), language=passage.language)

    def reader(self, name: str) -> PagedReader:
        """Return the reader of a text; the most recently used readers are cached."""
        if name not in self.readers:
            self.readers[name] = PagedReader(self.model, self.document(name))
        self.readers.move_to_end(name)
        while len(self.readers) > MAX_READERS:
            self.readers.popitem(last=False)
        return self.readers[name]

    def suitable_features(self, text: str) -> list[str]:
        """Return the features for this kind of text (code, words, prose, a's and b's) that change in its beginning."""
        document = self.reader(text).document.head(NUM_SYMBOLS)
        if {*document.text} <= {*COUNTING_SYMBOLS}:
            names: tuple[str, ...] = ("surplus",)
        elif self.model.reads_sentences:
            names = WORDS
        else:
            names = CODE if self.texts.get_passage(text).language else PROSE
        return [name for name in names if np.ptp(tracks(document, [name])[name]) > 0]

    def answer(self, endpoint: str, params: Params) -> Answer:
        """Answer a request; parameters are strings, as in a query."""
        from relmo.explorer.endpoints import ENDPOINTS

        if endpoint not in ENDPOINTS:
            raise SettingError(f"Unknown endpoint {endpoint[:40]!r}.")
        if "of" in params:
            with self.lock:
                companion = self.companion(params["of"])
            return companion.answer(endpoint, {name: text for name, text in params.items() if name != "of"})
        if endpoint in ("overview", "cell"):
            with self.lock:
                reader = self.reader(Query(params).text)
            reader.read_text()  # slow; other requests are answered meanwhile
        with self.lock:
            return ENDPOINTS[endpoint](self, Query(params))

    def companion(self, name: str) -> "Session":
        """Return the session of a model that was given beside this one, with the same texts."""
        if name not in self.extras.models:
            raise SettingError(f"Unknown companion model {name[:80]!r}.")
        if name not in self.companions:
            self.companions[name] = Session(self.extras.model(name), name, self.texts)
        return self.companions[name]

    def precomputed(self) -> Answer:
        """Return the precomputed answers by name; those about untrained networks come from any model of the text."""
        if self._precomputed is None:
            answers = read_answers(self.folder / ANSWERS_FILE) if self.precomputed_text else {}
            if self.precomputed_text and "fresh" not in answers:
                models = [model for model in installed_examples() if model.text == self.precomputed_text]
                shared = read_answers(models[0].folder / ANSWERS_FILE) if models else {}
                answers |= {name: answer for name, answer in shared.items() if name == "fresh"}
            self._precomputed = answers
        return self._precomputed

    def peers(self) -> list[Answer]:
        """Return the models to compare with: bundled ones trained on the same task, and companions."""
        bundled = find_example(self.name)
        group = bundled.group if bundled else ""
        names = [model.name for model in installed_examples() if group and model.group == group]
        companions = self.extras.about(self.kind)["beside"]
        return [{"model": name, "name": name} for name in names if name != self.name] + [
            {"of": name, "name": name} for name in companions
        ]


def answer_key(model: str, endpoint: str, params: Params) -> str:
    """Return the key of an answer in a bundle: the request for it."""
    return f"{endpoint}?{urlencode(sorted({'model': model, **params}.items()))}"


def find_busiest(track: np.ndarray, size: int) -> int:
    """Return the start of the window of this size in which a feature changes most and is on about half of the time."""
    if len(track) <= size:
        return 0
    changes = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(track)) > 0)])
    changes_inside = changes[size - 1 :] - changes[: len(changes) - size + 1]
    level = np.convolve(track, np.ones(size), "valid") / size
    imbalance = np.abs(level - (track.min() + track.max()) / 2) / (np.ptp(track) or 1.0)
    return int(np.argmax(np.minimum(changes_inside, 8) - 10 * imbalance))


def cut_window(document: Document, values: np.ndarray, track: np.ndarray, begin: int, size: int) -> Answer:
    """Return the symbols, a unit's values and the scaled truth of a window of the text."""
    window = slice(begin, begin + size)
    return {
        "first": begin,
        "symbols": document.symbols[window],
        "values": np.round(values[window].astype(float), 3).tolist(),
        "truth": np.round((track[window] - track.min()) / (np.ptp(track) or 1.0), 3).tolist(),
    }
