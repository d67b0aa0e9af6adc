"""The ledger: the processes inside the gate, of all runs on this node, and their memory needs.

Each process inside has an entry, a JSON file, and holds a lock of the same name: an entry whose
lock is free belonged to a process that died. Names are unique (pid namespace, pid, start time), so
removing the files of a dead process cannot affect a live one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.start.gate.turns import is_held, lock_file
from rundir.atomic import write_text
from rundir.process_id import boot_id, start_ticks, stat_fields


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A process inside the gate. `growth_bytes` is how much its memory may grow after entry.

    With `exclusive` nobody else is admitted beside it.
    """

    run: str
    who: str
    pid: int
    start_ticks: int  # proc_pid_stat(5), starttime; with boot_id and pid_space it tells this
    boot_id: str  # process from any other with the same pid
    pid_space: int
    exclusive: bool
    growth_bytes: int
    cores: float  # the number of cores it keeps busy
    anon_before_bytes: int
    phase: str
    since_mono: float  # start of the phase; monotonic, as the system clock may be set

    @property
    def wanted_bytes(self) -> int:
        """The memory it may still use, in bytes; the full growth if it cannot be inspected."""
        try:
            anon = anon_bytes(self.pid) if self.pid_space == pid_space() else 0
        except OSError:  # it has just ended
            return 0
        return max(0, self.growth_bytes - max(0, anon - self.anon_before_bytes))

    def __str__(self) -> str:
        age_s = max(0.0, time.monotonic() - self.since_mono)
        stopped = ", stopped by a signal (kill -CONT lets it go on)" if self._is_stopped() else ""
        return f"{self.who} of {self.run}, pid {self.pid}, {self.phase} for {age_s:.0f} s{stopped}"

    def _is_stopped(self) -> bool:
        try:
            return self.pid_space == pid_space() and stat_fields(self.pid)[0] in "Tt"
        except OSError:
            return False


def own_entry(run: str, who: str) -> LedgerEntry:
    """Return an exclusive entry for this process."""
    pid = os.getpid()
    return LedgerEntry(
        run=run,
        who=who,
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
        boot_id=boot_id(),
        pid_space=pid_space(),
        exclusive=True,
        growth_bytes=0,
        cores=1.0,
        anon_before_bytes=anon_bytes(pid),
        phase="admitted",
        since_mono=time.monotonic(),
    )


class Ledger:
    """The entries in `folder`. Read and enter with the node lock held; leave without it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def inside(self) -> list[LedgerEntry]:
        """Return the entries of those inside, longest in their phase first; remove the dead."""
        entries = []
        for file in self._folder.glob("*.json"):
            if not is_held(file.with_suffix(".lock")):
                _remove(file)
            elif (entry := _read(file)) is not None:
                entries.append(entry)
        return sorted(entries, key=lambda entry: entry.since_mono)

    def version(self) -> int:
        """Return a number that changes when anyone enters or leaves; far cheaper than `inside`."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def entered(self, entry: LedgerEntry) -> Iterator[None]:
        """Keep `entry` in the ledger while the block runs. Raises OSError on a full disk."""
        file = self._file(entry)
        self._folder.mkdir(parents=True, exist_ok=True)
        with lock_file(file.with_suffix(".lock")):
            try:
                self.write(entry)
                yield
            finally:
                _remove(file)

    def write(self, entry: LedgerEntry) -> None:
        """Write the entry of this process. Raises OSError."""
        write_text(self._file(entry), json.dumps(dataclasses.asdict(entry)), durable=False)

    def _file(self, entry: LedgerEntry) -> Path:
        return self._folder / f"{entry.pid_space}-{entry.pid}-{entry.start_ticks}.json"


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_suffix(".lock").unlink(missing_ok=True)


def _read(file: Path) -> LedgerEntry | None:
    """Return the entry, or None if its process has just left."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return LedgerEntry(**content)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # another version of Airlock: someone is inside, so wait
        return dataclasses.replace(own_entry("another version's run", "someone"), pid_space=0)


def pid_space() -> int:
    """Return the pid namespace of this process; in another one, pids mean other processes."""
    return Path("/proc/self/ns/pid").stat().st_ino


def anon_bytes(pid: int) -> int:
    """Return a process's resident anonymous and shared memory (proc_pid_status(5)), in bytes.

    Raises OSError.
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    fields = (line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return sum(int(number) * 1024 for _, number, _ in fields)
