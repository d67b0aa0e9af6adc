"""Who listens to which run: one thread follows a run for all of them, as long as there are any."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from monitor.http.errors import TooManyError
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
        for one in messages:
            if one.log and one.log not in self.logs:
                continue
            self._waiting.append(one.data)
            self._num_bytes += len(one.data)
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
            one = self._followed.get(key)
            if one is None or one.has_ended:
                one = self._followed[key] = _Followed()
            one.listeners.append(listener)  # from here on it is not ended
            one.nobody.clear()
        try:
            with one.lock:
                if one.follower is None:
                    one.follower = make()
                    name = f"follow {key[-40:]}"
                    todo = (key, one, one.follower)
                    threading.Thread(target=self._follow, args=todo, name=name, daemon=True).start()
                one.follower.want(listener.logs)
                begin = one.follower.first()
                listener.put_soon(begin + (one.follower.since(cursor) if cursor else []))
                one.receivers.append(listener)
        except BaseException:
            self.leave(key, listener)
            raise

    def leave(self, key: str, listener: Listener) -> None:
        """Stop listening."""
        with self._lock:
            one = self._followed.get(key)
            if one is not None and listener in one.listeners:
                one.listeners.remove(listener)
                if not one.listeners:
                    one.nobody.set()
                    if one.follower is None:
                        del self._followed[key]

    def close(self) -> None:
        """End all streams: the server ends."""
        with self._lock:
            for one in self._followed.values():
                for listener in one.listeners:
                    listener.put_soon([], is_last=True)

    def num_followed(self) -> int:
        """Return how many runs are followed now."""
        return len(self._followed)

    def _follow(self, key: str, one: _Followed, follower: Following) -> None:
        while not self._has_ended(key, one, follower):
            with one.lock:
                try:
                    messages = follower.look()
                except Exception:  # noqa: BLE001 - a folder may hold anything; whoever listens comes again
                    _LOG.exception("%s is not followed any more", key)
                    messages, follower.is_gone = [], True
                one.receivers = [each for each in one.receivers if each in one.listeners]
                receivers = list(one.receivers)
            if follower.is_gone:
                messages.append(message("gone", {}))
            for listener in receivers if messages else []:
                listener.put_soon(messages, is_last=follower.is_gone)
            one.nobody.wait(follower.interval_s)

    def _has_ended(self, key: str, one: _Followed, follower: Following) -> bool:
        """End it if nobody listens."""
        with self._lock:
            if one.listeners and not follower.is_gone:
                return False
            one.has_ended = True
            if self._followed.get(key) is one:
                del self._followed[key]
            for listener in one.listeners:  # of a run that has gone
                listener.put_soon([], is_last=True)
            one.listeners.clear()
            return True
