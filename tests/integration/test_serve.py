"""The server beside real runs: their state through every kind of end, and controls that act."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from rundir.paths import RunDir
from tests.monitor.serving import Server, served
from tests.running import ENDLESS, SHORT, User, ended, events_of, finish, wait_for

_LONG_S = 300.0


def _ask(server: Server, run: RunDir, request: str) -> dict[str, str]:
    answer = server.with_token(f"/api/runs/{run.run_id}/control", {"request": request})
    assert answer.status_code == 200, answer.text
    told: dict[str, str] = answer.json()
    return told


def test_controls_reach_a_live_run_which_is_stopped_while_paused_and_its_end_is_told(
    user: User,
) -> None:
    folder = Path(user.environ["AIRLOCK_RUNS_DIR"])
    folder.mkdir()
    with served(folder, user.environ) as server, user.training(*ENDLESS) as (process, run):
        assert server.row(run.run_id)["state"] == "running"
        _ask(server, run, "pause")
        server.until(run.run_id, "paused")
        _ask(server, run, "resume")
        server.until(run.run_id, "running")
        saved = _ask(server, run, "save")

        def answer() -> list[dict[str, Any]]:
            found = server.json(f"/api/runs/{run.run_id}/events?last=1000&name=control")["events"]
            return [event for event in found if saved["id"] in event["ids"]]

        assert wait_for(answer, why="no checkpoint", timeout_s=_LONG_S)[0]["done"]
        status = server.json(f"/api/runs/{run.run_id}/status")
        phases = [one["phase"] for one in status["ranks"][0]["timeline"]]
        assert phases[-2:] == ["process_group", "ddp"], phases
        assert all(one["end_t"] for one in status["ranks"][0]["timeline"])
        _ask(server, run, "pause")
        server.until(run.run_id, "paused")
        _ask(server, run, "stop")
        code, out, err = finish(process)
        assert code == 20, err
        step = events_of(run, "mark", "control")[-1]["step"]
        assert f"the checkpoint after step {step} is saved" in out
        assert server.row(run.run_id)["state"] == "stopped"
        refused = server.with_token(f"/api/runs/{run.run_id}/control", {"request": "pause"})
        assert refused.status_code == 409


def test_runs_that_are_done_and_failed_are_told_apart_and_nothing_is_written_into_them(
    user: User,
) -> None:
    with ended(user.airlock(*SHORT)) as process:
        assert finish(process)[0] == 0
    done = user.run()
    script = user.folder / "fails.py"
    script.write_text("raise ValueError('on purpose')\n")
    with ended(user.airlock("run", str(script), "--num-gpus", "1")) as bad:
        code = finish(bad)[0]
    failed = user.run()
    assert failed != done
    before = {path: path.lstat().st_mtime_ns for path in done.path.rglob("*")}
    with served(Path(user.environ["AIRLOCK_RUNS_DIR"]), user.environ) as server:
        assert server.row(done.run_id)["state"] == "done"
        assert server.row(done.run_id)["exit_meaning"] == "done"
        row = server.row(failed.run_id)
        assert (row["state"], row["exit_code"]) == ("failed", code)
        incident = server.json(f"/api/runs/{failed.run_id}/incidents")["incidents"][0]
        assert "on purpose" in incident["verdict"]
        assert incident["do"]
        logs = server.json(f"/api/runs/{done.run_id}/logs?file=rank0")
        assert any("LOCK: acquired!" in line["text"] for line in logs["lines"])
        for name in ("status", "events", "logs", "config", "incidents"):
            server.json(f"/api/runs/{done.run_id}/{name}")
        server.get("/metrics")
        held = [file.path for file in psutil.Process(server.process.pid).open_files()]
        assert not [path for path in held if path.startswith(str(done.path))]
        assert os.nice(0) <= psutil.Process(server.process.pid).nice()
    assert {path: path.lstat().st_mtime_ns for path in done.path.rglob("*")} == before
