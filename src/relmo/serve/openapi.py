"""OpenAPI 3.1 description of the service, built from the endpoints of its models."""

from collections.abc import Mapping, Sequence
from typing import Any

import relmo
from relmo.serve.endpoints import Endpoint

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


def describe_service(models: Sequence[Mapping[str, Endpoint]], *, token: bool) -> dict[str, Any]:
    """Return the description of a service with the endpoints of these models; `token` if it requires one."""
    endpoints: dict[str, list[Endpoint]] = {}
    for model_endpoints in models:
        for endpoint in model_endpoints.values():
            endpoints.setdefault(endpoint.name, []).append(endpoint)
    paths: dict[str, Any] = {f"/{name}": {"post": _describe_endpoint(group)} for name, group in endpoints.items()}
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


def _describe_endpoint(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Describe an endpoint that one or several models have."""
    default = endpoints[0]
    schemas = [endpoint.schema(is_default=endpoint is default) for endpoint in endpoints]
    body = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}, "example": default.example}
    response_schema = {"type": "object", "properties": default.response_properties}
    content = {media_type: {"schema": response_schema} for media_type in default.media_types}
    responses: dict[str, Any] = {"200": {"description": "The response.", "content": content}}
    for status, meaning in ERRORS.items():
        responses[status] = {"description": meaning, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    return {
        "operationId": default.name,
        "summary": default.summary,
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": responses,
    }
