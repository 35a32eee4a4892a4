"""What can be asked of a model over HTTP: the verbs of the command line, with the same names and defaults.

A verb reads a request (`read`), knows how the requests of many clients are answered together (`answer`), and has its
fields in words (`fields`): a field that is not among them is an error, and the description of the service
(openapi.py) is made of them. Which verbs a model has follows from its methods, so a new task needs nothing here.
"""

import base64
import difflib
import inspect
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from relmo.embedding.engine import pool
from relmo.errors import SettingError, shown
from relmo.settings.arguments import check_sentence, check_text, check_whole, typed
from relmo.settings.embedding import EmbedOptions

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.models.lm import GrowingTexts, LanguageModel
    from relmo.tasks.task import Task

Fields = dict[str, dict[str, Any]]
TOKENIZER: dict[str, Any] = {
    "description": "How strings are split into words: words, by relmo's tokenizer; whitespace, for text that is "
    "tokenised already. The model's own where it is not given.",
    "enum": ["words", "whitespace"],
}
SENTENCES = {
    "description": "Sentences: each a string, which the model's tokenizer splits, or a list of words.",
    "type": "array",
    "items": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}
MODEL: Fields = {
    "model": {
        "description": "The name of a model; the first one that can do what is asked where it is not given.",
        "type": "string",
    }
}


class Asked(NamedTuple):
    """What a request asks: things to answer one by one, and how. Requests with the same options go together."""

    items: list[Any]
    options: Hashable


class Verb:
    """Something that a model can be asked; a subclass fills in the rest."""

    name: ClassVar[str]
    summary: ClassVar[str]
    fields: Fields
    example: ClassVar[dict[str, Any]]

    def __init__(self, name: str, model: Any):
        self.model = model
        self.called = json.dumps(name, ensure_ascii=False).encode()

    def check_fields(self, given: Mapping[str, Any]) -> None:
        """Raises where a field is not known."""
        known = [*MODEL, *self.fields]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
                raise SettingError(f"{self.name} knows no field {shown(name)}{hint}")

    def words(self, given: Mapping[str, Any]) -> int:
        """About how many words a request gives and asks for."""
        return count_words([given.get(name) for name in self.fields])

    def read(self, given: Mapping[str, Any]) -> Asked:
        """What a request asks, checked."""
        raise NotImplementedError

    def answer(self, options: Any, requests: Sequence[list[Any]]) -> list[bytes]:
        """The answers to requests, each a JSON object."""
        raise NotImplementedError

    def written(self, results: Sequence[bytes]) -> bytes:
        """The answer to a request."""
        return b'{"model": %b, "results": [%b]}' % (self.called, b", ".join(results))


