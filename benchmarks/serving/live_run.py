"""A live run: how soon an event is heard of, and what the server costs beside the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.serving.long_runs import events
from benchmarks.serving.measured_server import Server
from rundir.events import EventWriter
from rundir.paths import ROOT, RunDir

_PAGE_S = 0.7  # a page waits so long for more of the same before it asks
_WHOLE_S = 10.0  # and so long before it asks for what the stream has told
_LONGEST_S = 50.0  # that a message is waited for
_SERIES = "train.*,eval.*,evolution.*,host.*,gpu.*"


class _Heard:
    """A stream that is read by a thread; what it tells is noted with the time."""

    def __init__(self, server: Server, path: str) -> None:
        self.told: queue.Queue[tuple[float, str, Any]] = queue.Queue()
        threading.Thread(target=self._read, args=(server, path), daemon=True).start()

    def _read(self, server: Server, path: str) -> None:
        kind = ""
        with contextlib.suppress(OSError, ValueError), server.open(path) as stream:
            for line in stream:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    self.told.put((time.monotonic(), kind, json.loads(value)))

    def next(self, kind: str) -> tuple[float, Any]:
        """Return when the next message of a kind came, and what it says."""
        while True:
            at, found, data = self.told.get(timeout=_LONGEST_S)
            if found == kind:
                return at, data

    def kinds(self) -> set[str]:
        """Return the kinds of the messages that have come meanwhile."""
        return {self.told.get_nowait()[1] for _ in range(self.told.qsize())}


class _Page:
    """What the page of one run asks for beside its stream, which tells figures and log lines."""

    def __init__(self, server: Server, run: RunDir) -> None:
        self._server = server
        self._path = f"/api/runs/{run.run_id}"
        self._metrics = self._events = ""
        self._heard = _Heard(server, f"{self._path}/stream")
        self._asked_mono = 0.0
        self.num_asked = 0

    def look(self) -> None:
        """Ask for what is new."""
        kinds = self._heard.kinds()
        is_old = time.monotonic() - self._asked_mono > _WHOLE_S
        if "event" in kinds or ("status" in kinds and is_old):
            self._get("status")
        if "answers" in kinds or ("metric" in kinds and is_old):
            told = self._get(f"metrics?series={_SERIES}&after={self._metrics}")
            self._metrics = str(told["cursor"])
        if "event" in kinds:
            self._events = str(self._get(f"events?limit=1000&after={self._events}")["cursor"])
        if is_old:
            self._asked_mono = time.monotonic()

    def _get(self, what: str) -> Any:
        self.num_asked += 1
        return self._server.get(f"{self._path}/{what}")


def latency(runs: Path, folder: Path, num_events: int) -> dict[str, Any]:
    """Write events to the newest run at odd times; return the seconds until each is heard of."""
    run = RunDir(max(runs.iterdir()))
    chance = random.Random(0)  # noqa: S311 - no secret
    metric = next(events(0, 1))
    fields = {key: metric[key] for key in metric if key.startswith(("l", "g", "to", "mf", "time"))}
    writer = EventWriter(run.event_file("rank0"), rank=0)
    waits = []
    with Server(runs, folder / "cache") as server:
        heard = _Heard(server, f"/api/runs/{run.run_id}/stream")
        heard.next("status")
        for step in range(10_000_000, 10_000_000 + num_events):
            time.sleep(chance.uniform(0.05, 0.5))
            begin = time.monotonic()
            writer.emit("metric", "train", step=step, **fields)
            at, data = heard.next("metric")
            assert data["step"] == step
            waits.append(at - begin)
        peak_bytes = server.peak_bytes()
    writer.close()
    return {
        "events": num_events,
        "median_s": statistics.median(waits),
        "slowest_s": max(waits),
        "server_peak_bytes": peak_bytes,
    }


def beside_training(folder: Path, steps: int) -> dict[str, Any]:
    """Train the tiny model with one page open; return the CPU seconds of server and ranks."""
    runs, cache = folder / "live", folder / "live-cache"
    runs.mkdir()
    with _training(folder, runs, steps), Server(runs, cache) as server:
        run = _trained(runs)
        page = _Page(server, run)
        ranks: dict[int, psutil.Process] = {}
        begin_ranks_s = begin_s = last_ranks_s = server_s = seconds = 0.0
        while (status := _status(run))["phase"] in ("preparing", "starting", "training"):
            page.look()
            if status["phase"] == "training":
                if not ranks:
                    pids = [rank["pid"] for rank in status["ranks"] if rank["pid"]]
                    ranks = {pid: psutil.Process(pid) for pid in pids}
                    begin_ranks_s, begin_s = _cpu_s(ranks), server.cpu_s()
                    begin_mono, page.num_asked = time.monotonic(), 0
                with contextlib.suppress(psutil.Error):
                    last_ranks_s, server_s = _cpu_s(ranks), server.cpu_s()
                    seconds = time.monotonic() - begin_mono
            time.sleep(_PAGE_S)
        peak_bytes = server.peak_bytes()
    ranks_s = last_ranks_s - begin_ranks_s
    return {
        "steps": steps,
        "seconds": seconds,
        "ranks": len(ranks),
        "questions": page.num_asked,
        "ranks_cpu_s": ranks_s,
        "server_cpu_s": server_s - begin_s,
        "share_of_ranks_cpu": (server_s - begin_s) / ranks_s,
        "server_peak_bytes": peak_bytes,
    }


@contextlib.contextmanager
def _training(folder: Path, runs: Path, steps: int) -> Iterator[None]:
    settings = [f"train.max_steps={steps}", "train.checkpoint_every_steps=0"]
    words = [word for one in settings for word in ("--set", one)]
    with (folder / "training.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launch", "run", "tiny", "--num-gpus", "2", *words],
            cwd=ROOT,
            env=os.environ
            | {
                "PYTHONPATH": str(ROOT),
                "CUDA_VISIBLE_DEVICES": "",
                "AIRLOCK_RUNS_DIR": str(runs),
                "AIRLOCK_CACHE_DIR": str(folder / "training-cache"),
                "AIRLOCK_GATE_DIR": str(folder / "gate"),
            },
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _trained(runs: Path) -> RunDir:
    """Return the run as soon as it is there."""
    until = time.monotonic() + 120
    while not (runs / "latest" / "status.json").exists():
        assert time.monotonic() < until, "no run has begun"
        time.sleep(0.2)
    return RunDir((runs / "latest").resolve())


def _status(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.status.read_text(encoding="utf-8"))
    return found


def _cpu_s(processes: dict[int, psutil.Process]) -> float:
    times = [one.cpu_times() for one in processes.values()]
    return float(sum(one.user + one.system for one in times))
