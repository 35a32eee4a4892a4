"""What can be asked of a model over HTTP: the verbs of the command line, with the same names and defaults.

A verb defines the type of its requests (`fields`), which validates the body and is the schema in the description of
the service (openapi.py), reads a request (`read`) and answers the requests of many clients together (`answer`). Which
verbs a model has follows from its methods, so a new task needs nothing here; a biLM without an output layer has no
surprisal.
"""

import base64
import difflib
import inspect
import json
import re
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from relmo.embedding.engine import pool
from relmo.errors import RelmoError, SettingError
from relmo.serve.admission import RefusedRequest
from relmo.settings.arguments import LARGEST_SEED
from relmo.settings.embedding import EmbedOptions
from relmo.settings.serving import ServeLimits

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.models.lm import GrowingTexts, LanguageModel
    from relmo.tasks.task import Task

MAX_SAMPLES = 64
BILM_PREDICTION_COST = 2  # units per token: the softmax over the vocabulary takes longer than the layers
Field = tuple[Any, ...]
"""Name, type and, for an optional field, default."""
Request = Any
"""An instance of a verb's request type."""


def field(name: str, kind: Any, description: str, *default: Any) -> Field:
    """Return a field of a request type; UNSET is the default of a field that may be left out."""
    annotated = Annotated[kind, Meta(description=description)]
    return (name, annotated | UnsetType, UNSET) if default == (UNSET,) else (name, annotated, *default)


MODEL = "Name of the model. By default, the first model that can do what is asked."
SENTENCES = field(
    "sentences",
    Annotated[list[str | list[str]], Meta(min_length=1)],
    "Sentences: each a string, which the model's tokenizer splits, or a list of words.",
)
TOKENIZER = field(
    "tokenizer",
    Literal["words", "whitespace"],
    "How strings are split into words: words, by relmo's tokenizer; whitespace, for text that is already tokenised. "
    "By default, the tokenizer of the model.",
    UNSET,
)


class Asked(NamedTuple):
    """A request that was read: its items, the options (requests with the same options are computed together), its cost
    in units of the model, and the cost of each item if the items are independent of each other."""

    items: list[Any]
    options: Hashable
    units: int
    costs: Sequence[int] = ()

    @property
    def largest_cost(self) -> int:
        """The cost of the most expensive item, or of the whole request if its items depend on each other."""
        return max(self.costs, default=self.units)

    def split(self, size: int) -> "list[Asked]":
        """Return parts of at most `size` units (or one item), so that other requests are computed in between."""
        parts: list[Asked] = []
        for item, cost in zip(self.items, self.costs, strict=False):
            if parts and parts[-1].units + cost <= size:
                parts[-1].items.append(item)
                parts[-1] = parts[-1]._replace(units=parts[-1].units + cost)
            else:
                parts.append(Asked([item], self.options, cost))
        return parts or [self]