def count_words(value: Any) -> int:
    """About how many words there are in what was given: what stands between white space, and where that is less than
    one word for five characters, as in text without spaces, a fifth of the characters."""
    if isinstance(value, str):
        return max(value.count(" ") + 1, len(value) // 5)
    if isinstance(value, list):
        return sum(map(count_words, value))
    return 0


def _listed(given: Mapping[str, Any], name: str) -> list[Any]:
    """A list that must be there, and hold something."""
    value = given.get(name)
    if not isinstance(value, list) or not value:
        raise SettingError(f"{name} must be a list of one or more, not {typed(value)}")
    return value


def flag(given: Mapping[str, Any], fields: Fields, name: str) -> bool:
    """True or false; the default where nothing is given."""
    value = given.get(name, fields[name]["default"])
    if not isinstance(value, bool):
        raise SettingError(f"{name} must be true or false, not {typed(value)}")
    return value


def _chosen(given: Mapping[str, Any], fields: Fields, name: str) -> Any:
    """One of some words; the default where none is given."""
    value, choices = given.get(name, fields[name].get("default")), fields[name]["enum"]
    if not isinstance(value, str) or value not in choices:
        raise SettingError(f"{name} is {shown(value)}; it can be {', '.join(choices)}")
    return value


def _splitting(model: Any, given: Mapping[str, Any]) -> Any:
    """The model, which splits strings as the request asks for."""
    asked = {"tokenizer": TOKENIZER}
    return model.splitting(_chosen(given, asked, "tokenizer")) if "tokenizer" in given else model


def _apart(found: Sequence[Any], requests: Sequence[list[Any]]) -> list[Sequence[Any]]:
    """What was found for the things of several requests, for each request by itself."""
    ends = np.cumsum([len(items) for items in requests]).tolist()
    return [found[end - len(items) : end] for items, end in zip(requests, ends, strict=True)]


class VectorOptions(NamedTuple):
    """What is wanted of a sentence: which layers, one vector of them all or not, and how numbers are written."""

    layers: Any
    pooling: str
    format: str


class EmbedVerb(Verb):
    """Vectors of words in their sentences."""

    name = "embed"
    summary = "Contextual vectors of the words of sentences, or one vector a sentence."
    fields: Fields = {  # noqa: RUF012
        "sentences": SENTENCES,
        "tokenizer": TOKENIZER,
        "layers": {
            "description": "all, top, average, or a number: 0 for the words' own vectors, 1 and up for the LSTMs.",
            "anyOf": [{"enum": ["all", "top", "average"]}, {"type": "integer", "minimum": 0}],
            "default": "all",
        },
        "pooling": {
            "description": "mean or max over the words gives one vector a sentence (and layer); none, one a word.",
            "enum": ["none", "mean", "max"],
            "default": "none",
        },
        "format": {
            "description": "numbers: nested lists, to be read back to the same float32. base64: the bytes of float32 "
            "numbers, little-endian, in the order of `shape`; a tenth of the time to write and to read.",
            "enum": ["numbers", "base64"],
            "default": "numbers",
        },
    }
    example: ClassVar[dict[str, Any]] = {
        "sentences": ["The bank of the river.", "A bank lends money."],
        "layers": "top",
    }
    model: "BiLM"

    def read(self, given: Mapping[str, Any]) -> Asked:
        layers = given.get("layers", "all")
        if isinstance(layers, bool | float | list | dict | None):
            raise SettingError(f"layers is {shown(layers)}; it can be all, top, average or a whole number")
        EmbedOptions(layers=layers).check(self.model.network.layer_count)
        options = VectorOptions(layers, *(_chosen(given, self.fields, name) for name in ("pooling", "format")))
        checked = (check_sentence(each, f"sentence {i}") for i, each in enumerate(_listed(given, "sentences"), start=1))
        split = _splitting(self.model, given).tokens
        return Asked([split(each) if isinstance(each, str) else each for each in checked], options)

    def answer(self, options: VectorOptions, requests: Sequence[list[Any]]) -> list[bytes]:
        sentences = [tokens for items in requests for tokens in items]
        vectors = self.model.embed(sentences, layers=options.layers)
        if options.pooling != "none":
            vectors = [pool(each, options.pooling) for each in vectors]
        write = _in_base64 if options.format == "base64" else _in_numbers
        results = [
            b'{"tokens": %b, "shape": %b, "vectors": %b}' % (_json(tokens), _json(found.shape), write(found))
            for tokens, found in zip(sentences, vectors, strict=True)
        ]
        return [self.written(each) for each in _apart(results, requests)]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _in_base64(array: np.ndarray) -> bytes:
    return b'"%b"' % base64.b64encode(array.astype("<f4").tobytes())


def _in_numbers(array: np.ndarray) -> bytes:
    """Nested lists. Nine digits of each number give the same float32 back."""
    if array.ndim > 1:
        return b"[%b]" % b", ".join(map(_in_numbers, array))
    return b"[%b]" % (b", ".join([b"%.9g"] * len(array)) % tuple(array.tolist()))


class PredictVerb(Verb):
    """What a task's model says: the records that `relmo predict --json` prints."""

    name = "predict"
    summary = "What a task's model says of each input: tags, labels, spans, scores, texts, as `relmo predict --json`."
    fields: Fields = {  # noqa: RUF012
        "inputs": {
            "description": "What the model is asked: a string is read as a line of `relmo predict` (two sentences with "
            "a tab between them for a model of pairs), anything else as the Python method `predict` takes it: a list "
            "of words, a pair of sentences, and so on.",
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        },
        "tokenizer": TOKENIZER,
    }
    example: ClassVar[dict[str, Any]] = {"inputs": ["Anna lives in Berlin."]}
    model: "Task[Any, Any]"

    def read(self, given: Mapping[str, Any]) -> Asked:
        model = _splitting(self.model, given)
        return Asked([self._asked(model, each) for each in _listed(given, "inputs")], self.name)

    @staticmethod
    def _asked(model: "Task[Any, Any]", given: Any) -> Any:
        if isinstance(given, str):
            return model.read_line(given)
        if isinstance(given, list) and len(given) == 2 and not isinstance(given[1], str):
            given = tuple(given)  # Python's pairs; JSON has lists alone. Two words are a sentence
        return model.ask(given)

    def answer(self, options: Any, requests: Sequence[list[Any]]) -> list[bytes]:
        examples = [example for items in requests for example in items]
        records = [_json(found.to_dict()) for found in self.model.answer(examples)]
        return [self.written(each) for each in _apart(records, requests)]


class SurprisalVerb(Verb):
    """How surprising each word is: the rows of `relmo surprisal`."""

    name = "surprisal"
    summary = "A row a word: surprisal and entropy in bits, and its place in the text."
    fields: Fields = {  # noqa: RUF012
        "sentences": SENTENCES,
        "tokenizer": TOKENIZER,
        "context": {
            "description": "text: the state is carried from sentence to sentence. sentence: each is read by itself.",
            "enum": ["text", "sentence"],
            "default": "text",
        },
        "direction": {
            "description": "Bidirectional models: a word given the words before it, or given those after it.",
            "enum": ["forward", "backward"],
            "default": "forward",
        },
        "rows": {
            "description": "What a row is: a word as relmo's tokenizer splits text, or what is between white space; "
            "as the model splits text where it is not given.",
            "enum": ["words", "whitespace"],
        },
        "space": {
            "description": "Models of characters: the white space after a word counts to it, or that before it.",
            "enum": ["after", "before"],
        },
        "ends": {
            "description": "Whether the ends of sentences are rows of their own.",
            "type": "boolean",
            "default": False,
        },
    }
    example: ClassVar[dict[str, Any]] = {"sentences": ["The horse raced past the barn fell."]}

    def __init__(self, name: str, model: Any):
        super().__init__(name, model)
        known = inspect.signature(model.surprisal).parameters.values()
        if all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in known):  # what has a meaning for this model
            names = {"sentences", "tokenizer", *(each.name for each in known)}
            self.fields = {name: field for name, field in self.fields.items() if name in names}

    def read(self, given: Mapping[str, Any]) -> Asked:
        options = {"ends": flag(given, self.fields, "ends")}
        _splitting(self.model, given)  # an error now where it has none
        names = ("context", "direction", "rows", "space", "tokenizer")
        options |= {name: _chosen(given, self.fields, name) for name in names if name in given}
        sentences = enumerate(_listed(given, "sentences"), start=1)
        checked = [check_sentence(each, f"sentence {number}") for number, each in sentences]
        return Asked(checked, tuple(sorted(options.items())))

    def answer(self, options: Any, requests: Sequence[list[Any]]) -> list[bytes]:
        """Sentences that are read by themselves are read together; a text is read from its beginning to its end."""
        asked = dict(options)
        if asked.get("context", "text") == "text":
            return [self.written([_json(row) for row in self._rows(items, asked)]) for items in requests]
        rows = self._rows([sentence for items in requests for sentence in items], asked)
        found, first = [], 1
        for items in requests:
            lines = range(first, first + len(items))
            own = [row | {"line": row["line"] - first + 1} for row in rows if row["line"] in lines]
            found.append(self.written([_json(row) for row in own]))
            first += len(items)
        return found

    def _rows(self, sentences: list[Any], asked: dict[str, Any]) -> list[dict[str, Any]]:
        model = self.model.splitting(asked.pop("tokenizer")) if "tokenizer" in asked else self.model
        columns = model.surprisal(sentences, **asked).to_dict()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class GenerateVerb(Verb):
    """Text from a language model, as it grows."""

    name = "generate"
    summary = (
        "Text from a language model. Streamed, a JSON object a line: `added` to a `sample`, or its whole `text` where "
        "a word changed what stood before it, and at last all `texts`."
    )
    fields: Fields = {  # noqa: RUF012
        "prompt": {"description": "What the text begins with.", "type": "string", "default": ""},
        "limit": {"description": "Symbols at most.", "type": "integer", "minimum": 1, "default": 500},
        "samples": {"description": "How many texts.", "type": "integer", "minimum": 1, "maximum": 64, "default": 1},
        "seed": {"description": "The same seed gives the same text.", "type": "integer", "minimum": 0, "default": 0},
        "temperature": {
            "description": "Below 1 the probable becomes more probable; 0 is greedy.",
            "type": "number",
            "minimum": 0,
            "default": 1.0,
        },
        "top_k": {"description": "Choose among the k most probable symbols.", "type": "integer", "minimum": 1},
        "top_p": {"description": "Choose among the most probable that hold p.", "type": "number", "maximum": 1},
        "unknown": {"description": "Let <unk> come up too.", "type": "boolean", "default": False},
        "stream": {"description": "Lines as it grows, or one object at its end.", "type": "boolean", "default": True},
    }
    example: ClassVar[dict[str, Any]] = {"prompt": "The ", "limit": 80, "seed": 3}
    model: "LanguageModel"

    def words(self, given: Mapping[str, Any]) -> int:
        """Those of the prompt, and one for each symbol that is asked for."""
        limit, samples = (given.get(name, self.fields[name]["default"]) for name in ("limit", "samples"))
        check_whole("limit", limit)
        check_whole("samples", samples, most=self.fields["samples"]["maximum"])
        return super().words(given) + min(limit, 1 << 40) * samples

    def begin(self, given: Mapping[str, Any]) -> "GrowingTexts":
        """Texts that are about to grow."""
        check_text(given.get("prompt", ""), "prompt")
        flag(given, self.fields, "unknown")
        for name in ("temperature", "top_p"):
            if not isinstance(given.get(name, 0.5), int | float) or isinstance(given.get(name), bool):
                raise SettingError(f"{name} must be a number, not {typed(given[name])}")
        options: dict[str, Any] = {"prompt": "", "limit": self.fields["limit"]["default"]}
        options |= {name: value for name, value in given.items() if name not in (*MODEL, "stream")}
        return self.model.growing(**options)


def verbs_of(name: str, model: Any) -> dict[str, Verb]:
    """The verbs that a model of this name has, by their names."""
    methods: dict[str, type[Verb]] = {
        "embed": EmbedVerb,
        "read_line": PredictVerb,
        "surprisal": SurprisalVerb,
        "growing": GenerateVerb,
    }
    made = (verb(name, model) for method, verb in methods.items() if hasattr(model, method))
    return {verb.name: verb for verb in made}
