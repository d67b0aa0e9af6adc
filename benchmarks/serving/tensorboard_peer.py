"""The peer: TensorBoard, over its own event files with the same figures."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from benchmarks.serving.long_runs import events
from benchmarks.serving.measured_server import free_port
from launch.track.figures import figures_of
from launch.track.tensorboard import TensorBoard

_TIMEOUT_S = 900.0


def tensorboard(command: str, folder: Path, num_runs: int, steps: int) -> dict[str, Any] | str:
    """Return how long it takes until the newest run is served whole; or why it was not measured."""
    program = shutil.which(command)
    if program is None:
        return f"no program {command!r}: pip install tensorboard, in an environment of its own"
    logs = folder / "tensorboard"
    _write(logs, num_runs, steps)
    port, begin, peak_bytes = free_port(), time.monotonic(), 0
    process = subprocess.Popen(
        [program, "--logdir", str(logs), "--port", str(port), "--host", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    newest = f"run{num_runs - 1:04d}"
    url = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run={newest}&tag=train%2Floss"
    first_s = None
    try:
        while time.monotonic() - begin < _TIMEOUT_S:
            peak_bytes = max(peak_bytes, _pss_bytes(process.pid))
            with contextlib.suppress(OSError, ValueError):
                with urllib.request.urlopen(url, timeout=60) as answer:
                    points = json.load(answer)
                first_s = first_s or time.monotonic() - begin
                if points and points[-1][1] == steps:
                    break
            time.sleep(0.2)
        else:
            return f"it did not serve the newest run in {_TIMEOUT_S:g} s"
        return {
            "first_answer_s": first_s,
            "newest_complete_s": time.monotonic() - begin,
            "peak_bytes": peak_bytes,
        }
    finally:
        process.terminate()
        process.wait()


def _write(folder: Path, num_runs: int, steps: int) -> None:
    """Write the files of one run, and copies of them as the others."""
    first = folder / "run0000"
    first.mkdir(parents=True)
    writer = TensorBoard(first)
    for event in events(0, steps):
        writer.add(event["step"], event["t"], figures_of(event))
    writer.close()
    for number in range(1, num_runs):
        shutil.copytree(first, folder / f"run{number:04d}")


def _pss_bytes(pid: int) -> int:
    total = 0
    with contextlib.suppress(psutil.Error):
        whole = psutil.Process(pid)
        for one in (whole, *whole.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += one.memory_full_info().pss
    return total
