"""What all endpoints of the API share: one form of JSON, and errors that say what to ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from rundir.events import finite


class ApiError(HTTPException):
    """An answer that is no success; its body is {"error": text, "hint": hint}."""

    status = 500

    def __init__(
        self,
        text: str,
        hint: str = "",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status or self.status, text, headers)
        self.text = text
        self.hint = hint


class BadRequestError(ApiError):
    """A parameter or a body that cannot be used."""

    status = 400


class NotFoundError(ApiError):
    """Nothing of that name."""

    status = 404


class ConflictError(ApiError):
    """A request that does not fit the state: a pause of a run that has ended."""

    status = 409


class TooManyError(ApiError):
    """More streams than the limit."""

    status = 429

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text, hint, headers={"Retry-After": "1"})


class Json(Response):
    """An answer in JSON. What JSON cannot hold (NaN, infinities) is sent as its name."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes; names that are no UTF-8 become escapes."""
        try:
            return json.dumps(content, allow_nan=False).encode()
        except ValueError:
            return json.dumps(finite(content), allow_nan=False).encode()


def error_answer(error: HTTPException) -> Json:
    """Return the answer that tells of an error, and of what to do."""
    hint = getattr(error, "hint", "see api/openapi.json")
    body = {"error": error.detail, "hint": hint}
    return Json(body, status_code=error.status_code, headers=error.headers)
