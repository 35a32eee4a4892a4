"""Endpoints of a model: the commands embed, predict, surprisal and generate over HTTP, with their defaults.

An endpoint defines the type of its requests (`fields`), which validates the body and is the schema in the OpenAPI
description, parses a request, computes the requests of many clients together, and encodes the response. A model has the
endpoints that its methods allow, so a new task needs nothing here.
"""

import base64
import dataclasses
import difflib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from relmo.config import field_docs
from relmo.embedding.engine import pool
from relmo.errors import RelmoError, SettingError
from relmo.serve.admission import RefusedRequest
from relmo.serve.workers import Batcher, EndpointWorker, ParsedRequest, TextGenerator
from relmo.settings.arguments import MAX_SEED
from relmo.settings.options import EmbedOptions, ServeLimits, SurprisalOptions

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel, SampledTexts
    from relmo.tasks.task import Task

MAX_SAMPLES = 64
BILM_PREDICTION_COST = 2  # units per token: the softmax over the vocabulary takes longer than the layers
Field = tuple[Any, ...]
"""Name, type and, for an optional field, default."""
Request = Any
"""An instance of an endpoint's request type."""


def field(name: str, kind: Any, description: str, *default: Any) -> Field:
    """Return a field of a request type; UNSET is the default of a field that may be left out."""
    annotated = Annotated[kind, Meta(description=description)]
    return (name, annotated | UnsetType, UNSET) if default == (UNSET,) else (name, annotated, *default)


MODEL = "Name of the model. By default, the first model that has this endpoint."
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


class Endpoint:
    """Operation that a model offers."""

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[dict[str, Any]]
    media_types: ClassVar[tuple[str, ...]] = ("application/json",)
    response_properties: ClassVar[dict[str, Any]] = {
        "model": {"type": "string"},
        "results": {"type": "array", "items": {"type": "object"}},
    }

    def __init__(self, name: str, model: Any, limits: ServeLimits = ServeLimits()):  # noqa: B008
        self.model, self.limits = model, limits
        self.model_name = name
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

    def parse(self, body: bytes) -> ParsedRequest:
        """Validate the body of a request; return its items, options and cost."""
        try:
            request = self._decode(body)
        except (ValueError, RecursionError) as error:
            message = str(error)
            if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL):
                names = self.request_type.__struct_fields__
                matches = difflib.get_close_matches(unknown[1], names, n=1)
                hint = f"did you mean {matches[0]}?" if matches else f"the fields are {', '.join(names)}"
                message = f"unknown field {unknown[1][:60]!r}; {hint}"
            raise SettingError(f"{self.name}: {message}") from None
        return self.read(request)

    def _decode(self, body: bytes) -> Request:
        try:
            return self.decoder.decode(body)
        except msgspec.ValidationError:
            fields = msgspec.json.decode(body)
            if not isinstance(fields, dict):
                raise
            for name, value in fields.items():
                if isinstance(value, float) and value.is_integer():  # JSON Schema counts 3.0 as an integer
                    fields[name] = int(value)
            return msgspec.convert(fields, self.request_type)

    def read(self, request: Request) -> ParsedRequest:
        """Return the items, options and cost of a request."""
        raise NotImplementedError

    def start_worker(self, on_batch: Callable[[int], object]) -> EndpointWorker:
        """Start the thread that computes the requests."""
        return Batcher(self.compute, max_cost=self.limits.batch_words, on_batch=on_batch)

    def compute(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        """Compute the results of several requests with the same options: a list for each request."""
        raise NotImplementedError

    def encode(self, options: Any, results: Sequence[Any]) -> bytes:
        """Return the JSON response with these results."""
        encoded = b", ".join(self.encode_result(options, result) for result in results)
        return b'{"model": %b, "results": [%b]}' % (encode_json(self.model_name), encoded)

    def encode_result(self, options: Any, result: Any) -> bytes:
        """Return one result as JSON."""
        return encode_json(result)

    def tokenizer_fields(self) -> list[Field]:
        """Return the field `tokenizer` if the model splits text into words."""
        try:
            self.model.with_tokenizer("words")
        except (AttributeError, RelmoError):
            return []
        return [TOKENIZER]

    def model_for(self, request: Request) -> Any:
        """Return the model with the tokenizer of the request."""
        tokenizer = getattr(request, "tokenizer", UNSET)
        return self.model if tokenizer is UNSET else self.model.with_tokenizer(tokenizer)


def encode_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False).encode()


def group_by_request(results: Sequence[Any], requests: Sequence[list[Any]]) -> list[list[Any]]:
    """Return the results of each request, given one result for each of their items in order."""
    ends = np.cumsum([len(items) for items in requests]).tolist()
    return [list(results[end - len(items) : end]) for items, end in zip(requests, ends, strict=True)]


class VectorOptions(NamedTuple):
    """Layers, pooling and number format of a request for vectors."""

    layers: Any
    pooling: str
    format: str


