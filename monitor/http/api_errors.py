"""Errors of the API: a status, what is wrong, and what to ask for instead."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException


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
