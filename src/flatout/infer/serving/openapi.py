"""The server's own description, with an example that it answers: for people and `flatout bench`."""

from typing import Any

from flatout.infer.serving.specs import TensorSpec
from flatout.infer.serving.wire import JSON, NPY, RAW, SAFETENSORS, Item
from flatout.records.version import __version__

_WORDS = {
    400: "The body is not what it should be.",
    404: "There is no such model.",
    401: "No token, or another one.",
    406: "None of the accepted kinds can hold the answer.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "Another kind of body is expected.",
    422: "The model refuses this item.",
    429: "Too many wait already; Retry-After says when to come back.",
    500: "The model failed.",
    503: "Not ready, or about to end.",
    504: "No answer in time.",
}
_BOUNDS = {"int64": 63, "int32": 31, "int16": 15, "int8": 7}


def described(
    title: str,
    specs: tuple[TensorSpec, ...],
    example: Item,
    *,
    token: bool,
    paths: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An OpenAPI document."""
    schemas: dict[str, Any] = {
        "Error": _ERROR,
        "Health": {"type": "object", "properties": {"status": {"type": "string"}}},
    }
    security: list[dict[str, list[str]]] = [{"bearer": []}] if token else []
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": {
            **({"/predict": {"post": _predict(specs, example, token)}} if paths is None else paths),
            "/health": {"get": _look("Whether the server works.", 503)},
            "/ready": {"get": _look("Whether it has warmed up and takes requests.", 503)},
            "/metrics": {
                "get": {**_look("Figures for Prometheus.", kind="text/plain"), "security": security}
            },
            "/openapi.json": {"get": {**_look("This document."), "security": security}},
        },
        "components": {"schemas": schemas},
    }
    if token:
        whole["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for path in ("/metrics", "/openapi.json"):
            whole["paths"][path]["get"]["responses"]["401"] = failure(401)
    return whole


def failure(status: int) -> dict[str, Any]:
    """How an error of this status looks."""
    found: dict[str, Any] = {
        "description": _WORDS[status],
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status == 429:
        found["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
        }
    return found


def failures(*statuses: int, token: bool) -> dict[str, Any]:
    """Several of them."""
    return {str(status): failure(status) for status in sorted((*statuses, *((401,) if token else ())))}


def _predict(specs: tuple[TensorSpec, ...], example: Item, token: bool) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    if specs:
        inputs = {
            "type": "object",
            "properties": {spec.name: _schema(spec) for spec in specs},
            "required": [spec.name for spec in specs],
            "additionalProperties": False,
        }
    body: dict[str, Any] = {
        "type": "object",
        "properties": {"inputs": inputs},
        "required": ["inputs"],
        "additionalProperties": False,
    }
    content: dict[str, Any] = {JSON: {"schema": body}}
    if specs:
        content[JSON]["example"] = {"inputs": {name: array.tolist() for name, array in example.items()}}
    answer = {"type": "object", "properties": {"outputs": {"type": "object"}}, "required": ["outputs"]}
    return {
        "operationId": "predict",
        "summary": "One item; the server makes batches.",
        "description": f"Tensors also as {SAFETENSORS}, a single one as {NPY} or {RAW}; answers by accept.",
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {"description": "The outputs of this item.", "content": {JSON: {"schema": answer}}},
            **failures(400, 406, 408, 413, 415, 422, 429, 500, 503, 504, token=token),
        },
        "security": [{"bearer": []}] if token else [],
    }


def _schema(spec: TensorSpec) -> dict[str, Any]:
    if spec.dtype == "bool":
        found: dict[str, Any] = {"type": "boolean"}
    elif spec.dtype == "uint8":
        found = {"type": "integer", "minimum": 0, "maximum": 255}
    elif spec.dtype in _BOUNDS:
        edge = 2 ** _BOUNDS[spec.dtype]
        found = {"type": "integer", "minimum": -edge, "maximum": edge - 1}
    else:
        edge_of = spec.largest_value
        found = {"type": "number", **({"minimum": -edge_of, "maximum": edge_of} if edge_of else {})}
    for size in reversed(spec.shape):
        found = {"type": "array", "items": found, "minItems": size.least, "maxItems": size.most}
    return {**found, "description": str(spec)}


def _look(words: str, *statuses: int, kind: str = JSON) -> dict[str, Any]:
    schema = {"type": "string"} if kind != JSON else {"type": "object"}
    return {
        "summary": words,
        "responses": {
            "200": {"description": words, "content": {kind: {"schema": schema}}},
            **{str(status): failure(status) for status in statuses},
        },
    }


_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                name: {"type": "string"} for name in ("message", "type", "received", "expected", "remedy")
            },
            "required": ["message", "received", "expected", "remedy"],
        }
    },
    "required": ["error"],
}
