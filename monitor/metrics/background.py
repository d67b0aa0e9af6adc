"""The server's side of the process that indexes: started when needed, ended for what is newer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from rundir.paths import ROOT, RunDir

_INTEREST_S = 5.0  # after which a run that nobody has asked for makes room for another
_RETRY_S = 30.0  # after a process that could not be started, or could do nothing


class Background:
    """Has at most one process, for one run; what it has indexed stays when it is ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._run: RunDir | None = None
        self._asked_mono = 0.0
        self._failed_mono = -_RETRY_S
        self._lock = threading.Lock()

    def index(self, run: RunDir, index: Path) -> bool:
        """Have the run indexed, now or after another; return whether that is being done."""
        with self._lock:
            now = time.monotonic()
            if self._process is not None and self._process.poll() is None:
                if run == self._run:
                    self._asked_mono = now
                if now - self._asked_mono < _INTEREST_S:
                    return True
            elif self._process is not None and self._process.returncode:
                self._failed_mono = now
            self._close()
            if now - self._failed_mono < _RETRY_S:
                return False
            self._start(run, index)
            self._asked_mono = now
            return self._process is not None

    def _start(self, run: RunDir, index: Path) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "monitor.metrics", str(run.path), str(index)],
                stdin=subprocess.PIPE,  # which ends with the server
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        except OSError:  # as many processes as there may be
            self._failed_mono = time.monotonic()
        self._run = run

    def _close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._close()
