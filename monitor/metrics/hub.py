"""Who listens to which run: one task follows a run for all of them, as long as there are any."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from monitor.http.json_api import TooManyError
from monitor.metrics.stream_messages import Message, message

_LOG = logging.getLogger(__name__)
MOST_FOLLOWED = 64
_NUM_THREADS = 4  # that read files for all that is followed
_MOST_WAITING_BYTES = 2 << 20  # for one listener
_MOST_TAKEN_BYTES = 64 << 10  # at once: each listener that is slow holds so much of its own

T = TypeVar("T")


class Following(Protocol):
    """What `RunFollower` and `RunsFollower` have in common; a thread at a time calls them."""

    interval_s: float
    is_gone: bool

    def first(self) -> list[Message]: ...
    def since(self, cursor: str) -> list[Message]: ...
    def changes(self) -> list[Message]: ...
    def follow_logs(self, logs: frozenset[str]) -> None: ...


class Listener:
    """One who listens: messages wait here, and are dropped if they are not taken."""

    def __init__(self, logs: frozenset[str]) -> None:
        self.logs = logs
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._news = asyncio.Event()
        self._is_over = False

    def put(self, messages: list[Message], *, is_last: bool = False) -> None:
        """Put messages here."""
        for item in messages:
            if item.log and item.log not in self.logs:
                continue
            self._waiting.append(item.data)
            self._num_bytes += len(item.data)
        if self._num_bytes > _MOST_WAITING_BYTES:
            # Without an id: should the connection end now, all of it is told again.
            self._waiting = deque([message("reset", {}).data])
            self._num_bytes = len(self._waiting[0])
        self._is_over |= is_last
        if self._waiting or self._is_over:
            self._news.set()

    async def take(self, timeout_s: float) -> bytes:
        """Return some of what waits, as soon as there is any; nothing when the time is up."""
        if not self._waiting and not self._is_over:
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
        return self._is_over and not self._waiting


class _Followed:
    """A follower, the task that asks it for changes, and who listens."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # held while it is asked: who comes meanwhile misses nothing
        self.follower: Following | None = None
        self.task: asyncio.Task[None] | None = None
        self.listeners: set[Listener] = set()  # who keeps it going
        self.receivers: set[Listener] = set()  # who has been told how things stand


class Hub:
    """All that is followed, for one event loop; files are read by threads."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="follow")

    async def listen(
        self, key: str, make: Callable[[], Following], listener: Listener, cursor: str
    ) -> None:
        """Begin to listen to what `make()` follows; it is made once for all of the same key.

        Each listener has to `leave`. Raises TooManyError.
        """
        if key not in self._followed and len(self._followed) >= MOST_FOLLOWED:
            raise TooManyError(f"{MOST_FOLLOWED} runs are followed", "close a page first")
        followed = self._followed.setdefault(key, _Followed())
        followed.listeners.add(listener)
        try:
            async with followed.lock:
                follower = followed.follower
                if follower is None:
                    follower = followed.follower = await self._in_thread(make)
                    followed.task = asyncio.create_task(self._follow(key, followed, follower))

                def begin() -> list[Message]:
                    follower.follow_logs(listener.logs)
                    return follower.first() + (follower.since(cursor) if cursor else [])

                listener.put(await self._in_thread(begin), is_last=follower.is_gone)
                followed.receivers.add(listener)
        except BaseException:
            self.leave(key, listener)
            raise

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _follow(self, key: str, followed: _Followed, follower: Following) -> None:
        while not follower.is_gone:
            async with followed.lock:
                try:
                    messages = await self._in_thread(follower.changes)
                except Exception:  # noqa: BLE001 - a folder may hold anything; whoever listens comes again
                    _LOG.exception("%s is not followed any more", key)
                    messages, follower.is_gone = [], True
                if follower.is_gone:
                    messages.append(message("gone", {}))
                for listener in followed.receivers:
                    listener.put(messages, is_last=follower.is_gone)
            await asyncio.sleep(follower.interval_s)
        if self._followed.get(key) is followed:
            del self._followed[key]

    def leave(self, key: str, listener: Listener) -> None:
        """Stop listening."""
        followed = self._followed.get(key)
        if followed is not None and listener in followed.listeners:
            followed.listeners.remove(listener)
            followed.receivers.discard(listener)
            if not followed.listeners:
                del self._followed[key]
                if followed.task is not None:
                    followed.task.cancel()

    def close(self) -> None:
        """End all streams: the server ends."""
        for followed in self._followed.values():
            for listener in followed.listeners:
                listener.put([], is_last=True)
