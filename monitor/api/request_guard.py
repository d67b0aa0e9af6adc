"""What guards every request: Host, Origin, token, sizes, rates; and the headers of every answer.

A page of another site may send requests from the user's browser to a server on localhost. It can
read no answer of this one, as no CORS header is sent; under a name of its own that leads to
127.0.0.1 (DNS rebinding) its Host is wrong; and what changes something needs the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monitor.api.server_settings import LOOPBACK, ServerSettings
from monitor.http.api_errors import (
    ApiError,
    ForbiddenError,
    TooLargeError,
    TooManyError,
    UnauthorizedError,
    WrongMethodError,
)
from monitor.http.endpoint import Json

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Shown to everyone who may reach the server; pages hold no data, they ask for it with the token.
OPEN_PATHS = ("/api/health", "/api/openapi.json")
MOST_URL_BYTES = 16 << 10
MOST_BODY_BYTES = 64 << 10
MOST_STREAMS = 64
RATE_PER_S, BURST = 100.0, 400.0
_MOST_CLIENTS = 4096
_METHODS = ("GET", "HEAD", "POST")


class Rate:
    """A bucket for each client: so many requests at once, and so many a second after that."""

    def __init__(self, per_s: float = RATE_PER_S, burst: float = BURST) -> None:
        self._per_s, self._burst = per_s, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests, when

    def take(self, client: str) -> None:
        """Count a request. Raises TooManyError if there were too many."""
        now = time.monotonic()
        left, before = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - before) * self._per_s)
        self._left[client] = (left - 1 if left >= 1 else left), now  # what is refused costs nothing
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)
        if left < 1:
            raise TooManyError(
                f"more than {self._burst:g} requests at once, or {self._per_s:g} a second",
                "ask again in a second; api/runs/R/stream tells of changes without asking",
            )


class Guard:
    """The middleware around all routes."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._rate = Rate()
        self._num_streams = 0
        names = {*LOOPBACK, settings.host, *settings.allow_hosts}
        if not settings.is_loopback:
            names.add(socket.gethostname())
        self._hosts = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            self._check(scope)
            await self._pass_on(scope, _limited(receive), answer.send)
        except ApiError as error:
            if answer.has_begun:
                raise
            response = Json(error.body(), status_code=error.status, headers=_more(error))
            await response(scope, receive, answer.send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].endswith("/stream"):
            await self._app(scope, receive, send)
            return
        if self._num_streams >= MOST_STREAMS:
            raise TooManyError(f"{MOST_STREAMS} streams are open already", "close other pages")
        self._num_streams += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_streams -= 1

    def _check(self, scope: Scope) -> None:
        """Raise ApiError for a request that is not to be answered."""
        headers = Headers(scope=scope)
        self._rate.take((scope.get("client") or ("", 0))[0])
        length = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if length > MOST_URL_BYTES:
            error = TooLargeError(f"the URL has {length} bytes", f"at most {MOST_URL_BYTES}")
            error.status = 414
            raise error
        host = self._check_host(headers, scope)
        method = scope["method"]
        if method not in _METHODS:
            raise WrongMethodError(f"{method[:20]} is not known here", "GET, or POST for controls")
        if method == "POST":
            self._check_origin(headers, host)
        self._check_token(headers, scope["path"], is_reading=method != "POST")
        sent = headers.get("content-length", "0")
        if sent.isdecimal() and int(sent[:20]) > MOST_BODY_BYTES:
            raise _too_large()

    def _check_host(self, headers: Headers, scope: Scope) -> str:
        given = headers.getlist("host")
        name = host_name(given[0]) if len(given) == 1 else None
        if name is not None and (name in self._hosts or _is_own_address(name, scope)):
            return given[0]
        raise ForbiddenError(
            f"this server is not called {', '.join(given)[:200]!r}",
            f"./airlock serve --allow-host {name or 'NAME'}   # if that name is yours",
        )

    def _check_origin(self, headers: Headers, host: str) -> None:
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if origin is None and site in ("same-origin", "none"):
            return
        try:
            parts = urlsplit(origin or "")
            name = parts.hostname or ""
        except ValueError:
            parts, name = urlsplit(""), ""
        is_ours = parts.netloc.lower() == host.lower() or name in self._settings.allow_hosts
        if not is_ours or site not in ("same-origin", "none"):
            raise ForbiddenError(
                f"a request of another site: {(origin or site)[:200]!r}",
                "controls are for this server's own pages, and for programs with the token",
            )

    def _check_token(self, headers: Headers, path: str, *, is_reading: bool) -> None:
        is_data = path.startswith("/api/") or path in ("/api", "/metrics")
        if is_reading and (
            not self._settings.reading_needs_token or not is_data or path in OPEN_PATHS
        ):
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        expected = self._settings.token.encode()
        is_right = hmac.compare_digest(token.strip().encode("utf-8", "replace"), expected)
        if kind.lower() != "bearer" or not is_right:
            raise UnauthorizedError(
                "the token is wrong" if token else "this needs the token",
                "Authorization: Bearer TOKEN, as `./airlock serve` has printed it",
            )


def host_name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return (parts.hostname or "").rstrip(".") or None


def _is_own_address(name: str, scope: Scope) -> bool:
    """Return whether it is the address that the request came to: no name can be made to be it."""
    server = scope.get("server")
    if not server:
        return False
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(server[0])
    except ValueError:
        return False


class _Answer:
    """Sends an answer, with the headers that all of them have."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


def _limited(receive: Receive) -> Receive:
    """Return `receive`, which raises TooLargeError once a body is beyond the limit."""
    num_bytes = 0

    async def receive_some() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MOST_BODY_BYTES:
            raise _too_large()
        return message

    return receive_some


def _too_large() -> TooLargeError:
    return TooLargeError(
        "the body is too large", f"at most {MOST_BODY_BYTES} bytes; a request is a few words"
    )


def _more(error: ApiError) -> dict[str, str]:
    if isinstance(error, UnauthorizedError):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, TooManyError):
        return {"Retry-After": "1"}
    if isinstance(error, WrongMethodError):
        return {"Allow": ", ".join(_METHODS)}
    return {}
