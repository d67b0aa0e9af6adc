"""One endpoint of the API: its path, its parameters, what it answers, and the work that it does.

The route and its part of the OpenAPI document are made from the same object.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from monitor.http.api_errors import BadRequestError

Schema = dict[str, Any]
_LONGEST = 4096  # characters of a parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of the query; the `default` is passed on where it is left out."""

    name: str
    meaning: str
    type: Literal["string", "integer", "number"] = "string"
    default: str | int | float | None = None
    at_least: float | None = None
    at_most: float | None = None  # of a text: characters
    choices: tuple[str, ...] = ()

    def read(self, text: str | None) -> Any:
        """Return the value of `text`. Raises BadRequestError, with what it has to be."""
        if text is None or (text == "" and self.type != "string"):
            return self.default
        if self.type == "string":
            if self.choices and text not in self.choices:
                raise self._wrong(text, f"one of {', '.join(map(repr, self.choices))}")
            longest = int(self.at_most or _LONGEST)
            if len(text) > longest:
                raise self._wrong(text[:20] + "…", f"at most {longest} characters")
            return text
        try:
            value = int(text[:40]) if self.type == "integer" else float(text)
        except ValueError:
            raise self._wrong(text, self._range()) from None
        low, high = self.at_least, self.at_most
        is_low = low is not None and value < low
        is_high = high is not None and value > high
        if not math.isfinite(value) or is_low or is_high:
            raise self._wrong(text, self._range())
        return value

    def _range(self) -> str:
        words = "a whole number" if self.type == "integer" else "a number"
        words += "" if self.at_least is None else f", at least {self.at_least:g}"
        return words + ("" if self.at_most is None else f", at most {self.at_most:g}")

    def _wrong(self, text: str, needed: str) -> BadRequestError:
        return BadRequestError(f"{self.name} is {text!r}", f"{self.name} has to be {needed}")

    def schema(self) -> Schema:
        """Return the parameter as OpenAPI has it."""
        schema: Schema = {"type": self.type}
        if self.type == "string":
            schema["maxLength"] = int(self.at_most or _LONGEST)
        is_number = self.type != "string"
        for key, value in (
            ("default", self.default),
            ("minimum", self.at_least if is_number else None),
            ("maximum", self.at_most if is_number else None),
            ("enum", list(self.choices) or None),
        ):
            if value is not None:
                schema[key] = value
        return schema


def limited(default: int) -> Param:
    """Return the parameter by which an answer is kept to at most so many of what it lists."""
    return Param(
        name="limit",
        type="integer",
        default=default,
        at_least=1,
        at_most=1000,
        meaning="at most so many",
    )


OFFSET = Param(
    name="offset",
    type="integer",
    default=0,
    at_least=0,
    at_most=10**9,
    meaning="so many are left out",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What an endpoint is, for its route and for the document."""

    path: str
    summary: str
    work: Callable[..., Any]
    params: tuple[Param, ...] = ()
    answer: Schema = field(default_factory=dict)  # JSON schema, as far as it is told
    method: Literal["GET", "POST"] = "GET"
    body: Schema | None = None  # JSON schema of a POST's body
    media_type: str = "application/json"


class EndpointRoute(Route):
    """A route that knows its endpoint."""

    def __init__(self, described: Endpoint) -> None:
        super().__init__(described.path, handler_of(described), methods=[described.method])
        self.told = described


def endpoint(
    path: str, work: Callable[..., Any], summary: str, params: Sequence[Param] = (), **more: Any
) -> EndpointRoute:
    """Return the route of an endpoint: `work(request, **parameters)` gives its answer.

    The parameters are those of the query, read and checked, and those in the path, as text. A plain
    function runs in a thread of the pool and may read files; a coroutine must not block. The answer
    is a Response, or what is sent as JSON.
    """
    described = Endpoint(path=path, work=work, summary=summary, params=tuple(params), **more)
    return EndpointRoute(described)


class Json(Response):
    """An answer in JSON. What JSON cannot hold (NaN, infinities) is sent as its name."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes; names that are no UTF-8 become escapes."""
        try:
            return json.dumps(content, allow_nan=False).encode()
        except ValueError:
            return json.dumps(_finite(content), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def handler_of(described: Endpoint) -> Callable[[Request], Any]:
    """Return what Starlette calls for this endpoint."""
    is_async = inspect.iscoroutinefunction(described.work)

    async def handle(request: Request) -> Response:
        values = {
            param.name: param.read(request.query_params.get(param.name))
            for param in described.params
        }
        values |= request.path_params
        if is_async:
            answer = await described.work(request, **values)
        else:
            answer = await asyncio.to_thread(described.work, request, **values)
        return answer if isinstance(answer, Response) else Json(answer)

    handle.__doc__ = described.summary
    return handle
