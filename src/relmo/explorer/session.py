"""Session: a model, its texts and readers, and the endpoints that answer requests about them.

    session = Session.open("models/mine")
    session.answer("page", {"text": "alice", "page": "0"})

Answers are plain data and depend only on the model and the parameters: a page can cache them, and a bundle of them
is an exported page. Long computations are in `work`, on a copy of the model, so that interventions are never seen here.
"""

import threading
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from relmo.analysis.core.code_features import Language
from relmo.analysis.core.features import Document, read
from relmo.analysis.units.named_cells import NamedCell, read_cells
from relmo.errors import ModelError, SettingError
from relmo.explorer.examples import find_example, installed_examples
from relmo.explorer.extras import Extras, get_layer_mixes
from relmo.explorer.params import Answer, Params, get_text_name, parse_unit
from relmo.explorer.precomputed import ANSWERS_FILE, read_answers
from relmo.explorer.reader import PagedReader
from relmo.explorer.texts import TextStore
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.tasks.task import Task

MAX_READERS = 6  # cached readers


class Session:
    """State of the explorer for one model.

    texts               passages, and the name of the initial one
    named               cells with a name, from the model folder
    precomputed_text    name of the text that precomputed answers are about; empty if there are none
    extras              files and models given beside the model
    """

    def __init__(self, model: LanguageModel | BiLM, name: str, texts: TextStore | None = None):
        self.model, self.name = model, name
        self.texts = texts or TextStore()
        self.named: list[NamedCell] = []
        self.folder, self.precomputed_text = Path(), ""
        self.extras = Extras()
        self.writer: Any = None  # created by `write`
        self.companions: dict[str, Session] = {}
        self.readers: OrderedDict[str, PagedReader] = OrderedDict()
        self.lock = threading.RLock()  # one thread at a time runs the network and fills the caches
        self.recurrent = isinstance(model, BiLM) or isinstance(model.network, RecurrentLM)  # else it can only write
        self._precomputed: Answer | None = None

    @classmethod
    def open(
        cls, source: str, *, device: str = "auto", tokenizer: Literal["words", "whitespace"] | None = None
    ) -> "Session":
        """Open a model folder or a bundled model; `tokenizer` overrides how raw text is split into words."""
        bundled = find_example(source)
        model = load(str(bundled.folder) if bundled else source, device=device)
        mixes = {}
        if isinstance(model, Task) and model.features.bilm is not None:  # of a task with ELMo, explore the biLM
            mixes, model = {source: get_layer_mixes(model)}, model.features.bilm
        if not isinstance(model, LanguageModel | BiLM):
            raise ModelError(f"{source} is not a language model (lm, bilm); relmo explore needs one.")
        model = model.with_tokenizer(tokenizer)
        session = cls(model, source)
        session.extras.layer_mixes |= mixes
        folder = bundled.folder if bundled else Path(source)
        if session.recurrent:
            reader = PagedReader(model, read(model, "a"))  # fails early if the layers cannot be traced
            session.named = [cell for cell in read_cells(folder) if _has_unit(reader, cell.unit)]
        if bundled is not None and bundled.text in session.texts.passages:
            session.texts.initial, session.folder, session.precomputed_text = bundled.text, folder, bundled.text
        elif isinstance(model, BiLM):
            session.texts.initial = "sentences"
        return session

    def companion(self, name: str) -> "Session":
        """Return the session of a model that was given beside this one, with the same texts."""
        if name not in self.extras.models:
            raise SettingError(f"Unknown companion model {name[:80]!r}.")
        if name not in self.companions:
            self.companions[name] = Session(self.extras.model(name), name, self.texts)
        return self.companions[name]

    @property
    def kind(self) -> str:
        """Kind of the model: bilm or lm."""
        return "bilm" if isinstance(self.model, BiLM) else "lm"

    @property
    def initial_unit(self) -> str:
        """Address of the unit that is shown at first: a named cell if there is one."""
        memory = self.reader(self.texts.initial).recorder.stack.layers[0].cell.memory
        return self.named[0].unit if self.named else f"{memory}0.0"

    def set_text(self, title: str, text: str, language: Language | None = None) -> None:
        """Add the text that the page opens with."""
        self.texts.set_text(title, text, language)

    def give(self, title: str, text: str, language: Language | None = None) -> None:
        """Call `set_text`; deprecated name."""
        warnings.warn("Session.give is deprecated; use set_text.", DeprecationWarning, stacklevel=2)
        self.set_text(title, text, language)

    def add(self, text: str, language: str | None = None) -> Answer:
        """Add a text of the user; the answer has the name by which to request it."""
        with self.lock:
            name = self.texts.add(text, language)
            self.reader(name)  # fails early if the model finds nothing to read
        return {"text": name}

    def document(self, name: str) -> Document:
        """Return a text as the model reads it."""
        return self.texts.get_document(name, self.model)

    def reader(self, name: str) -> PagedReader:
        """Return the reader of a text; the most recently used readers are cached."""
        if name not in self.readers:
            self.readers[name] = PagedReader(self.model, self.document(name))
        self.readers.move_to_end(name)
        while len(self.readers) > MAX_READERS:
            self.readers.popitem(last=False)
        return self.readers[name]

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
                reader = self.reader(get_text_name(params))
            reader.read_text()  # slow; other requests are answered meanwhile
        with self.lock:
            return ENDPOINTS[endpoint](self, params)

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

    @property
    def default_comparison(self) -> str:
        """Name of the model that Compare shows at first: one trained on the same text, else an n-gram model."""
        models = [peer["model"] for peer in self.peers() if "model" in peer]
        return models[0] if models and self.texts.initial == "story" else "n-gram"


def _has_unit(reader: PagedReader, unit: str) -> bool:
    try:
        reader.check_unit(parse_unit(unit))
    except SettingError:
        return False
    return True


def answer_key(model: str, endpoint: str, params: Params) -> str:
    """Return the key of an answer in a bundle: the request for it."""
    return f"{endpoint}?{urlencode(sorted({'model': model, **params}.items()))}"
