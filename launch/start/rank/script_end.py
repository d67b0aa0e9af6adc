"""The end of a script in a rank: how it ended and at which line, for those who wait for it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

from rundir.pulse import Left, Pulse


class ScriptEnd:
    """Records in the pulse of a rank where its script has ended; create it before the script runs.

    `is_foreign` tells by a file name whether code belongs to a library, or to us.
    """

    def __init__(self, pulse: Pulse, is_foreign: Callable[[str], bool]) -> None:
        self._pulse, self._is_foreign = pulse, is_foreign
        self._frame: FrameType | None = None

    @contextlib.contextmanager
    def keeping_frame(self, program: CodeType) -> Iterator[None]:
        """Keep the frame of `program`, which the block runs: it shows the last line that ran.

        A profiler that is at work already, or that `program` starts, is left alone.
        """
        if sys.getprofile() is not None:
            yield
            return

        def first_call(frame: FrameType, _event: str, _arg: Any) -> None:
            if frame.f_code is program:
                self._frame = frame
                sys.setprofile(None)

        sys.setprofile(first_call)
        try:
            yield
        finally:
            if sys.getprofile() is first_call:
                sys.setprofile(None)

    def ended(self) -> None:
        """Record that the script has come to its end."""
        if self._frame is not None:
            self._record("ended", self._frame.f_code.co_filename, self._frame.f_lineno or 0, 0)
        self._frame = None

    def raised(self, error: BaseException, code: int) -> None:
        """Record the exception, or `sys.exit`, that has ended the script with exit code `code`."""
        self._frame = None
        how = "exited" if isinstance(error, SystemExit) else "raised"
        entries = list(_entries(error.__traceback__))
        own = [
            entry for entry in entries if not self._is_foreign(entry.tb_frame.f_code.co_filename)
        ]
        for last in (own or entries)[-1:]:
            self._record(how, last.tb_frame.f_code.co_filename, last.tb_lineno or 0, code)

    def _record(self, how: str, file: str, line: int, code: int) -> None:
        left = Left(how=how, file=file, line=line, code=code, mono=round(time.monotonic(), 3))
        self._pulse.left(left)


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
