"""What changes in a run folder, as messages of the stream: one follower for all who listen."""

from __future__ import annotations

import os
import re
import time
from dataclasses import asdict
from typing import Any

from monitor.metrics.stream_messages import Message, content_of, is_event, message, mono_of
from monitor.metrics.tail import MOST_BEHIND_BYTES, Line, Tail
from monitor.runs.inside import names_inside
from monitor.runs.run_config import mask_for
from monitor.runs.run_list import Runs
from rundir.paths import RunDir

_FILES_S = 1.0  # between two searches for new files
_ROW_S = 5.0  # after which a row is made anew: nobody writes that a launcher was killed
_OFFSET = r"[A-Za-z0-9_./-]+=[0-9]{1,18}"
_CURSOR = re.compile(rf"(?P<identity>[0-9a-f]{{1,16}})~(?P<offsets>{_OFFSET}(,{_OFFSET})*)")


class RunFollower:
    """Follows one run. To be used by one thread at a time."""

    interval_s = 0.25

    def __init__(self, runs: Runs, run: RunDir) -> None:
        self._runs = runs
        self._run = run
        self._tails: dict[str, Tail] = {}  # by name in the cursor: events/rank0.jsonl
        self._answers: dict[str, tuple[int, set[str]]] = {}
        self._row: dict[str, Any] | None = None
        self._row_mono = self._files_mono = 0.0
        self._stamp: tuple[int, int] | None = None
        self._identity = _identity(run)
        self._logs = frozenset({"run"})
        self._find_files(from_start=False)
        self.is_gone = False

    def first(self) -> list[Message]:
        """Return what someone who begins to listen has to know."""
        self._has_new_row()
        return [message("status", self._row, self._cursor(self._positions()))]

    def follow_logs(self, logs: frozenset[str]) -> None:
        """Follow these logs as well: `run`, `rank0`."""
        if not logs <= self._logs:
            self._logs |= logs
            self._find_files(from_start=False)

    def changes(self) -> list[Message]:
        """Return what has happened since the last call, in order of time."""
        now = time.monotonic()
        if now - self._files_mono > _FILES_S:
            self._find_files(from_start=True)
        lines: list[tuple[float, str, Line]] = []
        positions = self._positions()
        messages = []
        for name, tail in self._tails.items():
            new_lines, has_lost = tail.new_lines()
            lines += [(mono_of(name, line), name, line) for line in new_lines]
            if has_lost:
                messages.append(message("reset", {"file": name}))
        messages += self._messages(lines, positions)
        messages += self._new_answers()
        if self._has_new_row():
            messages.append(message("status", self._row, self._cursor(positions)))
        return messages

    def since(self, cursor: str) -> list[Message]:
        """Return what has happened since `cursor`; a `reset` if that cannot be told any more."""
        match = _CURSOR.fullmatch(cursor)
        pairs = (pair.split("=") for pair in match["offsets"].split(",")) if match else ()
        positions = {name: int(offset) for name, offset in pairs}
        now = self._positions()
        begins = {
            name: positions.get(name, 0 if is_event(name) else end) for name, end in now.items()
        }
        is_ours = match is not None and match["identity"] == self._identity
        is_near = sum(now[name] - begins[name] for name in now) <= MOST_BEHIND_BYTES
        if not is_ours or not is_near or any(now[name] < begins[name] for name in now):
            return [message("reset", {}, self._cursor(now))]
        lines = [
            (mono_of(name, line), name, line)
            for name, tail in self._tails.items()
            for line in tail.between(begins[name], now[name])
        ]
        return self._messages(lines, begins)

    def _messages(
        self, lines: list[tuple[float, str, Line]], positions: dict[str, int]
    ) -> list[Message]:
        """Return the messages of lines, each with the positions after it."""
        messages = []
        mask = mask_for(self._run)
        for _, name, line in sorted(lines, key=lambda timed: timed[0]):
            positions[name] = line.end
            kind, content = content_of(name, line, mask)
            if kind:
                log = content["file"] if kind == "log" else ""
                messages.append(message(kind, content, self._cursor(positions), log))
        return messages

    def _positions(self) -> dict[str, int]:
        return {name: tail.offset for name, tail in self._tails.items()}

    def _cursor(self, positions: dict[str, int]) -> str:
        pairs = ",".join(f"{name}={offset}" for name, offset in positions.items())
        return f"{self._identity}~{pairs}"

    def _find_files(self, *, from_start: bool) -> None:
        self._files_mono = time.monotonic()
        if not self._run.path.is_dir():
            self.is_gone = True
            return
        events = names_inside(self._run, "events")
        files = [f"events/{name}" for name in events if name.endswith(".jsonl")]
        files.append("logs/run.log")
        folders = names_inside(self._run, "logs")
        attempts = [int(name[7:]) for name in folders if re.fullmatch(r"attempt\d{1,6}", name)]
        if attempts:
            last = f"attempt{max(attempts)}"
            logs = names_inside(self._run, "logs", last)
            files += [
                f"logs/{last}/{log}" for log in logs if log.removesuffix(".log") in self._logs
            ]
        for name in files:
            parts = tuple(name.split("/"))
            if name not in self._tails and re.fullmatch(r"[A-Za-z0-9_.-]+", parts[-1]):
                self._tails[name] = Tail(self._run, parts, from_start=from_start)
        for dataset in names_inside(self._run, "evolution"):
            if dataset not in self._answers:
                known = set() if from_start else set(names_inside(self._run, "evolution", dataset))
                self._answers[dataset] = (0, known)

    def _new_answers(self) -> list[Message]:
        """Return the snapshots of answers that are new."""
        messages = []
        for dataset, (mtime_ns, known) in self._answers.items():
            try:
                now_ns = os.lstat(self._run.path / "evolution" / dataset).st_mtime_ns
            except OSError:
                continue
            if now_ns == mtime_ns:
                continue
            names = set(names_inside(self._run, "evolution", dataset))
            steps = [re.fullmatch(r"step_(\d{1,18})\.json", name) for name in names - known]
            new = sorted(int(step[1]) for step in steps if step)
            messages += [message("answers", {"dataset": dataset, "step": step}) for step in new]
            self._answers[dataset] = (now_ns, names)
        return messages

    def _has_new_row(self) -> bool:
        """Make the row anew if status.json has changed; return whether it is another."""
        try:
            there = os.lstat(self._run.status)
            stamp = (there.st_mtime_ns, there.st_ino)
        except OSError:
            stamp = (0, 0)
        now = time.monotonic()
        if stamp == self._stamp and now - self._row_mono < _ROW_S:
            return False
        self._stamp, self._row_mono = stamp, now
        row = self._runs.row(self._run)
        if row is None:
            self.is_gone = True
            return False
        before, self._row = self._row, asdict(row)
        return self._row != before


