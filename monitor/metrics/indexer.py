"""From the events of a run to its index, a piece at a time, in whichever process has the time."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from monitor.http.json_api import NotFoundError
from monitor.metrics.pending_rows import PendingRows, finite
from monitor.metrics.store import EventsFile, IndexState, MetricTable, Resume, Store
from monitor.runs.inside import inside, names_inside
from rundir.events import Event
from rundir.paths import RunDir
from rundir.schema import spec_of

_HEAD_BYTES = 256  # of a file, to know it again: the first event has a time and a pid
_KEYS = ("set", "dataset")  # fields that say what the figures are of
_MOST_TABLES = 4096  # of one run
_WORDS = (b'"metric"', b'"train.plan"')  # a line without is none that matters here

Files = dict[str, os.stat_result]


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the events is in the index."""

    num_bytes: int
    of_bytes: int
    done: bool

    def as_json(self) -> dict[str, int | bool]:
        """Return it for JSON."""
        return {"bytes": self.num_bytes, "of_bytes": self.of_bytes, "done": self.done}


class _AnotherRunError(Exception):
    """The index is one of other files than those that are there."""


def advance(store: Store, run: RunDir, most_bytes: int) -> Progress:
    """Add up to `most_bytes` of the run's events to the index; return how far it is then.

    Raises BrokenError, OSError, or BusyError if another process adds to it.
    """
    files = _files(run)
    indexed = store.state()
    if indexed is not None and _is_of(indexed, files):
        progress = _progress(indexed, files)
        if progress.done:
            return progress
    with store.writing():
        before = store.state()
        state = before or IndexState()
        try:
            is_done = _add_piece(store, run, state, files, most_bytes)
        except _AnotherRunError:
            state = IndexState(num_numbered=state.num_numbered)
            is_done = _add_piece(store, run, state, files, most_bytes)
        if state is not before or not is_done:
            store.replace_state(state)
        if before is None or before.identity != state.identity:
            store.remove_unused(state)
    return _progress(state, files, is_done=is_done)


def progress_of(store: Store, run: RunDir) -> Progress:
    """Return how far the index is, and add nothing."""
    files = _files(run)
    state = store.state()
    return _progress(state if state and _is_of(state, files) else IndexState(), files)


def _progress(state: IndexState, files: Files, *, is_done: bool = False) -> Progress:
    num_bytes = sum(file.offset for file in state.events_files.values())
    of_bytes = sum(file.st_size for file in files.values())
    return Progress(num_bytes, of_bytes, done=is_done or num_bytes >= of_bytes)


def _files(run: RunDir) -> Files:
    files = {}
    for name in names_inside(run, "events"):
        if not name.endswith(".jsonl"):
            continue
        try:
            there = os.lstat(run.events / name)
        except OSError:  # gone meanwhile
            continue
        if stat.S_ISREG(there.st_mode):
            files[name] = there
    return files


def _order(name: str) -> tuple[int, int, str]:
    """What everybody looks at comes first: losses, then the host, then the other ranks."""
    first = {"rank0.jsonl": 0, "launch.jsonl": 1}.get(name, 2)
    return first, int((re.findall(r"\d{1,9}", name) or ["0"])[0]), name


def _is_of(state: IndexState, files: Files) -> bool:
    """Return whether the index is one of these files, by what can be seen from outside."""
    return all(
        name in files and files[name].st_ino == read.inode and files[name].st_size >= read.offset
        for name, read in state.events_files.items()
    )


def _add_piece(store: Store, run: RunDir, state: IndexState, files: Files, most_bytes: int) -> bool:
    """Add a piece of the first file that has one; return whether there was none.

    Raises _AnotherRunError.
    """
    if not _is_of(state, files):
        raise _AnotherRunError
    for name in sorted(files, key=_order):
        read = state.events_files.get(name) or EventsFile(files[name].st_ino)
        # With nothing to read, the rest is a line that is still being written.
        if read.offset < files[name].st_size and (data := _next_lines(run, name, read, most_bytes)):
            _Events(store, run, state, name).add(data)
            read.offset += len(data)
            state.events_files[name] = read
            return False
    return True


