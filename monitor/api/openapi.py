"""The OpenAPI document: made from the routes themselves, so that it cannot say anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from starlette.routing import BaseRoute

from monitor.http.endpoint import Endpoint, EndpointRoute, Schema

_ERROR: Schema = {
    "type": "object",
    "required": ["error", "hint"],
    "properties": {"error": {"type": "string"}, "hint": {"type": "string"}},
}
_ERRORS = {
    "400": "a parameter or the body cannot be used",
    "401": "the token is missing or wrong",
    "403": "another Host, or a request of another site",
    "404": "no such run, file, data set or path",
    "405": "another method",
    "409": "it does not fit the state of the run",
    "413": "the body is too large",
    "414": "the URL is too long",
    "429": "too many requests at once",
}


def told_in(routes: Iterable[BaseRoute]) -> Iterator[Endpoint]:
    """Yield the endpoints among the routes."""
    for route in routes:
        if isinstance(route, EndpointRoute):
            yield route.told


def document(routes: Iterable[BaseRoute]) -> Schema:
    """Return the document. Its URLs are relative to where it lies, whatever proxy is between."""
    paths: dict[str, Schema] = {}
    for endpoint in told_in(routes):
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Airlock",
            "version": "1",
            "description": "The API of `./airlock serve`. Times are Unix seconds; numbers that "
            "JSON lacks (NaN, infinities) are their names.",
        },
        "servers": [{"url": ".."}],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def path_names(path: str) -> list[str]:
    """Return the names of the parameters in a path."""
    return re.findall(r"\{(\w+)(?::\w+)?\}", path)


def _operation(endpoint: Endpoint) -> Schema:
    parameters: list[Schema] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for name in path_names(endpoint.path)
    ]
    parameters += [
        {"name": param.name, "in": "query", "description": param.meaning, "schema": param.schema()}
        for param in endpoint.params
    ]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: Schema = {
        "200": {
            "description": "OK",
            "content": {
                endpoint.media_type: {"schema": endpoint.answer} if endpoint.answer else {}
            },
        }
    }
    answers |= {code: {"description": why, "content": error} for code, why in _ERRORS.items()}
    operation: Schema = {
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": answers,
    }
    if endpoint.method == "POST":
        operation["security"] = [{"token": []}]
    if endpoint.body is not None:
        content = {"application/json": {"schema": endpoint.body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
