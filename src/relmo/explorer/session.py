"""A model and texts, and what can be asked of them at once: every answer is plain data that becomes JSON.

    session = Session.open("models/mine")
    session.answer("page", {"text": "alice", "page": "0"})

An answer depends on nothing but the model and what was asked, so a page can keep answers, and a bundle of them is an
exported page. What takes long is in `work`, on a copy of the model: nothing that is done to units there is seen here.
"""

import base64
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.code_features import Language, language_of
from relmo.analysis.core.feature_words import in_words
from relmo.analysis.core.features import FEATURES, Document, read
from relmo.analysis.core.files import read_given
from relmo.analysis.memory.connectivity import connectivity
from relmo.analysis.units.named_cells import NamedCell, read_cells
from relmo.errors import ModelError, SettingError
from relmo.explorer import equations, lines, truth, write
from relmo.explorer.asked import Answer, Asked, rounded, scale, text_of, unit_of, whole_number
from relmo.explorer.cells import around, contexts, histogram, opening_event, opening_prompt, weights
from relmo.explorer.examples import COUNTING, EXAMPLES, Passage, example, passages
from relmo.explorer.extras import Extras, learnt_mixes
from relmo.explorer.reader import PagedReader
from relmo.explorer.ready import READY, read_ready
from relmo.explorer.start import cards
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.cells import cell_class
from relmo.settings.cells import CELLS
from relmo.tasks.task import Task
from relmo.text.conllu import ConlluWord
from relmo.text.corpus import STDIN

LONGEST, SENTENCES = 400_000, 5000  # characters of a text that is given, or sentences of CoNLL-U
READERS = 6  # texts whose numbers are kept
TEXTS = 32  # texts of users that are kept
BINS = 1000  # of the small map of the whole text
MOST = 200  # units that are named in one request
BACK = 400  # symbols before one that a gradient is shown for


