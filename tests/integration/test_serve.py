"""The server beside real runs: their state through every kind of end, and controls that act."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from rundir.paths import RunDir
from tests.monitor.serving import Server, served
from tests.running import (
    ENDLESS,
    SHORT,
    Start,
    ended,
    finish,
    run_folder,
    training,
    wait_for,
)

_LONG_S = 300.0


def _row(server: Server, run: RunDir) -> dict[str, Any]:
    rows = server.json("/api/runs?limit=1000")["runs"]
    return next(row for row in rows if row["id"] == run.run_id)


def _until(server: Server, run: RunDir, state: str) -> None:
    def is_it() -> bool:
        time.sleep(0.2)
        return bool(_row(server, run)["state"] == state)

    wait_for(is_it, why=f"it was not {state}", timeout_s=_LONG_S)


def _ask(server: Server, run: RunDir, request: str) -> dict[str, str]:
    answer = server.with_token(f"/api/runs/{run.run_id}/control", {"request": request})
    assert answer.status_code == 200, answer.text
    told: dict[str, str] = answer.json()
    return told


def test_controls_reach_a_live_run_and_its_end_is_told(
    airlock: Start, environ: dict[str, str]
) -> None:
    folder = Path(environ["AIRLOCK_RUNS_DIR"])
    folder.mkdir()
    with served(folder, environ) as server, training(airlock(*ENDLESS), environ) as (process, run):
        assert _row(server, run)["state"] == "running"
        _ask(server, run, "pause")
        _until(server, run, "paused")
        _ask(server, run, "resume")
        _until(server, run, "running")
        saved = _ask(server, run, "save")

        def answer() -> list[dict[str, Any]]:
            found = server.json(f"/api/runs/{run.run_id}/events?last=1000&name=control")["events"]
            return [event for event in found if saved["id"] in event["ids"]]

        assert wait_for(answer, why="no checkpoint", timeout_s=_LONG_S)[0]["done"]
        status = server.json(f"/api/runs/{run.run_id}/status")
        phases = [one["phase"] for one in status["ranks"][0]["timeline"]]
        assert phases[-2:] == ["process_group", "ddp"], phases
        assert all(one["end_t"] for one in status["ranks"][0]["timeline"])
        _ask(server, run, "stop")
        finish(process)
        assert _row(server, run)["state"] == "stopped"
        refused = server.with_token(f"/api/runs/{run.run_id}/control", {"request": "pause"})
        assert refused.status_code == 409


def test_a_killed_launcher_is_a_crashed_run_at_once(
    airlock: Start, environ: dict[str, str]
) -> None:
    folder = Path(environ["AIRLOCK_RUNS_DIR"])
    folder.mkdir()
    with served(folder, environ) as server, training(airlock(*ENDLESS), environ) as (process, run):
        assert _row(server, run)["state"] == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
        _until(server, run, "crashed")
        row = _row(server, run)
        assert row["exit_code"] is None
        assert "without a word" in row["error"]


def test_runs_that_are_done_and_failed_are_told_apart(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    with ended(airlock(*SHORT)) as process:
        assert finish(process)[0] == 0
    done = run_folder(environ)
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('on purpose')\n")
    with ended(airlock("run", str(script), "--num-gpus", "1")) as bad:
        code = finish(bad)[0]
    failed = run_folder(environ)
    assert failed != done
    with served(Path(environ["AIRLOCK_RUNS_DIR"]), environ) as server:
        assert _row(server, done)["state"] == "done"
        assert _row(server, done)["exit_meaning"] == "done"
        row = _row(server, failed)
        assert (row["state"], row["exit_code"]) == ("failed", code)
        incident = server.json(f"/api/runs/{failed.run_id}/incidents")["incidents"][0]
        assert "on purpose" in incident["verdict"]
        assert incident["do"]
        logs = server.json(f"/api/runs/{done.run_id}/logs?file=rank0")
        assert any("LOCK: acquired!" in line["text"] for line in logs["lines"])


def test_the_server_writes_nothing_into_a_run_and_signals_nothing(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*SHORT)) as process:
        assert finish(process)[0] == 0
    run = run_folder(environ)
    before = {path: path.lstat().st_mtime_ns for path in run.path.rglob("*")}
    with served(Path(environ["AIRLOCK_RUNS_DIR"]), environ) as server:
        for name in ("status", "events", "logs", "config", "incidents"):
            server.json(f"/api/runs/{run.run_id}/{name}")
        server.get("/metrics")
        held = [file.path for file in psutil.Process(server.process.pid).open_files()]
        assert not [path for path in held if path.startswith(str(run.path))]
        assert os.nice(0) <= psutil.Process(server.process.pid).nice()
    assert {path: path.lstat().st_mtime_ns for path in run.path.rglob("*")} == before
