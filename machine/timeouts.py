"""Calls with a timeout, for what may never return: a stuck driver, a mount whose server is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedCall(Generic[T]):
    """A call running in its own daemon thread, which does not delay the end of the process."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answers: list[T] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self, deadline: float) -> T:
        """Return the call's result, or raise what it raised.

        Raises TimeoutError if there is none by `deadline`, a value of time.monotonic(). The thread
        keeps running.
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
        except Exception as error:  # noqa: BLE001 - raised again in `answer`
            self._errors.append(error)


def within(timeout_s: float, ask: Callable[[], T]) -> T:
    """Return the result of `ask`, or raise what it raised, or TimeoutError after `timeout_s`."""
    return TimedCall(ask).answer(time.monotonic() + timeout_s)
