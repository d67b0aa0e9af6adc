"""The stream of changes as Server-Sent Events: one response, which ends when its reader goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from monitor.metrics.hub import Following, Hub, Listener
from monitor.metrics.messages import message

_PING_S = 15.0
_SLOW_S = 60.0  # a reader that takes nothing for so long is not there
_RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser comes again
_END = {"type": "http.response.body", "body": b"", "more_body": False}
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy is to pass on each message at once
]


async def open_stream(
    hub: Hub, key: str, make: Callable[[], Following], *, cursor: str = "", logs: str = "run"
) -> Stream:
    """Return the response that tells of what `make()` follows. Raises TooManyError."""
    wanted = frozenset(word.strip() for word in logs.split(",") if word.strip())
    listener = Listener(asyncio.get_running_loop(), wanted)
    await run_in_threadpool(hub.listen, key, make, listener, cursor)
    return Stream(listener, lambda: hub.leave(key, listener))


class Stream(Response):
    """A response without an end of its own."""

    media_type = "text/event-stream"

    def __init__(self, listener: Listener, leave: Callable[[], None]) -> None:
        super().__init__()
        self._listener = listener
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send what there is until the reader has gone, or the run has."""
        reader = asyncio.create_task(_until_gone(receive))
        try:
            headers = [*_HEADERS, *self._own_headers()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send(send, _RETRY)
            while not reader.done():
                news = asyncio.create_task(self._listener.take(_PING_S))
                await asyncio.wait({news, reader}, return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    news.cancel()
                    break
                data = news.result() or message("ping", {"t": time.time()}).data
                await self._send(send, data)
                if self._listener.has_ended:
                    break
            await send(_END)
        except asyncio.CancelledError:  # the server ends, and has told streams to
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(send(_END), 0.5)
        except TimeoutError:  # to a reader that takes nothing, nothing can be said
            pass
        finally:
            reader.cancel()
            self._leave()

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        known = {name for name, _ in _HEADERS} | {b"content-length", b"content-type"}
        return [(name, value) for name, value in self.raw_headers if name not in known]

    @staticmethod
    async def _send(send: Send, data: bytes) -> None:
        """Send, and wait as long as the reader does not keep up. Raises TimeoutError."""
        with contextlib.suppress(OSError):
            what = {"type": "http.response.body", "body": data, "more_body": True}
            await asyncio.wait_for(send(what), _SLOW_S)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
