"""Endpoints of a model: the commands embed, predict, surprisal and generate over HTTP, with their defaults, and the
OpenAPI description of the service.

An endpoint defines the type of its requests, which validates the body and is the schema in the description, parses a
request, computes the requests of many clients together, and encodes the response. A model has the endpoints that its
methods allow, so a new task needs nothing here.
"""

import base64
import dataclasses
import difflib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

import relmo
from relmo.config import field_docs
from relmo.embedding.engine import pool
from relmo.errors import RelmoError, SettingError
from relmo.serve.workers import Batcher, EndpointWorker, ParsedRequest, RefusedRequest, TextGenerator
from relmo.settings.fields import MAX_SEED
from relmo.settings.options import EmbedOptions, ServeLimits, SurprisalOptions

MAX_SAMPLES = 64
BILM_PREDICTION_COST = 2  # units per token: the softmax over the vocabulary takes longer than the layers
Field = tuple[Any, ...]
"""Name, type and, for an optional field, default."""
Request = Any
"""An instance of an endpoint's request type."""
ERRORS = {
    "400": "The request is invalid; the response says why in one line.",
    "401": "A token is required.",
    "408": "The request did not arrive in time.",
    "413": "The request is too large.",
    "429": "The client sends too many requests; see Retry-After.",
    "503": "The server is overloaded; see Retry-After.",
}
ERROR_SCHEMA = {"type": "object", "properties": {"error": {"type": "string"}}}
PAGES = {
    "/health": ("health", "Whether the server accepts requests; needs no token.", "application/json"),
    "/models": ("models", "The models and their endpoints.", "application/json"),
    "/metrics": ("metrics", "Counts and times in the Prometheus format.", "text/plain"),
    "/openapi.json": ("openapi", "This description.", "application/json"),
}


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
    """Operation that a model offers; `worker` is its thread while the service runs. Subclasses define the fields."""

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[dict[str, Any]]
    media_types: ClassVar[tuple[str, ...]] = ("application/json",)
    response_properties: ClassVar[dict[str, Any]] = {
        "model": {"type": "string"},
        "results": {"type": "array", "items": {"type": "object"}},
    }
    has_tokenizer: ClassVar[bool] = True
    worker: EndpointWorker
    _read: Callable[[Request], ParsedRequest]
    """Return the items, options and cost of a request; defined by subclasses."""
    compute_items: Callable[[Any, list[Any]], Sequence[Any]]
    """Compute one result for each item of requests with the same options; defined by subclasses."""

    def __init__(self, name: str, model: Any, limits: ServeLimits, fields: Sequence[Field]):
        self.model_name, self.model, self.limits = name, model, limits
        names: list[Field] = [("model", Literal[name] | UnsetType, UNSET), fields[0]]
        if self.has_tokenizer:
            with suppress(AttributeError, RelmoError):  # of a model that does not split text into words
                model.with_tokenizer("words")
                names.append(TOKENIZER)
        fields = [*names, *fields[1:]]
        self.request_type = msgspec.defstruct(self.name, fields, forbid_unknown_fields=True, kw_only=True)
        self.decoder = msgspec.json.Decoder(self.request_type)

    def parse(self, body: bytes) -> ParsedRequest:
        """Validate the body of a request; return its items, options and cost."""
        try:
            try:
                request = self.decoder.decode(body)
            except msgspec.ValidationError:
                fields = msgspec.json.decode(body)
                if not isinstance(fields, dict):
                    raise
                for name, value in fields.items():
                    if isinstance(value, float) and value.is_integer():  # JSON Schema counts 3.0 as an integer
                        fields[name] = int(value)
                request = msgspec.convert(fields, self.request_type)
        except (ValueError, RecursionError) as error:
            message = str(error)
            if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL):
                names = self.request_type.__struct_fields__
                matches = difflib.get_close_matches(unknown[1], names, n=1)
                hint = f"did you mean {matches[0]}?" if matches else f"the fields are {', '.join(names)}"
                message = f"unknown field {unknown[1][:60]!r}; {hint}"
            raise SettingError(f"{self.name}: {message}") from None
        return self._read(request)

    def start_worker(self, on_batch: Callable[[int], object]) -> EndpointWorker:
        """Start the thread that computes the requests."""
        return Batcher(self.compute, max_cost=self.limits.batch_words, on_batch=on_batch)

    def compute(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        """Compute the items of several requests together; return the results of each request."""
        results = iter(self.compute_items(options, list(chain.from_iterable(requests))))
        return [list(islice(results, len(items))) for items in requests]

    def encode(self, options: Any, results: Sequence[Any]) -> bytes:
        """Return the JSON response with these results; those that are bytes are JSON already."""
        encoded = b", ".join(result if isinstance(result, bytes) else encode_json(result) for result in results)
        return b'{"model": %b, "results": [%b]}' % (encode_json(self.model_name), encoded)

    def model_with(self, tokenizer: Any) -> Any:
        """Return the model with the tokenizer of a request, which may be UNSET."""
        return self.model if tokenizer is UNSET else self.model.with_tokenizer(tokenizer)


def encode_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False).encode()


