"""Ask what may never answer: a stuck driver, a mount whose server is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Asked(Generic[T]):
    """A question, under way in a thread of its own, which the end of the process does not await."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answers: list[T] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self, deadline: float) -> T:
        """The answer, or whatever was raised instead; `deadline` is one of time.monotonic().

        Raises TimeoutError when there is none by then. The thread is left to itself.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._errors:
            raise self._errors[0]
        if not self._answers:
            raise TimeoutError
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            self._errors.append(error)


def within(timeout_s: float, ask: Callable[[], T]) -> T:
    """The answer, or whatever was raised instead. Raises TimeoutError after `timeout_s`."""
    return Asked(ask).answer(time.monotonic() + timeout_s)
