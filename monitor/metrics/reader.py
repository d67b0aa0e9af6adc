"""From the events of a run to its index, a piece at a time, in whichever process has the time."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from monitor.http.api_errors import NotFoundError
from monitor.metrics.numbers import position
from monitor.metrics.part import Part
from monitor.metrics.store import Source, Store
from monitor.runs.inside import inside, names_inside
from rundir.events import Event
from rundir.paths import RunDir
from rundir.schema import spec_of

_HEAD_BYTES = 256  # of a file, to know it again: the first event has a time and a pid
_KEYS = ("set", "dataset")  # fields that say what the figures are of
_MOST_PARTS = 4096  # of one run
_WORDS = (b'"metric"', b'"train.plan"')  # a line without is none that matters here


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the events is in the index."""

    num_bytes: int
    of_bytes: int
    done: bool

    def told(self) -> dict[str, int | bool]:
        """Return it for JSON."""
        return {"bytes": self.num_bytes, "of_bytes": self.of_bytes, "done": self.done}


class _AnotherRunError(Exception):
    """The index is one of other files than those that are there."""


def advance(store: Store, run: RunDir, most_bytes: int, *, wait_s: float = 0.1) -> Progress:
    """Add up to `most_bytes` of the run's events to the index; return how far it is then.

    Raises BrokenError, UnusableError, or BusyError if another process adds to it for so long.
    """
    files = _files(run)
    with store.reading():
        before = _progress(store.sources(), files)
    if before is not None and before.done:
        return before
    with store.writing(wait_s):
        try:
            return _added(store, run, files, most_bytes)
        except _AnotherRunError:
            store.clear()
            return _added(store, run, files, most_bytes)


def _added(store: Store, run: RunDir, files: dict[str, _File], most_bytes: int) -> Progress:
    """Add a piece of the first file that has one. Raises _AnotherRunError."""
    sources = store.sources()
    if _progress(sources, files) is None:
        raise _AnotherRunError
    for name in sorted(files, key=_order):
        source = sources.get(name) or Source(name, files[name].inode, b"")
        if source.offset < files[name].size:
            num_read = _read(store, run, source, most_bytes)
            if num_read:
                sources[name] = source
                store.put_source(source)
                break
            # The rest is a line that is still being written, and no reason to wait.
            files[name] = replace(files[name], size=source.offset)
    return _progress(sources, files) or _nothing(files)


def progress_of(store: Store, run: RunDir) -> Progress:
    """Return how far the index is, and add nothing."""
    files = _files(run)
    with store.reading():
        progress = _progress(store.sources(), files)
    return progress or _nothing(files)


