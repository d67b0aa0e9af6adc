"""Errors of the API: a status, what is wrong, and what to ask for instead."""

from __future__ import annotations


class ApiError(Exception):
    """An answer that is no success; its body is {"error": text, "hint": hint}."""

    status = 500

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint

    def body(self) -> dict[str, str]:
        """Return what is sent as JSON."""
        return {"error": self.text, "hint": self.hint}


class BadRequestError(ApiError):
    """A parameter or a body that cannot be used."""

    status = 400


class UnauthorizedError(ApiError):
    """No token, or a wrong one."""

    status = 401


class ForbiddenError(ApiError):
    """A request from another site, or for another host."""

    status = 403


class NotFoundError(ApiError):
    """Nothing of that name."""

    status = 404


class WrongMethodError(ApiError):
    """A path that takes other methods."""

    status = 405


class ConflictError(ApiError):
    """A request that does not fit the state: a pause of a run that has ended."""

    status = 409


class TooLargeError(ApiError):
    """A body or a URL beyond the limit."""

    status = 413


class TooManyError(ApiError):
    """More requests, or streams, than the limit."""

    status = 429