def _next_lines(run: RunDir, name: str, read: EventsFile, most_bytes: int) -> bytes:
    """Return whole lines that follow in a file; of a line that is longer than that, a piece.

    Raises _AnotherRunError.
    """
    try:
        with inside(run, "events", name) as file:
            inode, head = os.fstat(file.fileno()).st_ino, file.read(_HEAD_BYTES).hex()
            if read.head and not (inode == read.inode and head.startswith(read.head)):
                raise _AnotherRunError
            read.inode, read.head = inode, read.head or head
            file.seek(read.offset)
            data = file.read(most_bytes)
    except (NotFoundError, OSError):
        return b""
    whole = data.rfind(b"\n") + 1
    return data[:whole] if whole or len(data) < most_bytes else data


class _Events:
    """The events of a piece of one file, put into the tables that they belong to."""

    def __init__(self, store: Store, run: RunDir, state: IndexState, file: str) -> None:
        self._store = store
        self._run = run
        self._state = state
        self._file = file
        self._pending: dict[str, PendingRows] = {}

    def add(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            if _WORDS[0] in line or _WORDS[1] in line:
                event = _parsed(line)
                if event.get("kind") == "metric" and isinstance(event.get("name"), str):
                    self._add_metric(event)
                elif event.get("name") == "train.plan":
                    self._begin_attempt(event)
        for rows in self._pending.values():
            rows.flush()

    def _add_metric(self, event: Event) -> None:
        name = table_name(event)
        if name not in self._state.tables:
            if len(self._state.tables) >= _MOST_TABLES:
                return
            by = "step" if "step" in event else "t"
            number = self._state.new_number()
            self._state.tables[name] = MetricTable(number, by, self._file)
        rows = self._rows(name)
        if rows.table.by == "step":
            self._go_back(name, rows, event)
        rows.add(event)

    def _rows(self, name: str) -> PendingRows:
        if name not in self._pending:
            table = self._state.tables[name]
            self._pending[name] = PendingRows(self._store, self._state, table)
        return self._pending[name]

    def _begin_attempt(self, event: Event) -> None:
        """Training begins, or goes on from a checkpoint: later steps will be trained again."""
        step, attempt = _whole(event.get("first_step")), _whole(event.get("attempt"))
        if step == 0 and attempt == 0:
            return
        self._cut(step + 1)
        from_run = _resumed_run(self._run) if attempt == 0 else None
        self._mark(event, step, from_run, "restart" if attempt else "resume")

    def _go_back(self, name: str, rows: PendingRows, event: Event) -> None:
        """Forget what this row says anew: after a roll-back, or a restart of another rank."""
        last, step = rows.last_x, event.get("step")
        if last is None or type(step) is not int or step > last:
            return
        if name == "train" and step < last:
            self._cut(step)
            self._mark(event, int(rows.last_x or 0), None, "rollback")
        elif rows.cut(step):
            self._state.lose_rows()

    def _cut(self, step: int) -> None:
        """Remove the rows of this file from `step` on."""
        for name, table in self._state.tables.items():
            is_ours = table.events_file == self._file and table.by == "step"
            if is_ours and self._rows(name).cut(step):
                self._state.lose_rows()

    def _mark(self, event: Event, step: int, from_run: str | None, why: str) -> None:
        """Note that training goes on after `step`."""
        attempt, t = _whole(event.get("attempt")), finite(event.get("t")) or 0.0
        self._state.resumes.append(Resume(step, attempt, t, from_run, why))


def table_name(event: Event) -> str:
    """Return the table that a metric belongs to: its name, with @KEY if there are several."""
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


def _parsed(line: bytes) -> Event:
    """Return the event of a line; an empty one for a line without."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # torn by a full disk or a kill
        return {}
    return event if isinstance(event, dict) else {}


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
