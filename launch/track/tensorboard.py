"""A tracker that writes TensorBoard's event files."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.track.figures import FigureTracker


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Hide torch from tensorboardX, which imports it for what is not used here: 8 s and 150 MB."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way to mark it absent
    try:
        yield
    finally:
        del sys.modules["torch"]


class TensorBoard(FigureTracker):
    """One event file in `folder`, which replaces those that were there before.

    SummaryWriter would write it from a thread, and hang when the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        with _without_torch():
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import RecordWriter
        folder.mkdir(exist_ok=True)
        self._before = list(folder.glob("events.out.tfevents.*"))
        # TensorBoard recognises the files by this prefix, and reads them in order of name.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        self._event, self._session = event_pb2.Event, event_pb2.SessionLog
        self._summary = summary_pb2.Summary
        self._records = RecordWriter(str(self._path))
        self._write(wall_time=time.time(), file_version="brain.Event:2")

    def repeat_from(self, step: int) -> None:
        """Begin a session that starts at `step`: TensorBoard drops what it has from there on."""
        self._write(step=step, session_log=self._session(status=self._session.START))

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:
        """Write all figures in one record."""
        values = [
            self._summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()
        ]
        self._write(wall_time=t, step=step, summary=self._summary(value=values))

    def flush(self) -> None:
        """Write everything to the disk. Raises OSError when it is full."""
        with self._giving_up():
            self._records.flush()
        while self._before:  # this file now holds all that they held
            self._before.pop().unlink(missing_ok=True)

    def close(self) -> None:
        """Write everything to the disk and close the file. Raises OSError when the disk is full."""
        self.flush()
        self._records.close()

    def _write(self, **fields: Any) -> None:
        with self._giving_up():
            self._records.write(self._event(**fields).SerializeToString())

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """End this file on an error; those that it was to replace are better."""
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError):
                self._records.close()
            if self._before:
                self._path.unlink(missing_ok=True)
            raise