class EmbedEndpoint(Endpoint):
    """Contextual vectors of words."""

    name = "embed"
    summary = "Contextual vectors of the words of sentences, or one vector per sentence."
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

    def read(self, request: Request) -> ParsedRequest:
        EmbedOptions(layers=request.layers).check_for(self.model.network.layer_count)
        split = self.model_for(request).tokens
        sentences = [split(sentence) if isinstance(sentence, str) else sentence for sentence in request.sentences]
        options = VectorOptions(request.layers, request.pooling, request.format)
        costs = [max(1, len(tokens)) for tokens in sentences]
        return ParsedRequest(sentences, options, sum(costs), costs)

    def compute(self, options: VectorOptions, requests: Sequence[list[Any]]) -> list[list[Any]]:
        sentences = [tokens for items in requests for tokens in items]
        vectors = self.model.embed(sentences, layers=options.layers)
        if options.pooling != "none":
            vectors = [pool(array, options.pooling) for array in vectors]
        return group_by_request(list(zip(sentences, vectors, strict=True)), requests)

    def encode_result(self, options: VectorOptions, result: Any) -> bytes:
        tokens, vectors = result
        if options.format == "base64":
            encoded = b'"%b"' % base64.b64encode(vectors.astype("<f4").tobytes())
        else:
            encoded = encode_numbers(vectors)
        head = b'{"tokens": %b, "shape": %b' % (encode_json(tokens), encode_json(vectors.shape))
        return b'%b, "vectors": %b}' % (head, encoded)


def encode_numbers(array: np.ndarray) -> bytes:
    """Return an array as nested lists; nine digits of each number give the same float32 back."""
    if array.ndim > 1:
        return b"[%b]" % b", ".join(map(encode_numbers, array))
    return b"[%b]" % (b", ".join([b"%.9g"] * len(array)) % tuple(array.tolist()))


