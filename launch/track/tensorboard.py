"""TensorBoard's event files."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


class TensorBoard:
    """One event file in `folder`, which takes the place of those that were there.

    It is written by hand, not through SummaryWriter, whose thread hangs when the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        # tensorboardX imports torch where it can, for what is not used here: 8 s and 150 MB.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(exist_ok=True)
        self._before = list(folder.glob("events.out.tfevents.*"))
        self._event, self._session, self._summary = (
            event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary,
        )  # fmt: skip
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}")

    def repeat_from(self, step: int) -> None:
        """As a session that starts at `step`: TensorBoard drops what it has from there on."""
        start = self._session(status=self._session.START)
        self._writer.write_event(self._event(step=step, session_log=start))

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:
        """All figures in one record."""
        values = [
            self._summary.Value(tag=name, simple_value=figure) for name, figure in figures.items()
        ]
        summary = self._summary(value=values)
        self._writer.write_event(self._event(wall_time=t, step=step, summary=summary))

    def flush(self) -> None:
        """To the disk. Raises OSError when it is full."""
        self._writer.flush()
        while self._before:  # this file now has all that they had
            with contextlib.suppress(FileNotFoundError):
                self._before.pop().unlink()

    def close(self) -> None:
        """To the disk. Raises OSError when it is full."""
        self._writer.close()
