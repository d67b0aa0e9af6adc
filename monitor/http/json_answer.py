"""The answers of the API, all in one form of JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from rundir.events import finite


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