class Verb:
    """An operation that a model offers; a subclass fills in the rest."""

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[dict[str, Any]]

    def __init__(self, name: str, model: Any, limits: ServeLimits = ServeLimits()):  # noqa: B008
        self.model, self.limits = model, limits
        self.model_name = name
        self.encoded_name = json.dumps(name, ensure_ascii=False).encode()
        fields = [("model", Literal[name] | UnsetType, UNSET), *self.fields()]
        self.request_type = msgspec.defstruct(self.name, fields, forbid_unknown_fields=True, kw_only=True)
        self.decoder = msgspec.json.Decoder(self.request_type)

    def fields(self) -> list[Field]:
        """Return the fields of a request to this model, `model` aside."""
        raise NotImplementedError

    def schema(self, *, is_default: bool) -> dict[str, Any]:
        """Return the JSON schema of a request; `model` is required unless this model is the default one."""
        (schema,) = msgspec.json.schema_components([self.request_type])[1].values()
        schema["properties"]["model"] |= {"description": MODEL}
        schema["title"] = f"{self.name} with {self.model_name}"
        return schema if is_default else schema | {"required": ["model", *schema.get("required", [])]}

    def decode(self, body: bytes) -> Request:
        """Return the request of a body, validated."""
        try:
            return self.decoder.decode(body)
        except (ValueError, RecursionError) as error:
            raise SettingError(f"{self.name}: {self._explain(str(error))}") from None

    def _explain(self, message: str) -> str:
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL)
        if unknown is None:
            return message
        names = self.request_type.__struct_fields__
        matches = difflib.get_close_matches(unknown[1], names, n=1)
        hint = f"did you mean {matches[0]}?" if matches else f"the fields are {', '.join(names)}"
        return f"unknown field {unknown[1][:60]!r}; {hint}"

    def read(self, request: Request) -> Asked:
        """Return the items, options and cost of a request."""
        raise NotImplementedError

    def answer(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        """Compute the results of several requests with the same options: a list for each request."""
        raise NotImplementedError

    def encode(self, options: Any, results: Sequence[Any]) -> bytes:
        """Return the JSON response with these results."""
        encoded = [self.encode_result(options, result) for result in results]
        return b'{"model": %b, "results": [%b]}' % (self.encoded_name, b", ".join(encoded))

    def encode_result(self, options: Any, result: Any) -> bytes:
        """Return one result as JSON."""
        return _json(result)

    def tokenizer_fields(self) -> list[Field]:
        """Return the field `tokenizer` if the model splits text into words."""
        try:
            self.model.splitting("words")
        except (AttributeError, RelmoError):
            return []
        return [TOKENIZER]

    def splitting(self, request: Request) -> Any:
        """Return the model with the tokenizer that the request asks for."""
        tokenizer = getattr(request, "tokenizer", UNSET)
        return self.model if tokenizer is UNSET else self.model.splitting(tokenizer)


def _by_request(results: Sequence[Any], requests: Sequence[list[Any]]) -> list[list[Any]]:
    """Return the results of each request, given one result for each of their items in order."""
    ends = np.cumsum([len(items) for items in requests]).tolist()
    return [list(results[end - len(items) : end]) for items, end in zip(requests, ends, strict=True)]


class VectorOptions(NamedTuple):
    """What is wanted of a sentence: which layers, one vector of them all or not, and how numbers are written."""

    layers: Any
    pooling: str
    format: str


class EmbedVerb(Verb):
    """Vectors of words in their sentences."""

    name = "embed"
    summary = "Contextual vectors of the words of sentences, or one vector a sentence."
    example: ClassVar[dict[str, Any]] = {
        "sentences": ["The bank of the river.", "A bank lends money."],
        "layers": "top",
    }
    model: "BiLM"

    def fields(self) -> list[Field]:
        top_layer = self.model.network.layer_count - 1
        return [
            SENTENCES,
            *self.tokenizer_fields(),
            field(
                "layers",
                Literal["all", "top", "average"] | Annotated[int, Meta(ge=0, le=top_layer)],
                "all, top, average, or a number: 0 for the word vectors without context, 1 and up for the LSTM layers.",
                "all",
            ),
            field(
                "pooling",
                Literal["none", "mean", "max"],
                "mean or max over the words gives one vector per sentence (and layer); none, one per word.",
                "none",
            ),
            field(
                "format",
                Literal["numbers", "base64"],
                "numbers: nested lists that read back to the same float32. base64: the bytes of float32 numbers, "
                "little-endian, in the order of `shape`; about ten times faster to write and to read.",
                "numbers",
            ),
        ]

    def read(self, request: Request) -> Asked:
        EmbedOptions(layers=request.layers).check(self.model.network.layer_count)
        split = self.splitting(request).tokens
        sentences = [split(each) if isinstance(each, str) else each for each in request.sentences]
        options = VectorOptions(request.layers, request.pooling, request.format)
        costs = [max(1, len(tokens)) for tokens in sentences]
        return Asked(sentences, options, sum(costs), costs)

    def answer(self, options: VectorOptions, requests: Sequence[list[Any]]) -> list[list[Any]]:
        sentences = [tokens for items in requests for tokens in items]
        vectors = self.model.embed(sentences, layers=options.layers)
        if options.pooling != "none":
            vectors = [pool(array, options.pooling) for array in vectors]
        return _by_request(list(zip(sentences, vectors, strict=True)), requests)

    def encode_result(self, options: VectorOptions, result: Any) -> bytes:
        tokens, vectors = result
        encoded = _in_base64(vectors) if options.format == "base64" else _in_numbers(vectors)
        return b'{"tokens": %b, "shape": %b, "vectors": %b}' % (_json(tokens), _json(vectors.shape), encoded)


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
    example: ClassVar[dict[str, Any]] = {"inputs": ["Anna lives in Berlin."]}
    model: "Task[Any, Any]"

    def __init__(self, name: str, model: "Task[Any, Any]", limits: ServeLimits = ServeLimits()):  # noqa: B008
        super().__init__(name, model.with_full_records(), limits)
        if hasattr(self.model, "max_target"):  # a model that writes text
            self.model = self.model.copy(max_target=limits.max_output)

    def fields(self) -> list[Field]:
        input_type: Any = self.model.input_type
        line: Any = str if self.model.line_pattern is None else Annotated[str, Meta(pattern=self.model.line_pattern)]
        inputs = field(
            "inputs",
            Annotated[list[line | input_type], Meta(min_length=1)],
            "Inputs of the model. A string is read as a line of `relmo predict` (two sentences with a tab between them "
            "for a model of pairs), anything else as the Python method `predict` takes it: a list of words, a pair of "
            "sentences, and so on.",
        )
        return [inputs, *self.tokenizer_fields()]

    def read(self, request: Request) -> Asked:
        model = self.splitting(request)
        examples = [self._example(model, item) for item in request.inputs]
        tokenizer = getattr(request, "tokenizer", UNSET)
        costs = [self._cost(model, example) for example in examples]
        return Asked(examples, tokenizer, sum(costs), costs)

    @staticmethod
    def _example(model: "Task[Any, Any]", item: Any) -> Any:
        if isinstance(item, str):
            return model.read_line(item)
        if isinstance(item, list) and len(item) == 2 and not isinstance(item[1], str):
            item = tuple(item)  # Python's pairs; JSON has only lists. Two words are a sentence
        return model.ask(item)

    def _cost(self, model: "Task[Any, Any]", example: Any) -> int:
        """Return the units that an example costs; raise if the source of a model that writes text is too long."""
        read, written = model.workload(example)
        if written and read > self.limits.max_source:
            most = self.limits.max_source
            raise RefusedRequest(413, f"an input has {read:,} units of this model; the maximum is {most:,}")
        return max(1, read + written)

    def answer(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        examples = [example for items in requests for example in items]
        model = self.model if options is UNSET else self.model.splitting(options)
        return _by_request([prediction.to_dict() for prediction in model.answer(examples)], requests)


class SurprisalVerb(Verb):
    """How surprising each word is: the rows of `relmo surprisal`."""

    name = "surprisal"
    summary = "A row a word: surprisal and entropy in bits, and its place in the text."
    example: ClassVar[dict[str, Any]] = {"sentences": ["The horse raced past the barn fell."]}

    def fields(self) -> list[Field]:
        options = [
            field(
                "context",
                Literal["text", "sentence"],
                "text: the state is carried from sentence to sentence. sentence: each starts from the initial state.",
                UNSET,
            ),
            field(
                "direction",
                Literal["forward", "backward"],
                "Bidirectional models: condition a word on the words before it, or on those after it.",
                UNSET,
            ),
            field(
                "rows",
                Literal["words", "whitespace"],
                "What a row is: a word as relmo's tokenizer splits text, or whatever stands between white space. By "
                "default, as the model splits text.",
                UNSET,
            ),
            field(
                "space",
                Literal["after", "before"],
                "Character models: count the white space after a word as part of it, or the one before it.",
                UNSET,
            ),
            field("ends", bool, "Whether the ends of sentences are rows of their own.", False),
        ]
        return [SENTENCES, *self.tokenizer_fields(), *(each for each in options if self._supports(each[0]))]

    def _supports(self, option: str) -> bool:
        """Return whether the model's `surprisal` accepts an option."""
        parameters = inspect.signature(self.model.surprisal).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return True
        if option == "space" and option in parameters:
            return self.model.settings.text.unit == "char"
        return option in parameters

    def read(self, request: Request) -> Asked:
        model = self.splitting(request)
        options = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
        sentences = options.pop("sentences")
        options.pop("model", None)
        weight = BILM_PREDICTION_COST if hasattr(model, "has_output_layer") else 1
        costs = [weight * (model.count_symbols(sentence) + 1) for sentence in sentences]  # the end is predicted too
        is_text = options.get("context", "text") == "text"
        items = list(enumerate(sentences, start=1))
        return Asked(items, tuple(sorted(options.items())), sum(costs), () if is_text else costs)

    def answer(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        """Compute the rows of requests whose items are (line, sentence). Independent sentences are computed together, a
        text from its beginning to its end."""
        arguments = dict(options)
        if arguments.get("context", "text") == "text":
            return [self._rows([sentence for _, sentence in items], arguments) for items in requests]
        rows = self._rows([sentence for items in requests for _, sentence in items], arguments)
        rows_by_sentence: list[list[dict[str, Any]]] = [[] for items in requests for _ in items]
        for row in rows:
            rows_by_sentence[row["line"] - 1].append(row)
        results = []
        for items, sentences in zip(requests, _by_request(rows_by_sentence, requests), strict=True):
            numbered = zip(items, sentences, strict=True)
            results.append([row | {"line": line} for (line, _), sentence in numbered for row in sentence])
        return results

    def _rows(self, sentences: list[Any], options: dict[str, Any]) -> list[dict[str, Any]]:
        model = self.model.splitting(options["tokenizer"]) if "tokenizer" in options else self.model
        options = {name: value for name, value in options.items() if name != "tokenizer"}
        columns = model.surprisal(sentences, **options).to_dict()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class GenerateVerb(Verb):
    """Text from a language model, as it grows."""

    name = "generate"
    summary = (
        "Text from a language model. Streamed, a JSON object a line: `added` to a `sample`, or its whole `text` where "
        "a word changed what stood before it, and at last all `texts`."
    )
    example: ClassVar[dict[str, Any]] = {"prompt": "The ", "limit": 80, "seed": 3}
    model: "LanguageModel"

    def fields(self) -> list[Field]:
        at_least_1, seed = Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=0, le=LARGEST_SEED)]
        return [
            field("prompt", str, "Beginning of the text.", ""),
            field("limit", at_least_1, "Maximum number of symbols to add.", 500),
            field("samples", Annotated[int, Meta(ge=1, le=MAX_SAMPLES)], "Number of texts.", 1),
            field("seed", seed, "The same seed gives the same text.", 0),
            field(
                "temperature",
                Annotated[float, Meta(ge=0)],
                "Values below 1 make probable symbols more probable; 0 is greedy.",
                1.0,
            ),
            field("top_k", at_least_1, "Sample from the k most probable symbols.", UNSET),
            field("top_p", Annotated[float, Meta(gt=0, le=1)], "Sample from the most probable mass p.", UNSET),
            field("unknown", bool, "Whether <unk> may be generated.", False),
            field("stream", bool, "One line per new symbol, or one object at the end.", True),
        ]

    def units(self, request: Request) -> int:
        """Return the cost: the symbols of the prompt, and those that are to be generated."""
        return self.model.count_symbols(request.prompt) + request.limit * request.samples

    def begin(self, request: Request) -> "GrowingTexts":
        """Return the texts of a request before their first symbol."""
        options = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
        return self.model.growing(**{name: options[name] for name in options if name not in ("model", "stream")})


def verbs_of(name: str, model: Any, limits: ServeLimits = ServeLimits()) -> dict[str, Verb]:  # noqa: B008
    """Return the verbs that this model can answer, by name."""
    methods: dict[str, type[Verb]] = {
        "embed": EmbedVerb,
        "read_line": PredictVerb,
        "surprisal": SurprisalVerb,
        "growing": GenerateVerb,
    }
    if not getattr(model, "has_output_layer", True):  # a biLM from original ELMo files gives vectors only
        del methods["surprisal"]
    verbs = (verb(name, model, limits) for method, verb in methods.items() if hasattr(model, method))
    return {verb.name: verb for verb in verbs}
