"""The server's side of the process that indexes: started when needed, told what to do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from rundir.paths import ROOT, RunDir

_AGAIN_S = 10.0  # between two tellings of the same
_RETRY_S = 30.0  # after which it is tried again to start one


class Background:
    """Starts at most one process; it ends by itself when it has nothing to do."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[str, float] = {}
        self._failed_mono = -_RETRY_S
        self._lock = threading.Lock()

    def index(self, run: RunDir, index: Path) -> bool:
        """Have the run indexed; return whether there is a process that does."""
        with self._lock:
            now = time.monotonic()
            if not self._is_alive():
                self._told.clear()
                if now - self._failed_mono < _RETRY_S or not self._start():
                    return False
            if now - self._told.get(str(index), -_AGAIN_S) < _AGAIN_S:
                return True
            self._told[str(index)] = now
            return self._tell({"run": str(run.path), "index": str(index)})

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self) -> bool:
        self._close()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "monitor.metrics"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        except OSError:  # as many processes as there may be
            self._failed_mono = time.monotonic()
            return False
        return True

    def _tell(self, what: dict[str, str]) -> bool:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # it has just ended: the next question starts another
            self._told.clear()
            return False
        return True

    def _close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process: what it has indexed stays."""
        with self._lock:
            self._close()
