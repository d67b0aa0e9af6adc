"""Writing and reading events, one JSON object per line."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rundir.files.reading import GrowingFile
from rundir.schema import VERSION, spec_of

Event = dict[str, Any]
# What every event has, whatever its name; the rest are the fields of the table in `rundir.schema`.
COMMON = frozenset({"v", "t", "mono", "node", "attempt", "rank", "pid", "kind", "name"})
_NEEDED = {"kind", "name", "mono", "rank"}  # without these a line is not an event


class EventWriter:
    """A writer that appends events to one file, each whole in one `os.write`.

    A full disk must not end a training run that could go on, so a write that fails is counted in
    `num_lost` and reported once on stderr instead of raised. It writes only in the process that
    created it: what a fork does is not to be attributed to that process.
    """

    def __init__(
        self, path: Path, *, rank: int | None = None, node: int = 0, attempt: int = 0
    ) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._base = {"node": node, "attempt": attempt, "rank": rank}
        self._pid = os.getpid()
        self.num_lost = 0
        self._is_torn = False

    def begin_attempt(self, attempt: int) -> None:
        """Assign further events to this attempt."""
        self._base["attempt"] = attempt

    def emit(self, kind: str, name: str, **fields: Any) -> None:
        """Write one event now; `fields` must be those of the table in `rundir.schema`."""
        self._check(kind, name, fields)
        if os.getpid() != self._pid:
            return
        event = {
            "v": VERSION,
            "t": time.time(),
            "mono": time.monotonic(),
            **self._base,
            "pid": self._pid,
            "kind": kind,
            "name": name,
            **fields,
        }
        line = (json.dumps(finite(event)) + "\n").encode()
        start = b"\n" if self._is_torn else b""  # keeps the rest of a torn line apart
        try:
            num_written = os.write(self._fd, start + line)
        except OSError as error:
            self._lose(str(error))
            return
        self._is_torn = num_written < len(start + line)
        if self._is_torn:
            self._lose("the disk is full")

    def _lose(self, why: str) -> None:
        self.num_lost += 1
        if self.num_lost == 1:
            print(f"airlock: events are being lost: {why}", file=sys.stderr)  # noqa: T201

    @staticmethod
    def _check(kind: str, name: str, fields: dict[str, Any]) -> None:
        spec = spec_of(kind, name)
        given = set(fields) - ({"duration_s", "ok"} if kind == "end" else set())
        assert given == set(spec.fields), f"{name}: {given ^ set(spec.fields)} not as in the table"
        for key, value in fields.items():
            assert value is not None or key in spec.optional, f"{name}.{key} may not be null"

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[None]:
        """Write `start` now, and `end` with its duration however the block is left.

        `ok` of the `end` is false if the block is left by an exception.
        """
        self.emit("start", name, **fields)
        start, ok = time.monotonic(), False
        try:
            yield
            ok = True
        finally:
            duration_s = round(time.monotonic() - start, 6)
            self.emit("end", name, duration_s=duration_s, ok=ok, **fields)

    def close(self) -> None:
        """Close the file; nothing can be emitted afterwards."""
        os.close(self._fd)


def finite(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinity become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


class EventTail:
    """A reader of what is appended to a file; an incomplete last line has to wait."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._file = GrowingFile(path, from_end_bytes=0 if from_end else None)
        self._rest = b""

    def new_events(self) -> list[Event]:
        """Return the events added since the last call; broken lines are skipped.

        Without a file there are no events.
        """
        *lines, self._rest = (self._rest + self._file.new_bytes()).split(b"\n")
        return [event for line in lines if (event := parse_line(line)) is not None]


def parse_line(line: bytes) -> Event | None:
    """Return the event of a line; None if it is none, as one that was cut off."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # a line truncated by a full disk or a kill
        return None
    return event if isinstance(event, dict) and event.keys() >= _NEEDED else None


class RunEvents:
    """All events of a run, from every writer, as they arrive."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[str, EventTail] = {}

    def new_events(self) -> list[Event]:
        """Return the events added since the last call, in order of time."""
        with suppress(FileNotFoundError), os.scandir(self._folder) as files:
            for entry in files:  # no Path of each: ten times a second, they cost more than the rest
                if entry.name.endswith(".jsonl") and entry.name not in self._tails:
                    self._tails[entry.name] = EventTail(self._folder / entry.name)
        events = [event for tail in self._tails.values() for event in tail.new_events()]
        return sorted(events, key=lambda event: float(event["mono"]))


def read_events(folder: Path) -> list[Event]:
    """Return every event of a run so far, in order of time."""
    return RunEvents(folder).new_events()
