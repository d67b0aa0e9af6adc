"""Who listens to which run: one thread follows a run for all of them, as long as there are any."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from monitor.http.api_errors import TooManyError
from monitor.metrics.messages import Message, message

_LOG = logging.getLogger(__name__)
MOST_FOLLOWED = 64
_MOST_WAITING_BYTES = 2 << 20  # for one listener
_MOST_TAKEN_BYTES = 64 << 10  # at once: each listener that is slow holds so much of its own


class Following(Protocol):
    """What `Follower` and `RunsFollower` have in common."""

    interval_s: float
    is_gone: bool

    def first(self) -> list[Message]: ...
    def since(self, cursor: str) -> list[Message]: ...
    def look(self) -> list[Message]: ...
    def want(self, logs: frozenset[str]) -> None: ...


class Listener:
    """One who listens: messages wait here, and are dropped if they are not taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, logs: frozenset[str]) -> None:
        self._loop = loop
        self.logs = logs
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._news = asyncio.Event()
        self.is_over = False

    def put_soon(self, messages: list[Message], *, is_last: bool = False) -> None:
        """Put messages here, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._put, messages, is_last)
        except RuntimeError:  # the server is ending
            self.is_over = True

    def _put(self, messages: list[Message], is_last: bool) -> None:
        for item in messages:
            if item.log and item.log not in self.logs:
                continue
            self._waiting.append(item.data)
            self._num_bytes += len(item.data)
        if self._num_bytes > _MOST_WAITING_BYTES:
            # Without an id: should the connection end now, all of it is told again.
            self._waiting = deque([message("reset", {}).data])
            self._num_bytes = len(self._waiting[0])
        self.is_over = self.is_over or is_last
        self._news.set()

    async def take(self, timeout_s: float) -> bytes:
        """Return some of what waits, as soon as there is any; nothing when the time is up."""
        if not self._waiting and not self.is_over:
            try:
                await asyncio.wait_for(self._news.wait(), timeout_s)
            except TimeoutError:
                return b""
        self._news.clear()
        taken, num_bytes = [], 0
        while self._waiting and num_bytes < _MOST_TAKEN_BYTES:
            taken.append(self._waiting.popleft())
            num_bytes += len(taken[-1])
        self._num_bytes -= num_bytes
        return b"".join(taken)

    @property
    def has_ended(self) -> bool:
        """Whether nothing waits, and nothing will come."""
        return self.is_over and not self._waiting


class _Followed:
    """A follower, its thread, and who listens."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while it looks: who comes meanwhile misses nothing
        self.follower: Following | None = None
        self.listeners: list[Listener] = []  # who keeps it going
        self.receivers: list[Listener] = []  # who has been told how things stand; under `lock`
        self.nobody = threading.Event()
        self.has_ended = False


class Hub:
    """All that is followed. Each listener is `close`d by who has opened it."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._lock = threading.Lock()

    def listen(
        self,
        key: str,
        make: Callable[[], Following],
        listener: Listener,
        cursor: str,
    ) -> None:
        """Begin to listen to what `make()` follows; it is made once for all of the same key.

        Reads files: not for the event loop. Raises TooManyError.
        """
        with self._lock:
            if key not in self._followed and len(self._followed) >= MOST_FOLLOWED:
                raise TooManyError(f"{MOST_FOLLOWED} runs are followed", "close a page first")
            followed = self._followed.get(key)
            if followed is None or followed.has_ended:
                followed = self._followed[key] = _Followed()
            followed.listeners.append(listener)  # from here on it is not ended
            followed.nobody.clear()
        try:
            with followed.lock:
                if followed.follower is None:
                    followed.follower = make()
                    name = f"follow {key[-40:]}"
                    todo = (key, followed, followed.follower)
                    threading.Thread(target=self._follow, args=todo, name=name, daemon=True).start()
                followed.follower.want(listener.logs)
                begin = followed.follower.first()
                listener.put_soon(begin + (followed.follower.since(cursor) if cursor else []))
                followed.receivers.append(listener)
        except BaseException:
            self.leave(key, listener)
            raise

    def leave(self, key: str, listener: Listener) -> None:
        """Stop listening."""
        with self._lock:
            followed = self._followed.get(key)
            if followed is not None and listener in followed.listeners:
                followed.listeners.remove(listener)
                if not followed.listeners:
                    followed.nobody.set()
                    if followed.follower is None:
                        del self._followed[key]

    def close(self) -> None:
        """End all streams: the server ends."""
        with self._lock:
            for followed in self._followed.values():
                for listener in followed.listeners:
                    listener.put_soon([], is_last=True)

    def num_followed(self) -> int:
        """Return how many runs are followed now."""
        return len(self._followed)

    def _follow(self, key: str, followed: _Followed, follower: Following) -> None:
        while not self._has_ended(key, followed, follower):
            with followed.lock:
                try:
                    messages = follower.look()
                except Exception:  # noqa: BLE001 - a folder may hold anything; whoever listens comes again
                    _LOG.exception("%s is not followed any more", key)
                    messages, follower.is_gone = [], True
                followed.receivers = [
                    each for each in followed.receivers if each in followed.listeners
                ]
                receivers = list(followed.receivers)
            if follower.is_gone:
                messages.append(message("gone", {}))
            for listener in receivers if messages else []:
                listener.put_soon(messages, is_last=follower.is_gone)
            followed.nobody.wait(follower.interval_s)

    def _has_ended(self, key: str, followed: _Followed, follower: Following) -> bool:
        """End it if nobody listens."""
        with self._lock:
            if followed.listeners and not follower.is_gone:
                return False
            followed.has_ended = True
            if self._followed.get(key) is followed:
                del self._followed[key]
            for listener in followed.listeners:  # of a run that has gone
                listener.put_soon([], is_last=True)
            followed.listeners.clear()
            return True