class EmbedEndpoint(Endpoint):
    """Contextual vectors of words."""

    name = "embed"
    summary = "Contextual vectors of the words of sentences, or one vector per sentence."
    example: ClassVar[dict[str, Any]] = {
        "sentences": ["The bank of the river.", "A bank lends money."],
        "layers": "top",
    }

    def __init__(self, name: str, model: Any, limits: ServeLimits = ServeLimits()):  # noqa: B008
        fields = [
            SENTENCES,
            field(
                "layers",
                Literal["all", "top", "average"] | Annotated[int, Meta(ge=0, le=model.network.layer_count - 1)],
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
        super().__init__(name, model, limits, fields)

    def _read(self, request: Request) -> ParsedRequest:
        EmbedOptions(layers=request.layers).check_for(self.model.network.layer_count)
        split = self.model_with(getattr(request, "tokenizer", UNSET)).tokens
        sentences = [split(sentence) if isinstance(sentence, str) else sentence for sentence in request.sentences]
        options = (request.layers, request.pooling, request.format)
        costs = [max(1, len(tokens)) for tokens in sentences]
        return ParsedRequest(sentences, options, sum(costs), costs)

    def compute_items(self, options: Any, items: list[Any]) -> Sequence[Any]:
        """Embed sentences; a result is the words and the vectors of a sentence."""
        layers, pooling, _ = options
        vectors = self.model.embed(items, layers=layers)
        if pooling != "none":
            vectors = [pool(array, pooling) for array in vectors]
        return list(zip(items, vectors, strict=True))

    def encode(self, options: Any, results: Sequence[Any]) -> bytes:
        *_, number_format = options
        encoded = []
        for tokens, vectors in results:
            if number_format == "base64":
                numbers = b'"%b"' % base64.b64encode(vectors.astype("<f4").tobytes())
            else:
                numbers = encode_numbers(vectors)
            head = b'{"tokens": %b, "shape": %b' % (encode_json(tokens), encode_json(vectors.shape))
            encoded.append(b'%b, "vectors": %b}' % (head, numbers))
        return super().encode(options, encoded)


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

    def __init__(self, name: str, model: Any, limits: ServeLimits = ServeLimits()):  # noqa: B008
        model = model.with_full_records()
        if hasattr(model, "max_target"):  # a model that generates text
            model = model.copy(max_target=limits.max_output)
        input_type: Any = model.input_type
        line: Any = str if model.line_pattern is None else Annotated[str, Meta(pattern=model.line_pattern)]
        inputs = field(
            "inputs",
            Annotated[list[line | input_type], Meta(min_length=1)],
            "Inputs of the model. A string is read as a line of `relmo predict` (two sentences with a tab between them "
            "for a model of pairs), anything else as the Python method `predict` takes it: a list of words, a pair of "
            "sentences, and so on.",
        )
        super().__init__(name, model, limits, [inputs])

    def _read(self, request: Request) -> ParsedRequest:
        tokenizer, examples, costs = getattr(request, "tokenizer", UNSET), [], []
        model = self.model_with(tokenizer)
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
        return ParsedRequest(examples, tokenizer, sum(costs), costs)

    def compute_items(self, options: Any, items: list[Any]) -> Sequence[Any]:
        """Return the predictions for examples as dictionaries."""
        return [prediction.to_dict() for prediction in self.model_with(options).predict_examples(items)]


class SurprisalEndpoint(Endpoint):
    """Surprisal of each word: the rows of `relmo surprisal`."""

    name = "surprisal"
    summary = "One row per word: surprisal and entropy in bits, and its offsets in the text."
    example: ClassVar[dict[str, Any]] = {"sentences": ["The horse raced past the barn fell."]}

    def __init__(self, name: str, model: Any, limits: ServeLimits = ServeLimits()):  # noqa: B008
        docs, fields = field_docs(SurprisalOptions), [SENTENCES]
        parameters = inspect.signature(model.surprisal).parameters
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        for option in dataclasses.fields(SurprisalOptions):
            # a request with adaptation would need a copy of the model
            is_accepted = (takes_all or option.name in parameters) and option.name not in ("adapt", "reset")
            if is_accepted and not takes_all and option.name in ("space", "direction"):
                is_accepted = model.unit == "char" if option.name == "space" else len(model.directions) > 1
            if is_accepted:
                choices = get_args(option.type)
                kind = choices[0] if NoneType in choices else option.type  # None stands for a field that is left out
                fields.append(field(option.name, kind, docs[option.name], UNSET))
        super().__init__(name, model, limits, fields)

    def _read(self, request: Request) -> ParsedRequest:
        options = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
        sentences = options.pop("sentences")
        options.pop("model", None)
        model = self.model_with(options.get("tokenizer", UNSET))
        weight = BILM_PREDICTION_COST if hasattr(model, "has_output_layer") else 1
        costs = [weight * (model.count_symbols(sentence) + 1) for sentence in sentences]  # the end is predicted too
        is_text = options.get("context", "text") == "text"
        items = list(enumerate(sentences, start=1))
        return ParsedRequest(items, tuple(sorted(options.items())), sum(costs), () if is_text else costs)

    def compute(self, options: Any, requests: Sequence[list[Any]]) -> list[list[Any]]:
        """Compute the rows of independent sentences together, those of a text from beginning to end."""
        is_text, compute = dict(options).get("context", "text") == "text", super().compute
        batches = [[items] for items in requests] if is_text else [requests]
        results = [rows_by_item for batch in batches for rows_by_item in compute(options, batch)]
        return [list(chain.from_iterable(rows_by_item)) for rows_by_item in results]

    def compute_items(self, options: Any, items: list[Any]) -> Sequence[Any]:
        """Compute the rows of each item (line, sentence)."""
        arguments = dict(options)
        model = self.model_with(arguments.pop("tokenizer", UNSET))
        columns = model.surprisal([sentence for _, sentence in items], **arguments).to_dict()
        rows_by_item: list[list[dict[str, Any]]] = [[] for _ in items]
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            index = row["line"] - 1
            rows_by_item[index].append(row | {"line": items[index][0]})
        return rows_by_item


class GenerateEndpoint(Endpoint):
    """Text from a language model, streamed while it is generated."""

    name = "generate"
    summary = (
        "Text from a language model. The stream has one JSON object per line: what is `added` to a `sample`, or its "
        "whole `text` if a word changed what preceded it, and finally all `texts`."
    )
    example: ClassVar[dict[str, Any]] = {"prompt": "The ", "limit": 80, "seed": 3}
    media_types = ("application/json", "application/x-ndjson")
    has_tokenizer = False
    response_properties: ClassVar[dict[str, Any]] = {
        "sample": {"type": "integer"},
        "added": {"type": "string"},
        "text": {"type": "string"},
        "texts": {"type": "array", "items": {"type": "object"}},
    }

    def __init__(self, name: str, model: Any, limits: ServeLimits = ServeLimits()):  # noqa: B008
        positive, seed = Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=0, le=MAX_SEED)]
        temperature = Annotated[float, Meta(ge=0)]
        fields = [
            field("prompt", str, "Beginning of the text.", ""),
            field("limit", positive, "Maximum number of symbols to add.", 500),
            field("samples", Annotated[int, Meta(ge=1, le=MAX_SAMPLES)], "Number of texts.", 1),
            field("seed", seed, "The same seed gives the same text.", 0),
            field("temperature", temperature, "Values below 1 make probable symbols more probable; 0 is greedy.", 1.0),
            field("top_k", positive, "Sample from the k most probable symbols.", UNSET),
            field("top_p", Annotated[float, Meta(gt=0, le=1)], "Sample from the most probable mass p.", UNSET),
            field("unknown", bool, "Whether <unk> may be generated.", False),
            field("stream", bool, "One line per new symbol, or one object at the end.", True),
        ]
        super().__init__(name, model, limits, fields)

    def _read(self, request: Request) -> ParsedRequest:
        cost = self.model.count_symbols(request.prompt) + request.limit * request.samples
        options = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
        arguments = {name: value for name, value in options.items() if name not in ("model", "stream")}
        # other requests get their turn after every symbol, so the uninterrupted cost is 1
        return ParsedRequest([arguments], None, cost, item_costs=[1], is_streamed=request.stream)

    def start_worker(self, on_batch: Callable[[int], object]) -> EndpointWorker:
        return TextGenerator(self.model.network, lambda arguments: self.model.start_samples(**arguments), on_batch)

    def encode(self, options: Any, results: Sequence[Any]) -> bytes:
        return encode_json({"model": self.model_name} | results[-1])


