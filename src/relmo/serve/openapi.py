"""The service's own description, in OpenAPI 3.1, made of what its models can do. It refers to nothing outside."""

from collections.abc import Mapping, Sequence
from typing import Any

import relmo
from relmo.serve.verbs import Verb

PROBLEMS = {
    "400": "The request is wrong; the answer says what, in one line.",
    "401": "A token is needed.",
    "408": "The request did not come in time.",
    "413": "The request is too large.",
    "429": "This client sends too many requests; Retry-After says when to come again.",
    "503": "The server has enough to do; Retry-After says when to come again.",
}
PROBLEM = {"type": "object", "properties": {"error": {"type": "string"}}}


def description(models: Sequence[Mapping[str, Verb]], *, token: bool) -> dict[str, Any]:
    """Return the description of a service with the verbs of these models; with a token if one is needed."""
    verbs: dict[str, list[Verb]] = {}
    for model_verbs in models:
        for verb in model_verbs.values():
            verbs.setdefault(verb.name, []).append(verb)
    asked: dict[str, Any] = {f"/{name}": {"post": _operation(several)} for name, several in verbs.items()}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "relmo", "version": relmo.__version__, "summary": "Recurrent language models over HTTP."},
        "paths": asked | _others(),
    }
    if token:
        made["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        made["security"] = [{"token": []}]
    return made


def _operation(verbs: Sequence[Verb]) -> dict[str, Any]:
    """Describe a verb; its request is one of those of the models that have it."""
    verb = verbs[0]
    schemas = [each.schema(is_default=each is verb) for each in verbs]
    body = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    kinds = ["application/json", *(["application/x-ndjson"] if verb.name == "generate" else [])]
    return {
        "operationId": verb.name,
        "summary": verb.summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body, "example": verb.example}},
        },
        "responses": {
            "200": {"description": "The answer.", "content": {kind: {"schema": _answer(verb)} for kind in kinds}}
        }
        | {
            status: {"description": about, "content": {"application/json": {"schema": PROBLEM}}}
            for status, about in PROBLEMS.items()
        },
    }


def _answer(verb: Verb) -> dict[str, Any]:
    if verb.name == "generate":
        lines: dict[str, Any] = {
            "sample": {"type": "integer"},
            "added": {"type": "string"},
            "text": {"type": "string"},
            "texts": {"type": "array", "items": {"type": "object"}},
        }
        return {"type": "object", "properties": lines}
    results = {"type": "array", "items": {"type": "object"}}
    return {"type": "object", "properties": {"model": {"type": "string"}, "results": results}}


def _others() -> dict[str, Any]:
    pages = {
        "/health": ("health", "Whether the server takes requests; needs no token.", "application/json"),
        "/models": ("models", "The models, and what each can do.", "application/json"),
        "/metrics": ("metrics", "Counts and times, for Prometheus.", "text/plain"),
        "/openapi.json": ("openapi", "This description.", "application/json"),
    }
    return {
        path: {
            "get": {
                "operationId": name,
                "summary": about,
                "responses": {"200": {"description": "The answer.", "content": {kind: {}}}},
            }
        }
        for path, (name, about, kind) in pages.items()
    }
