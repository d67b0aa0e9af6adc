"""What is made by a thread while it is not needed yet."""

from __future__ import annotations

import threading
from collections.abc import Generator
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """Items of a generator without an end, at most so many ahead of what was taken.

    A thread, not a process: what is costly (the tokenizer) leaves the interpreter to others, and
    after CUDA was initialised nothing may be forked.
    """

    def __init__(self, items: Generator[Item], num_ahead: int) -> None:
        self._items, self._room = items, threading.Semaphore(num_ahead)
        self._made: SimpleQueue[Item | BaseException] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._make, name="data", daemon=True)
        self._thread.start()

    def next(self) -> Item:
        """The next item. Raises what the generator has raised in its place."""
        item = self._made.get()
        self._room.release()
        if isinstance(item, BaseException):
            self._made.put(item)  # nothing comes after it
            raise item
        return item

    def close(self) -> None:
        """Make no more; return once the thread has ended."""
        self._is_closed = True
        self._room.release()
        self._thread.join()

    def _make(self) -> None:
        try:
            while self._room.acquire() and not self._is_closed:
                self._made.put(next(self._items))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
            self._made.put(error)
        finally:
            self._items.close()
