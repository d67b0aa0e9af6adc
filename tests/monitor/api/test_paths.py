"""No path leaves the run folders, whatever is typed, encoded or linked."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.serving import Server, make_run

_OUTSIDE = "this-is-outside"
_ENDPOINTS = ("status", "events", "logs", "config", "incidents", "metrics?series=train.loss")


def _ways(text: str) -> list[str]:
    """Return a text as it is, encoded, encoded twice, and in forms that decoders have taken."""
    once = quote(text, safe="")
    return [
        text,
        once,
        quote(once, safe=""),
        text.replace("..", "%2e%2e"),
        text.replace("/", "%2f"),
        text.replace("/", "\\"),
        text.replace("/", "%5c"),
        text.replace("../", "....//"),
        text.replace("../", "..%c0%af"),
        once + "%00",
    ]


@pytest.fixture(scope="session")
def outside(server: Server) -> Path:
    """Make what is not to be read: a run beside the folder of runs, and a secret in it."""
    run = make_run(server.folder.parent, "outside", config=f'profile = "{_OUTSIDE}"\n')
    (run / "logs/run.log").write_text(f"{_OUTSIDE}\n")
    (run / "evolution/held").mkdir(parents=True)
    (run / "evolution/held/step_00000010.json").write_text(f'{{"secret": "{_OUTSIDE}"}}')
    return run


def test_no_way_of_writing_a_path_leads_out_of_the_runs(server: Server, outside: Path) -> None:
    here = f"/api/runs/{make_run(server.folder, '20260101-000000-paths-0001').name}"
    out = ["../outside", "../../etc/passwd", str(outside), "..", "../outside/config.toml"]
    targets = [form for path in out for form in _ways(path)]
    asked = [f"/api/runs/{form}/{name}" for form in targets for name in _ENDPOINTS[:3]]
    asked += [f"/api/{name}?run={form}" for form in targets for name in ("config", "gpu_stats")]
    asked += [f"{here}/logs?file={form}" for form in targets]
    asked += [f"{here}/logs?file=run&attempt={form}" for form in targets]
    asked += [f"{here}/events?name={form}&kind={form}" for form in targets]
    asked += [f"/api/runs?search={form}" for form in targets]
    asked += [f"/api/evolution/{form}/snapshots" for form in targets]
    asked += [f"/api/evolution/held/snapshot/{form}" for form in targets]
    asked += [f"/api/evolution/held/snapshots?run={form}" for form in targets]
    assert len(asked) > 300
    for target in asked:
        status, body = server.raw_get(target)
        assert status in (200, 400, 404), (target, status, body[:300])
        assert _OUTSIDE.encode() not in body, target
        assert b"root:" not in body, target


def test_no_link_in_a_run_folder_is_followed(server: Server, outside: Path) -> None:
    run = make_run(server.folder, "20260101-000000-linked-0001")
    linked = ("config.toml", "command.txt", "status.json", "plan.json", "made_with.json")
    for name in linked:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / "config.toml")
    (run / "logs/run.log").symlink_to(outside / "logs/run.log")
    (run / "logs/attempt1").symlink_to(outside / "logs")
    (run / "events/launch.jsonl").symlink_to(outside / "config.toml")
    (run / "evolution").symlink_to(outside / "evolution")
    (run / "incidents/incident-attempt0").symlink_to(outside)
    (run / "owner.json").symlink_to(outside / "config.toml")
    (server.folder / "20260102-000000-linked-0002").symlink_to(outside)
    here = f"/api/runs/{run.name}"
    paths = [f"{here}/{name}" for name in (*_ENDPOINTS, "logs?file=run", "logs?attempt=1")]
    paths += ["/metrics", "/api/runs", "/api/evolution/datasets"]
    paths += [f"/api/evolution/held/{end}?run={run.name}" for end in ("snapshots", "snapshot/10")]
    paths += [f"/api/{name}?run={run.name}" for name in ("gpu_stats", "memory_stats")]
    paths += ["/api/runs/20260102-000000-linked-0002/config"]
    for path in paths:
        answer = server.get(path)
        assert answer.status_code in (200, 400, 404), (path, answer.text)
        assert _OUTSIDE not in answer.text, path
    assert server.json("/api/runs?search=linked")["total"] == 1


def test_a_control_folder_that_is_a_link_takes_no_request(server: Server, outside: Path) -> None:
    status = {"phase": "training", "exit_code": None}
    run = make_run(server.folder, "20260101-000000-control-0001", status=status)
    (run / "control").rmdir()
    (run / "control").symlink_to(outside / "control")
    take(RunDir(run), "this test")
    answer = server.with_token(f"/api/runs/{run.name}/control", {"request": "stop"})
    assert answer.status_code == 409, answer.text
    assert not list((outside / "control").iterdir())


def test_a_pipe_in_place_of_a_file_blocks_nothing(server: Server) -> None:
    run = make_run(server.folder, "20260101-000000-pipe-0001")
    names = ("command.txt", "status.json", "owner.json", "environment.json", "events/launch.jsonl")
    for name in (*names, "logs/run.log"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    for name in _ENDPOINTS[:5]:
        assert server.get(f"/api/runs/{run.name}/{name}").status_code in (200, 404), name
    assert server.json("/api/runs?search=pipe")["total"] == 1