class Session:
    """What the explorer holds. Methods that take what was asked give an answer."""

    def __init__(self, model: LanguageModel | BiLM, name: str):
        self.model, self.name = model, name
        self.passages: OrderedDict[str, Passage] = OrderedDict((each.name, each) for each in passages())
        self.own: OrderedDict[str, Passage] = OrderedDict()
        self.annotated: dict[str, list[list[ConlluWord]]] = {}
        self.first, self.named, self.folder = next(iter(self.passages)), list[NamedCell](), Path()
        self.ready_text = ""  # the text that answers were made ahead for
        self.made: Answer | None = None  # these answers, when they have been read
        self.extras = Extras()
        self.pen: write.Pen | None = None
        self.others: dict[str, Session] = {}
        self.readers: OrderedDict[str, PagedReader] = OrderedDict()
        self.lock = threading.RLock()  # a network is run by one thread at a time, and readers fill themselves

    @classmethod
    def open(
        cls, source: str, *, device: str = "auto", tokenizer: Literal["words", "whitespace"] | None = None
    ) -> "Session":
        """The model of a folder, or of an example that ships; `tokenizer` is how it splits raw text into words."""
        known = example(source)
        model = load(str(known.folder) if known else source, device=device)
        learnt = {}
        if isinstance(model, Task) and model.features.bilm is not None:  # of a task with ELMo, the model it reads
            learnt, model = {source: learnt_mixes(model)}, model.features.bilm
        if not isinstance(model, LanguageModel | BiLM):
            raise ModelError(f"{source}: is not a language model (lm, bilm), which relmo explore takes")
        model = model.splitting(tokenizer)
        session = cls(model, source)
        session.extras.learnt |= learnt
        if session.recurrent:
            PagedReader(model, read(model, "a"))  # says at once where its layers cannot be looked into
        folder = known.folder if known else Path(source)
        session.named = [cell for cell in read_cells(folder) if session.has(cell.unit)]
        if known is not None and known.text in session.passages:
            session.first, session.folder, session.ready_text = known.text, folder, known.text
        elif isinstance(model, BiLM):
            session.first = "sentences"
        return session

    @property
    def recurrent(self) -> bool:
        """Whether there are units to look into. A model of a fixed window has none; it writes."""
        return isinstance(self.model, BiLM) or isinstance(self.model.network, RecurrentLM)

    def beside(self, name: str) -> "Session":
        """A session with one of the models that were named beside this one, and with the same texts."""
        if name not in self.extras.models:
            raise SettingError(f"{name[:80]!r} is not among the models that were named beside this one")
        if name not in self.others:
            self.others[name] = self.with_texts(Session(self.extras.model(name), name))
        return self.others[name]

    def with_texts(self, other: "Session") -> "Session":
        """The other session, with the texts of this one."""
        other.passages, other.own, other.annotated = self.passages, self.own, self.annotated
        other.first = self.first
        return other

    def has(self, unit: str) -> bool:
        """Whether the network has a unit of this name."""
        try:
            PagedReader(self.model, read(self.model, "a")).checked(unit_of({"unit": unit}))
        except SettingError:
            return False
        return True

    @property
    def opened(self) -> str:
        """The unit that is shown first: one with a name, where there is any."""
        memory = self.reader(self.first).recorder.stack.layers[0].cell.memory
        return self.named[0].unit if self.named else f"{memory}0.0"

    def give(self, title: str, text: str, language: Language | None = None) -> None:
        """Adds the text that the explorer opens with."""
        self.passages["given"] = Passage("given", title, _checked_text(text), language)
        self.first = "given"

    def annotate(self, title: str, words: list[list[ConlluWord]]) -> None:
        """As `give`, the sentences of a CoNLL-U file."""
        self.annotated["given"] = words
        self.give(title, " ".join(word.form for sentence in words for word in sentence)[:LONGEST])

    def give_file(self, file: str) -> None:
        """As `give`, the beginning of a file; - is standard input."""
        title = "standard input" if file == STDIN else Path(file).name
        given = read_given(file, SENTENCES)
        if isinstance(given, str):
            self.give(title, given[:LONGEST], language_of(file))
        else:
            self.annotate(title, given)

    def add(self, text: str, language: str | None = None) -> Answer:
        """Keeps a text of a user's. -> its name, by which it is asked for."""
        if language not in (None, "python", "c"):
            raise SettingError(f"language {language[:40]}: it can be python or c")
        name = "own-" + hashlib.sha256(f"{language}\0{text}".encode()).hexdigest()[:16]
        with self.lock:
            self.own[name] = Passage(name, "Your text", _checked_text(text), language)  # type: ignore[arg-type]
            self.own.move_to_end(name)
            while len(self.own) > TEXTS:
                self.own.popitem(last=False)
            self.reader(name)  # says at once where there is nothing to read
        return {"text": name}

    def passage(self, name: str) -> Passage:
        """A text by its name."""
        found = self.own.get(name) or self.passages.get(name)
        if found is None:
            raise SettingError(f"there is no text {name[:40]!r} (any more); open it again")
        return found

    def document(self, name: str, model: LanguageModel | BiLM | None = None) -> Document:
        """A text as a model reads it."""
        passage = self.passage(name)
        given = self.annotated.get(name, passage.text)
        return read(model or self.model, given, language=passage.language)

    def reader(self, name: str) -> PagedReader:
        """The reader of a text; those used last are kept."""
        if name not in self.readers:
            self.readers[name] = PagedReader(self.model, self.document(name))
        self.readers.move_to_end(name)
        while len(self.readers) > READERS:
            self.readers.popitem(last=False)
        return self.readers[name]

    def answer(self, what: str, asked: Asked) -> Answer:
        """What is asked for by name, with its parameters as text."""
        if what not in ANSWERS:
            raise SettingError(f"there is nothing called {what[:40]!r} to ask for")
        if "of" in asked:
            with self.lock:
                other = self.beside(asked["of"])
            return other.answer(what, {name: value for name, value in asked.items() if name != "of"})
        if what in ("overview", "cell"):
            with self.lock:
                reader = self.reader(text_of(asked))
            reader.fill()  # takes long, and leaves the others their turn
        with self.lock:
            return ANSWERS[what](self, asked)

    def about(self, asked: Asked) -> Answer:
        """The model, the texts, the features that have a name; and where `opening` is asked for what is shown first, so
        that a page has it at once."""
        if not self.recurrent:
            return self._about_window()
        reader = self.reader(self.first)
        stack, bidirectional = reader.recorder.stack, isinstance(self.model, BiLM)
        cell = stack.layers[0].cell
        opened = self.opened
        first = {"text": self.first, "page": "0"}
        asks = [("page", first), ("values", first | {"unit": opened})] if "opening" in asked else []
        return {
            "name": self.name,
            "kind": "bilm" if bidirectional else "lm",
            "cell": cell.name,
            "cells": {name: _turned(name) for name in sorted(CELLS)},
            "unit": "word" if bidirectional else self.model.settings.text.unit,  # type: ignore[union-attr]
            "layers": len(stack.layers),
            "directions": stack.directions,
            "states": reader.states,
            "words": cell.words,
            "carried": list(cell.states),
            "memory": cell.memory,
            "gates": cell.gate_names,
            "parameters": self.model.parameter_count(),
            "texts": self._texts(),
            "first": self.first,
            "opened": opened,
            "mode": "centred" if self.named else "value",
            "named": [
                asdict(cell)
                | {
                    "words": in_words(cell.feature),
                    "event": self.event_of(cell.unit),
                    "prompt": opening_prompt(cell.feature, self.model),
                }
                | shown_strength(cell)
                for cell in self.named
            ],
            "shipped": self.first == self.ready_text,
            "usual": truth.usual_features(self, self.first),
            "features": [
                {"name": name, "about": summary(made), "words": in_words(name)} for name, made in FEATURES.items()
            ],
            "limit": {"characters": LONGEST, "symbols": reader.most},
            "examples": _offered(),
            "alike": self.alike(),
            "compared": self.compared,
            "prompt": "" if bidirectional else write.first_prompt(self),
            "number_units": lines.number_units(self.name),
            **self.extras.about("bilm" if bidirectional else "lm"),
            "answers": {key(self.name, what, given): self.answer(what, given) for what, given in asks},
        }

    def _about_window(self) -> Answer:
        """A model without recurrent layers, which can be seen writing."""
        assert isinstance(self.model, LanguageModel)
        settings = self.model.settings
        return {
            "name": self.name,
            "kind": "window",
            "cell": settings.model.cell,
            "unit": settings.text.unit,
            "window": settings.model.order - 1,
            "parameters": self.model.parameter_count(),
            "texts": self._texts(),
            "first": self.first,
            "examples": _offered(),
            "alike": [],
            "prompt": write.first_prompt(self),
            "number_units": [],
            **self.extras.about("lm"),
            "answers": {},
        }

    def _texts(self) -> list[Answer]:
        return [
            {"name": p.name, "title": p.title, "length": len(p.text), "tagged": p.name in self.annotated}
            for p in self.passages.values()
        ]

    @property
    def compared(self) -> str:
        """What Compare sets beside this model at first: one that has read the same where one ships, else counting."""
        same = [each["model"] for each in self.alike() if "model" in each]
        return same[0] if same and self.first == "story" else "n-gram"

    def alike(self) -> list[Answer]:
        """Models to be set beside this one: examples that were taught the same, and those that the user named."""
        kind = (example(self.name) or EXAMPLES[0]).alike if example(self.name) else ""
        taught = [each.name for each in EXAMPLES if kind and each.alike == kind and example(each.name) is not None]
        named = self.extras.about("bilm" if isinstance(self.model, BiLM) else "lm")["beside"]
        others = [{"model": name, "name": name} for name in taught if name != self.name]
        return others + [{"of": name, "name": name} for name in named]

    def event_of(self, unit: str) -> str:
        """Return the symbol around which a unit is shown first: one that its feature is about."""
        feature = next((cell.feature for cell in self.named if cell.unit == unit), "")
        if not feature and "surplus" in truth.usual_features(self, self.first):
            feature = "surplus"
        return opening_event(feature, self.reader(self.first).document)

    def page(self, asked: Asked) -> Answer:
        """A page's symbols, and what stands between them where they are words."""
        reader, number = self.reader(text_of(asked)), whole_number(asked, "page")
        reader.page(number)
        first, last = reader.bounds[number : number + 2]
        passage, spans = self.passage(text_of(asked)), reader.document.spans[first:last]
        answer: Answer = {
            "title": passage.title,
            "pages": len(reader),
            "first": first,
            "symbols": reader.symbols(number),
            "total": len(reader.document),
            "left_out": reader.left_out,
        }
        if self.model.settings.text.__dict__.get("unit") != "char":
            text, before = reader.document.text, int(reader.document.spans[first - 1, 1]) if first else 0
            begins = [before, *spans[:-1, 1].tolist()]
            answer["gaps"] = [text[a:b] for a, b in zip(begins, spans[:, 0].tolist(), strict=True)]
        return answer

    def expected(self, asked: Asked) -> Answer:
        """How surprising each symbol of a page was, in bits, and what was expected after it."""
        found = self.reader(text_of(asked)).expected(whole_number(asked, "page"))
        if found is None:
            return {"bits": [], "likely": []}
        likely = [[[symbol, round(p, 3)] for symbol, p in each] for each in found.likely]
        return {"bits": rounded(found.bits, 2), "likely": likely}

    def values(self, asked: Asked) -> Answer:
        """A unit on a page, with the size that gets the full colour."""
        made = self.ahead().get("opening", {})  # what a page opens with: colours before the text has been read
        if asked.get("unit") == made.get("unit") and text_of(asked) == self.ready_text and asked.get("page") == "0":
            return {"values": made["values"], "scale": made["scale"]}
        found = self.reader(text_of(asked)).values(whole_number(asked, "page"), unit_of(asked))
        return {"values": rounded(found), "scale": scale(found)}

    def units(self, asked: Asked) -> Answer:
        """All units of a state of a layer on a page, in steps of a 127th of each one's largest."""
        reader = self.reader(text_of(asked))
        state, layer = asked.get("state", "h"), whole_number(asked, "layer")
        reader.checked(Unit(state, layer, 0))
        return _in_steps(reader.page(whole_number(asked, "page")).states[state][layer])

    def some(self, asked: Asked) -> Answer:
        """As `units`, those that are named, with commas between."""
        reader, page = self.reader(text_of(asked)), whole_number(asked, "page")
        names = asked.get("units", "").split(",")[:MOST]
        columns = [reader.values(page, unit_of({"unit": name})) for name in names]
        return {"units": names, **_in_steps(np.stack(columns, axis=1))}

    def strip(self, asked: Asked) -> Answer:
        """Everything of one unit on a page: its states and its gates."""
        reader = self.reader(text_of(asked))
        unit, found = reader.checked(unit_of(asked)), {}
        for name in reader.states:
            same = unit._replace(state=name)
            if unit.number < reader.recorder.stack.layers[unit.layer].sizes[name]:
                found[name] = rounded(reader.values(whole_number(asked, "page"), same), 3)
        return {"states": found}

    def overview(self, asked: Asked) -> Answer:
        """A unit over the whole text: a map of it, a histogram, and the places where it is highest and lowest."""
        reader, unit = self.reader(text_of(asked)), unit_of(asked)
        values = reader.whole(unit)
        bins = min(BINS, len(values))
        sums = np.add.reduceat(values, np.linspace(0, len(values), bins, endpoint=False).astype(int))
        counts = np.diff([*np.linspace(0, len(values), bins, endpoint=False).astype(int), len(values)])
        return {
            "map": rounded(sums / counts, 3),
            "scale": scale(values),
            "total": len(values),
            "bounds": reader.bounds[:-1],  # where pages begin
            "histogram": histogram(values),
            "mean": round(float(values.mean(dtype=np.float64)), 4),
            "sd": round(float(values.std(dtype=np.float64)), 4),
            "high": contexts(reader.document, values, 20),
            "low": contexts(reader.document, -values, 20),
        }

    def cell(self, asked: Asked) -> Answer:
        """What a unit is wired to, what its gates do, and its course around an event of the text."""
        reader = self.reader(text_of(asked))
        unit, saturation = reader.checked(unit_of(asked)), {}
        for gate in reader.recorder.stack.layers[unit.layer].cell.gate_names:
            if unit.number < reader.recorder.stack.layers[unit.layer].sizes[gate]:
                values = reader.values(0, unit._replace(state=gate))
                saturation[gate] = [round(float(share), 3) for share in ((values < 0.1).mean(), (values > 0.9).mean())]
        event = asked.get("event", "\n")[:64]
        return {
            "saturation": dict(sorted(saturation.items())),
            "event": event,
            "around": around(reader.document, reader.whole(unit), event),
            "weights": weights(self.model, reader.recorder.stack, unit),
        }

    def gradient(self, asked: Asked) -> Answer:
        """What the prediction after a symbol hangs on, the symbols before it on the page."""
        reader, at = self.reader(text_of(asked)), whole_number(asked, "at")
        if not 0 <= at < len(reader.document):
            raise SettingError(f"position {at}: the text has the symbols 0 to {len(reader.document) - 1}")
        starts = reader.document.starts
        begin = int(starts[starts <= at][-1]) if isinstance(self.model, BiLM) else max(0, at - BACK)
        after = reader.document.symbols[begin : at + 2]
        found = connectivity(self.model, [after], position=at - begin)
        return {"first": begin, "values": rounded(np.array(found.values)), "symbol": found.symbol, "half": found.half}

    def ready(self, asked: Asked) -> Answer:
        """An answer that was made ahead; None where there is none for this text."""
        what = asked.get("what", "")
        if what == "count":
            return {"result": read_ready(COUNTING).get("count")}
        return {"result": self.ahead().get(what) if text_of(asked) == self.ready_text else None}

    def ahead(self) -> Answer:
        """All answers that were made ahead, by name; networks before training are those of any model of the text."""
        if self.made is None:
            self.made = read_ready(self.folder / READY) if self.ready_text else {}
            same = [each for each in EXAMPLES if each.text == self.ready_text and example(each.name) is not None]
            if same and self.ready_text and "fresh" not in self.made:
                self.made |= {name: it for name, it in read_ready(same[0].folder / READY).items() if name == "fresh"}
        return self.made

    def start(self, asked: Asked) -> Answer:
        """The cards of the first screen."""
        return {"cards": cards()}

    def mixes(self, asked: Asked) -> Answer:
        """What trained tasks that were given have learned to take of each layer."""
        return {"tasks": self.extras.mixes()}


