"""What guards every request: Host, Origin, token, sizes; and the headers of every answer.

A page of another site may send requests from the user's browser to a server on localhost. It can
read no answer of this one, as no CORS header is sent; under a name of its own that leads to
127.0.0.1 (DNS rebinding) its Host is wrong; and what changes something needs the token.
"""

from __future__ import annotations

import hmac
import socket
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monitor.api.server_settings import LOOPBACK, ServerSettings
from monitor.http.json_api import ApiError, TooManyError, error_answer

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


class Guard:
    """The middleware around all routes."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._num_streams = 0
        names = {*LOOPBACK, "[::1]", settings.host, *settings.allow_hosts}
        if not settings.is_loopback:
            names.add(socket.gethostname())
        names = {name for name in names if "*" not in name}
        self._hosts = [*names, *(f"{name}." for name in names)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "Cache-Control": "no-store"}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._check(scope, receive)
        except ApiError as error:
            await error_answer(error)(scope, receive, send_with_headers)
            return
        # The one kind of body is JSON, whatever a client such as curl calls it; and what is
        # answered to HEAD is what GET is answered, of which the server sends the headers only.
        MutableHeaders(scope=scope)["Content-Type"] = "application/json"
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        is_stream = scope["path"].endswith("/stream")
        self._num_streams += is_stream
        try:
            await self._app({**scope, "method": method}, _limited(receive), send_with_headers)
        finally:
            self._num_streams -= is_stream

    async def _check(self, scope: Scope, receive: Receive) -> None:
        """Raise ApiError for a request that is not to be answered."""
        length = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if length > MOST_URL_BYTES:
            raise ApiError(f"the URL has {length} bytes", f"at most {MOST_URL_BYTES}", status=414)
        await self._check_host(scope, receive)
        headers = Headers(scope=scope)
        is_reading = scope["method"] in ("GET", "HEAD")
        if not is_reading:
            self._check_origin(headers)
        self._check_token(headers, scope["path"], is_reading=is_reading)
        if scope["path"].endswith("/stream") and self._num_streams >= MOST_STREAMS:
            raise TooManyError(f"{MOST_STREAMS} streams are open already", "close other pages")

    async def _check_host(self, scope: Scope, receive: Receive) -> None:
        """Refuse a Host that is no name of ours, nor the address that the request came to."""
        host = Headers(scope=scope).get("host", "")

        async def refuse(_: Message) -> None:
            name = host.partition(":")[0] or "NAME"
            raise ApiError(
                f"this server is not called {host[:200]!r}",
                f"./airlock serve --allow-host {name}   # if that name is yours",
                status=403,
            )

        address = scope["server"][0] if scope.get("server") else LOOPBACK[0]
        hosts = [*self._hosts, address, f"[{address}]"]
        await TrustedHostMiddleware(_accept, hosts, www_redirect=False)(scope, receive, refuse)

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        is_ours = site in ("same-origin", "none")
        if is_ours and origin is not None:
            try:
                parts = urlsplit(origin)
                names = (parts.netloc.lower(), parts.hostname or "")
            except ValueError:
                names = ("", "")
            is_ours = names[0] == headers["host"].lower() or names[1] in self._settings.allow_hosts
        if not is_ours:
            raise ApiError(
                f"a request of another site: {(origin or site)[:200]!r}",
                "controls are for this server's own pages, and for programs with the token",
                status=403,
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
            raise ApiError(
                "the token is wrong" if token else "this needs the token",
                "Authorization: Bearer TOKEN, as `./airlock serve` has printed it",
                status=401,
                headers={"WWW-Authenticate": "Bearer"},
            )


def _limited(receive: Receive) -> Receive:
    """Return `receive`, which raises an error once a body is beyond the limit."""
    num_bytes = 0

    async def receive_some() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MOST_BODY_BYTES:  # FastAPI passes on its own errors only
            raise HTTPException(413, f"the body has more than {MOST_BODY_BYTES} bytes")
        return message

    return receive_some


async def _accept(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Stand behind the check of the Host: it has accepted the name."""
