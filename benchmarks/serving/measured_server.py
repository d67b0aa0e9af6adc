"""The server as a process of its own, what it answers, and what it takes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from rundir.paths import ROOT

_SHOWN = "train.loss,train.lr,train.grad_norm,train.tokens_per_s,eval.loss"  # by a page
_TIMEOUT_S = 600.0


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """`airlock serve`, or `monitor`, over a folder of runs; it is ended after the block."""

    def __init__(self, runs: Path, cache: Path, what: str = "serve") -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.peak_of_tree_bytes = 0
        begin = time.monotonic()
        where = ["--runs-dir", str(runs), "--port", str(self._port)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "monitor", what, *where],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "AIRLOCK_CACHE_DIR": str(cache)},
            stdout=subprocess.DEVNULL,
        )
        while not self._is_up():
            assert self.process.poll() is None, "the server has ended"
            time.sleep(0.01)
        self.start_s = time.monotonic() - begin

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def _is_up(self) -> bool:
        try:
            self.get("/api/health")
        except OSError:
            return False
        return True

    def get(self, path: str) -> Any:
        """Return what JSON the server answers."""
        with self.open(path) as answer:
            return json.load(answer)

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Yield an answer as it comes."""
        url = f"{self.url}{path}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - its own
            yield answer

    def metrics(self, run: str, series: str = _SHOWN) -> tuple[float, Any]:
        """Return the seconds that an answer took, and the answer."""
        begin = time.monotonic()
        told = self.get(f"/api/runs/{run}/metrics?series={series}")
        return time.monotonic() - begin, told

    def index(self, run: str) -> float:
        """Ask, as a page does, until a run is indexed; return the seconds that took."""
        begin = time.monotonic()
        while not self.metrics(run)[1]["indexed"]["done"]:
            self._look_at_memory()
            time.sleep(0.2)
        return time.monotonic() - begin

    def _look_at_memory(self) -> None:
        total = 0
        for one in self.processes():
            with contextlib.suppress(psutil.Error):
                total += one.memory_full_info().pss
        self.peak_of_tree_bytes = max(self.peak_of_tree_bytes, total)

    def processes(self) -> list[psutil.Process]:
        """Return the server and what it has started."""
        with contextlib.suppress(psutil.Error):
            whole = psutil.Process(self.process.pid)
            return [whole, *whole.children(recursive=True)]
        return []

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server, and of what it has started and seen end."""
        times = psutil.Process(self.process.pid).cpu_times()
        found = times.user + times.system + times.children_user + times.children_system
        for one in self.processes()[1:]:
            with contextlib.suppress(psutil.Error):
                found += one.cpu_times().user + one.cpu_times().system
        return float(found)

    def rss_bytes(self) -> int:
        """Return what the server's own process has in memory now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def peak_bytes(self) -> int:
        """Return the most that the server's own process has had in memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024