def _nothing(files: dict[str, _File]) -> Progress:
    return Progress(0, sum(file.size for file in files.values()), done=False)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of events as it is now."""

    size: int
    inode: int


def _files(run: RunDir) -> dict[str, _File]:
    files = {}
    for name in names_inside(run, "events"):
        if not name.endswith(".jsonl"):
            continue
        try:
            there = os.lstat(run.events / name)
        except OSError:  # gone meanwhile
            continue
        if stat.S_ISREG(there.st_mode):
            files[name] = _File(there.st_size, there.st_ino)
    return files


def _order(name: str) -> tuple[int, int, str]:
    """What everybody looks at comes first: losses, then the host, then the other ranks."""
    first = {"rank0.jsonl": 0, "launch.jsonl": 1}.get(name, 2)
    return first, int((re.findall(r"\d{1,9}", name) or ["0"])[0]), name


def _progress(sources: dict[str, Source], files: dict[str, _File]) -> Progress | None:
    """Return how far the index is; None if it is one of other files."""
    num_bytes = 0
    for name, source in sources.items():
        file = files.get(name)
        if file is None or file.inode != source.inode or file.size < source.offset:
            return None
        num_bytes += source.offset
    of_bytes = sum(file.size for file in files.values())
    return Progress(num_bytes, of_bytes, done=num_bytes >= of_bytes)


def _read(store: Store, run: RunDir, source: Source, most_bytes: int) -> int:
    """Add what follows in one file; return its bytes. Raises _AnotherRunError."""
    try:
        with inside(run, "events", source.name) as file:
            inode, head = os.fstat(file.fileno()).st_ino, file.read(_HEAD_BYTES)
            if source.head and not (inode == source.inode and head.startswith(source.head)):
                raise _AnotherRunError
            source.inode, source.head = inode, source.head or head
            data = _block(file, source.offset, most_bytes)
    except (NotFoundError, OSError):
        return 0
    _Lines(store, run, source.name).add(data)
    source.offset += len(data)
    return len(data)


def _block(file: BinaryIO, offset: int, most_bytes: int) -> bytes:
    """Return whole lines from `offset` on; of a line that is longer than a block, a piece."""
    file.seek(offset)
    data = file.read(most_bytes)
    whole = data.rfind(b"\n") + 1
    return data[:whole] if whole or len(data) < most_bytes else data


class _Lines:
    """The events of a block, put into the parts that they belong to."""

    def __init__(self, store: Store, run: RunDir, source: str) -> None:
        self._store = store
        self._run = run
        self._source = source
        self._rows = store.parts()
        self._parts: dict[str, Part] = {}

    def add(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            if _WORDS[0] in line or _WORDS[1] in line:
                event = _parsed(line)
                if event is not None:
                    self._take(event)
        for part in self._parts.values():
            part.flush()

    def _take(self, event: Event) -> None:
        if event.get("kind") == "metric" and isinstance(event.get("name"), str):
            part = self._part_of(event)
            if part is not None:
                if part.row.by == "step":
                    self._go_back(part, event)
                part.add(event)
        elif event.get("name") == "train.plan":
            self._begin_attempt(event)

    def _part_of(self, event: Event) -> Part | None:
        name = part_of(event)
        part = self._parts.get(name)
        if part is None:
            row = self._rows.get(name)
            if row is None:
                if len(self._rows) >= _MOST_PARTS:
                    return None
                by = "step" if "step" in event else "t"
                row = self._rows[name] = self._store.put_part(name, by, self._source)
            part = self._parts[name] = Part(self._store, row)
        return part

    def _begin_attempt(self, event: Event) -> None:
        """Training begins, or goes on from a checkpoint: later steps will be trained again."""
        step, attempt = _whole(event.get("first_step")), _whole(event.get("attempt"))
        if step == 0 and attempt == 0:
            return
        self._cut(step + 1)
        of_run = _resumed_run(self._run) if attempt == 0 else None
        self._mark(event, step, of_run, "restart" if attempt else "resume")

    def _go_back(self, part: Part, event: Event) -> None:
        """Forget what this row says anew: after a roll-back, or a restart of another rank."""
        last, step = part.last, event.get("step")
        if last is None or type(step) is not int or step > last:
            return
        if part.row.name == "train" and step < last:
            self._cut(step)
            self._mark(event, int(part.last or 0), None, "rollback")
        elif part.cut(step):
            self._store.count_cut()

    def _cut(self, step: int) -> None:
        """Remove the rows of this file from `step` on."""
        for row in list(self._rows.values()):
            if row.source == self._source and row.by == "step":
                if row.name not in self._parts:
                    self._parts[row.name] = Part(self._store, row)
                if self._parts[row.name].cut(step):
                    self._store.count_cut()

    def _mark(self, event: Event, step: int, of_run: str | None, why: str) -> None:
        """Note that training goes on after `step`."""
        attempt = _whole(event.get("attempt"))
        self._store.put_resume(step, attempt, position(event.get("t")) or 0.0, of_run, why)


def part_of(event: Event) -> str:
    """Return the part that a metric belongs to: its name, with @KEY if there are several."""
    name: str = event["name"]
    if "index" in event:
        node = event.get("node")
        key = f"{node}.{event['index']}" if node else f"{event['index']}"
    elif keys := [event[key] for key in _KEYS if isinstance(event.get(key), str)]:
        key = keys[0]
    elif _is_of_rank(name):
        key = f"{event.get('rank')}"
    else:
        return name[:200]
    return f"{name}@{key}"[:200]


def _is_of_rank(name: str) -> bool:
    try:
        return spec_of("metric", name).writer == "rank"
    except KeyError:
        return False


def _parsed(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # torn by a full disk or a kill; or no event at all
        return None
    return event if isinstance(event, dict) else None


def _whole(value: object) -> int:
    return value if type(value) is int and abs(value) < 1 << 53 else 0


def _resumed_run(run: RunDir) -> str | None:
    """Return the id of the run whose checkpoint this run began with."""
    try:
        with inside(run, "prepared.json") as file:
            path = json.loads(file.read(1 << 24))["resume_from"]
        return Path(path).parent.parent.name or None
    except (NotFoundError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
