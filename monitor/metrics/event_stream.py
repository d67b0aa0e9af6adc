"""The stream of changes as Server-Sent Events: one response, which ends when its reader goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from monitor.metrics.hub import Following, Hub, Listener
from monitor.metrics.stream_messages import message

_PING_S = 15.0
_SLOW_S = 60.0  # a reader that takes nothing for so long is not there
_RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser comes again
_END = {"type": "http.response.body", "body": b"", "more_body": False}
_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # a proxy is to pass on each message at once
}


async def open_stream(
    hub: Hub, key: str, make: Callable[[], Following], *, cursor: str = "", logs: str = "run"
) -> EventStream:
    """Return the response that tells of what `make()` follows. Raises TooManyError."""
    wanted = frozenset(word.strip() for word in logs.split(",") if word.strip())
    listener = Listener(wanted)
    await hub.listen(key, make, listener, cursor)
    return EventStream(listener, lambda: hub.leave(key, listener))


class EventStream(StreamingResponse):
    """A response that goes on until its reader has gone, or the run has."""

    def __init__(self, listener: Listener, leave: Callable[[], None]) -> None:
        super().__init__(_messages(listener), headers=_HEADERS, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is, and wait as long as the reader does not keep up."""

        async def send_soon(part: Message) -> None:
            await asyncio.wait_for(send(part), _SLOW_S)

        try:
            await super().__call__(scope, receive, send_soon)
        except asyncio.CancelledError:  # the server ends, and has told streams to
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(send(_END), 0.5)
        except TimeoutError:  # to a reader that takes nothing, nothing can be said
            pass
        finally:
            self._leave()


async def _messages(listener: Listener) -> AsyncIterator[bytes]:
    yield _RETRY
    while not listener.has_ended:
        yield await listener.take(_PING_S) or message("ping", {"t": time.time()}).data