def _identity(run: RunDir) -> str:
    """Return what tells this run folder from a later one of that name."""
    try:
        return f"{os.lstat(run.path).st_ino:x}"
    except OSError:
        return "0"


class RunsFollower:
    """Follows the rows of the newest runs."""

    interval_s = 0.5
    is_gone = False
    _MOST = 50

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._rows: dict[str, dict[str, Any]] = {}
        self._total = -1
        self.changes()

    def first(self) -> list[Message]:
        """Return all rows."""
        rows = list(self._rows.values())
        return [message("runs", {"runs": rows, "removed": [], "total": self._total})]

    def follow_logs(self, logs: frozenset[str]) -> None:
        """Do nothing: there are no logs here."""

    def since(self, cursor: str) -> list[Message]:  # noqa: ARG002 - the rows as they are say all
        """Return nothing: `first` has told everything."""
        return []

    def changes(self) -> list[Message]:
        """Return the rows that have changed since the last call."""
        newest, total = self._runs.page(limit=self._MOST)
        rows = {row.id: asdict(row) for row in newest}
        changed = [row for key, row in rows.items() if self._rows.get(key) != row]
        removed = [key for key in self._rows if key not in rows]
        if not (changed or removed or total != self._total):
            return []
        self._rows, self._total = rows, total
        return [message("runs", {"runs": changed, "removed": removed, "total": total})]
