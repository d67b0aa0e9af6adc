"""Memory and CPU use of a rank inside the gate: measured in one, predicted for the next."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.start.gate.ledger import anon_bytes
from rundir.atomic import write_text

_EVERY_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """The peak anonymous memory of a process, less what it had before, and how busy it was."""

    peak_bytes: int
    cores: float  # CPU time ÷ wall time: 0.9 when computing, 0.1 when waiting for a disk


class MemoryProfiler:
    """A context manager that measures the `MemoryProfile` of this process.

    File pages are left out, as the kernel reclaims them when it needs memory. A thread samples a
    hundred times a second; what comes and goes between two samples is never much.
    """

    def __init__(self) -> None:
        self._peak_bytes = 0
        self._before_bytes = anon_bytes(os.getpid())
        self._began_s, self._cpu_before_s = time.monotonic(), time.process_time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-profile", daemon=True)

    def __enter__(self) -> MemoryProfiler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def profile(self) -> MemoryProfile:
        """Return the profile measured so far."""
        busy_s = time.process_time() - self._cpu_before_s
        cores = busy_s / max(time.monotonic() - self._began_s, 1e-3)
        return MemoryProfile(peak_bytes=self._peak_bytes, cores=round(cores, 2))

    def _sample(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        self._peak_bytes = max(self._peak_bytes, anon_bytes(os.getpid()) - self._before_bytes)


class ProfileStore:
    """The profiles of a run's ranks, in `folder`, and that of earlier runs like it.

    The file `remembered` has the earlier figure, used until the first rank of this run is measured.
    """

    def __init__(self, folder: Path, remembered: Path | None = None) -> None:
        self._folder, self._remembered = folder, remembered

    def read(self) -> MemoryProfile | None:
        """Return the most that a rank took so far; None if nothing is known of such ranks."""
        own = _most(self._folder.glob("[0-9]*"))
        return _most([self._remembered]) if own is None and self._remembered else own

    def write(self, turn: int, profile: MemoryProfile) -> None:
        """Record what the rank with that turn took. Raises OSError."""
        _write(self._folder / str(turn), profile)
        most = self.read()
        if self._remembered and most:
            _write(self._remembered, most)


def _most(files: Iterable[Path]) -> MemoryProfile | None:
    profiles = []
    for file in files:
        # Missing, or from another version of Airlock, which counts as unknown.
        with contextlib.suppress(OSError, ValueError, TypeError):
            profiles.append(MemoryProfile(**json.loads(file.read_text(encoding="utf-8"))))
    if not profiles:
        return None
    return MemoryProfile(
        peak_bytes=max(profile.peak_bytes for profile in profiles),
        cores=max(profile.cores for profile in profiles),
    )


def _write(file: Path, profile: MemoryProfile) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(asdict(profile)), durable=False)