class PredictEndpoint(Endpoint):
    """Predictions of a task's model: the records of `relmo predict --json`."""

    name = "predict"
    summary = "Predictions of a task's model (tags, labels, spans, scores, texts) as in `relmo predict --json`."
    example: ClassVar[dict[str, Any]] = {"inputs": ["Anna lives in Berlin."]}
    model: "Task[Any, Any]"

    def __init__(self, name: str, model: "Task[Any, Any]", limits: ServeLimits = ServeLimits()):  # noqa: B008
        super().__init__(name, model.with_full_records(), limits)
        if hasattr(self.model, "max_target"):  # a model that generates text
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

    def read(self, request: Request) -> ParsedRequest:
        model, examples, costs = self.model_for(request), [], []
        for item in request.inputs:
            if isinstance(item, list) and len(item) == 2 and not isinstance(item[1], str):
                item = tuple(item)  # Python's pairs; JSON has only lists. Two words are a sentence
            example = model.read_line(item) if isinstance(item, str) else model.make_example(item)
            read, written = model.workload(example)
            if written and read > self.limits.max_source:
                limit = self.limits.max_source
                raise RefusedRequest(413, f"an input has {read:,} units of this model; the maximum is {limit:,}")
            examples.append(example)
            costs.append(max(1, read + written))
        return ParsedRequest(examples, getattr(request, "tokenizer", UNSET), sum(costs), costs)

    def compute(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        examples = [example for items in requests for example in items]
        model = self.model if options is UNSET else self.model.with_tokenizer(options)
        return group_by_request([prediction.to_dict() for prediction in model.predict_examples(examples)], requests)


class SurprisalEndpoint(Endpoint):
    """Surprisal of each word: the rows of `relmo surprisal`."""

    name = "surprisal"
    summary = "One row per word: surprisal and entropy in bits, and its offsets in the text."
    example: ClassVar[dict[str, Any]] = {"sentences": ["The horse raced past the barn fell."]}

    def fields(self) -> list[Field]:
        docs, options = field_docs(SurprisalOptions), []
        for option in dataclasses.fields(SurprisalOptions):
            if self._supports(option.name):
                choices = get_args(option.type)
                kind = choices[0] if NoneType in choices else option.type  # None stands for a field that is left out
                options.append(field(option.name, kind, docs[option.name], UNSET))
        return [SENTENCES, *self.tokenizer_fields(), *options]

    def schema(self, *, is_default: bool) -> dict[str, Any]:
        """Return the JSON schema of a request, without rows that are smaller than the tokens of the model."""
        schema = super().schema(is_default=is_default)
        if {"tokenizer", "rows"} <= schema["properties"].keys():
            conflict = {"tokenizer": {"const": "whitespace"}, "rows": {"const": "words"}}
            schema["not"] = {"required": [*conflict], "properties": conflict}
        return schema

    def _supports(self, option: str) -> bool:
        """Return whether the model's `surprisal` accepts an option."""
        parameters = inspect.signature(self.model.surprisal).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return True
        if option == "space" and option in parameters:
            return self.model.settings.text.unit == "char"
        return option in parameters

    def read(self, request: Request) -> ParsedRequest:
        model = self.model_for(request)
        options = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
        sentences = options.pop("sentences")
        options.pop("model", None)
        weight = BILM_PREDICTION_COST if hasattr(model, "has_output_layer") else 1
        costs = [weight * (model.count_symbols(sentence) + 1) for sentence in sentences]  # the end is predicted too
        is_text = options.get("context", "text") == "text"
        items = list(enumerate(sentences, start=1))
        return ParsedRequest(items, tuple(sorted(options.items())), sum(costs), () if is_text else costs)

    def compute(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        """Compute the rows of requests whose items are (line, sentence). Independent sentences are computed together, a
        text from its beginning to its end."""
        arguments = dict(options)
        if arguments.get("context", "text") == "text":
            return [self._compute_rows([sentence for _, sentence in items], arguments) for items in requests]
        rows = self._compute_rows([sentence for items in requests for _, sentence in items], arguments)
        rows_by_sentence: list[list[dict[str, Any]]] = [[] for items in requests for _ in items]
        for row in rows:
            rows_by_sentence[row["line"] - 1].append(row)
        results = []
        for items, sentences in zip(requests, group_by_request(rows_by_sentence, requests), strict=True):
            numbered = zip(items, sentences, strict=True)
            results.append([row | {"line": line} for (line, _), sentence in numbered for row in sentence])
        return results

    def _compute_rows(self, sentences: list[Any], options: dict[str, Any]) -> list[dict[str, Any]]:
        model = self.model.with_tokenizer(options["tokenizer"]) if "tokenizer" in options else self.model
        options = {name: value for name, value in options.items() if name != "tokenizer"}
        columns = model.surprisal(sentences, **options).to_dict()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class GenerateEndpoint(Endpoint):
    """Text from a language model, streamed while it is generated."""

    name = "generate"
    summary = (
        "Text from a language model. The stream has one JSON object per line: what is `added` to a `sample`, or its "
        "whole `text` if a word changed what preceded it, and finally all `texts`."
    )
    example: ClassVar[dict[str, Any]] = {"prompt": "The ", "limit": 80, "seed": 3}
    media_types = ("application/json", "application/x-ndjson")
    response_properties: ClassVar[dict[str, Any]] = {
        "sample": {"type": "integer"},
        "added": {"type": "string"},
        "text": {"type": "string"},
        "texts": {"type": "array", "items": {"type": "object"}},
    }
    model: "LanguageModel"

    def fields(self) -> list[Field]:
        positive, seed = Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=0, le=MAX_SEED)]
        return [
            field("prompt", str, "Beginning of the text.", ""),
            field("limit", positive, "Maximum number of symbols to add.", 500),
            field("samples", Annotated[int, Meta(ge=1, le=MAX_SAMPLES)], "Number of texts.", 1),
            field("seed", seed, "The same seed gives the same text.", 0),
            field(
                "temperature",
                Annotated[float, Meta(ge=0)],
                "Values below 1 make probable symbols more probable; 0 is greedy.",
                1.0,
            ),
            field("top_k", positive, "Sample from the k most probable symbols.", UNSET),
            field("top_p", Annotated[float, Meta(gt=0, le=1)], "Sample from the most probable mass p.", UNSET),
            field("unknown", bool, "Whether <unk> may be generated.", False),
            field("stream", bool, "One line per new symbol, or one object at the end.", True),
        ]

    def read(self, request: Request) -> ParsedRequest:
        cost = self.model.count_symbols(request.prompt) + request.limit * request.samples
        # other requests get their turn after every symbol, so the uninterrupted cost is 1
        return ParsedRequest([request], None, cost, item_costs=[1], is_streamed=request.stream)

    def start_worker(self, on_batch: Callable[[int], object]) -> EndpointWorker:
        return TextGenerator(self.model.network, self.start_texts, on_batch)

    def start_texts(self, request: Request) -> "SampledTexts":
        """Return the texts of a request before their first symbol."""
        options = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
        return self.model.start_samples(**{name: options[name] for name in options if name not in ("model", "stream")})

    def encode(self, options: Any, results: Sequence[Any]) -> bytes:
        return encode_json({"model": self.model_name} | results[-1])


def make_endpoints(name: str, model: Any, limits: ServeLimits = ServeLimits()) -> dict[str, Endpoint]:  # noqa: B008
    """Return the endpoints of a model by name."""
    endpoints: dict[str, type[Endpoint]] = {
        "embed": EmbedEndpoint,
        "read_line": PredictEndpoint,
        "surprisal": SurprisalEndpoint,
        "start_samples": GenerateEndpoint,
    }
    if not getattr(model, "has_output_layer", True):  # a biLM from original ELMo files gives vectors only
        del endpoints["surprisal"]
    return {
        endpoint.name: endpoint(name, model, limits) for method, endpoint in endpoints.items() if hasattr(model, method)
    }