def make_endpoints(name: str, model: Any, limits: ServeLimits = ServeLimits()) -> dict[str, Endpoint]:  # noqa: B008
    """Return the endpoints of a model by name."""
    endpoints: dict[str, Callable[..., Endpoint]] = {
        "embed": EmbedEndpoint,
        "with_full_records": PredictEndpoint,
        "surprisal": SurprisalEndpoint,
        "start_samples": GenerateEndpoint,
    }
    if not getattr(model, "has_output_layer", True):  # a biLM from original ELMo files gives vectors only
        del endpoints["surprisal"]
    supported = [endpoint(name, model, limits) for method, endpoint in endpoints.items() if hasattr(model, method)]
    return {endpoint.name: endpoint for endpoint in supported}


def describe_service(models: Sequence[Mapping[str, Endpoint]], *, token: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of a service with the endpoints of these models; `token` if it needs one."""
    endpoints: dict[str, list[Endpoint]] = {}
    for model_endpoints in models:
        for name, endpoint in model_endpoints.items():
            endpoints.setdefault(name, []).append(endpoint)
    paths: dict[str, Any] = {}
    for name, group in endpoints.items():
        default = group[0]
        schemas = []
        for endpoint in group:
            (schema,) = msgspec.json.schema_components([endpoint.request_type])[1].values()
            schema["properties"]["model"] |= {"description": MODEL}
            schema["title"] = f"{name} with {endpoint.model_name}"
            if {"tokenizer", "rows"} <= schema["properties"].keys():  # rows smaller than the tokens of the model
                conflict = {"tokenizer": {"const": "whitespace"}, "rows": {"const": "words"}}
                schema["not"] = {"required": [*conflict], "properties": conflict}
            if endpoint is not default:
                schema |= {"required": ["model", *schema.get("required", [])]}
            schemas.append(schema)
        body = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}, "example": default.example}
        response_schema = {"type": "object", "properties": default.response_properties}
        content = {media_type: {"schema": response_schema} for media_type in default.media_types}
        responses: dict[str, Any] = {"200": {"description": "The response.", "content": content}}
        for status, meaning in ERRORS.items():
            responses[status] = {"description": meaning, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
        request_body = {"required": True, "content": {"application/json": body}}
        operation = {"operationId": name, "summary": default.summary, "requestBody": request_body}
        paths[f"/{name}"] = {"post": operation | {"responses": responses}}
    for path, (name, summary, media_type) in PAGES.items():
        responses = {"200": {"description": "The response.", "content": {media_type: {}}}}
        paths[path] = {"get": {"operationId": name, "summary": summary, "responses": responses}}
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "relmo", "version": relmo.__version__, "summary": "Recurrent language models over HTTP."},
        "paths": paths,
    }
    if token:
        description["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        description["security"] = [{"token": []}]
    return description