def _offered() -> list[Answer]:
    """The examples that are there."""
    some = [each for each in EXAMPLES if example(each.name) is not None]
    return [{"name": each.name, "about": each.about, "text": each.text} for each in some]


def key(model: str, what: str, asked: Asked) -> str:
    """The name of an answer: the request for it."""
    return f"{what}?{urlencode(sorted({'model': model, **asked}.items()))}"


def summary(made: Callable[..., Any]) -> str:
    """A function's docstring in one line."""
    return " ".join((made.__doc__ or "").split())


def shown_strength(cell: NamedCell) -> Answer:
    """How strong a named cell's evidence is, in a word."""
    return {"strength": cell.strength}


def _turned(cell: str) -> str | None:
    """What is turned of a fresh network of this cell: the forget gate's bias, else the size of recurrent weights."""
    if "forget_bias" in CELLS[cell]:
        return "forget_bias"
    return "spectral_radius" if cell_class(cell).recurrent else None


def _checked_text(text: str) -> str:
    """A text that can be read."""
    if not text.strip():
        raise SettingError("the text is empty; give one with symbols in it")
    if len(text) > LONGEST:
        raise SettingError(f"the text has {len(text):,} characters; at most {LONGEST:,} can be looked at at a time")
    return text.replace("\r\n", "\n").replace("\0", "\ufffd")


def _in_steps(array: np.ndarray) -> Answer:
    """Units' values (T, U) in steps of a 127th of each one's largest, unit by unit."""
    largest = np.abs(array).max(axis=0) + 1e-12
    steps = np.rint(array / largest * 127).astype(np.int8).T
    data = base64.b64encode(np.ascontiguousarray(steps).tobytes()).decode()
    scales = [scale(column) for column in array.T]
    return {"largest": rounded(largest), "scales": scales, "data": data, "symbols": len(array)}


ANSWERS: dict[str, Callable[[Session, Asked], Answer]] = {
    "about": Session.about,
    "page": Session.page,
    "expected": Session.expected,
    "values": Session.values,
    "units": Session.units,
    "some": Session.some,
    "strip": Session.strip,
    "overview": Session.overview,
    "cell": Session.cell,
    "gradient": Session.gradient,
    "truth": truth.truth,
    "features": truth.features,
    "ready": Session.ready,
    "start": Session.start,
    "mixes": Session.mixes,
    "step": equations.step,
    "next": write.next_symbol,
    "beam": write.beam_tree,
    "ngrams": write.ngram_samples,
    "conditions": lines.conditions,
    "layers": lines.layers,
}
"""What can be asked for, by name."""
