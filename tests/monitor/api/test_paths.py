"""No path leaves the run folders, whatever is typed, encoded or linked."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.monitor.serving import make_run, served

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


@pytest.fixture
def outside(folder: Path) -> Path:
    """Make what is not to be read: a run beside the folder of runs, and a secret in it."""
    run = make_run(folder.parent, "outside", config=f'profile = "{_OUTSIDE}"\n')
    (run / "logs/run.log").write_text(f"{_OUTSIDE}\n")
    (run / "evolution/held").mkdir(parents=True)
    (run / "evolution/held/step_00000010.json").write_text(f'{{"secret": "{_OUTSIDE}"}}')
    return run


def test_no_way_of_writing_a_path_leads_out_of_the_runs(
    folder: Path, outside: Path, environ: dict[str, str]
) -> None:
    make_run(folder)
    out = ["../outside", "../../etc/passwd", str(outside), "..", "../outside/config.toml"]
    with served(folder, environ) as server:
        targets = [way for one in out for way in _ways(one)]
        asked = [f"/api/runs/{way}/{name}" for way in targets for name in _ENDPOINTS[:3]]
        asked += [f"/api/{name}?run={way}" for way in targets for name in ("config", "gpu_stats")]
        asked += [f"/api/runs/latest/logs?file={way}" for way in targets]
        asked += [f"/api/runs/latest/logs?file=run&attempt={way}" for way in targets]
        asked += [f"/api/runs/latest/events?name={way}&kind={way}" for way in targets]
        asked += [f"/api/runs?search={way}" for way in targets]
        asked += [f"/api/evolution/{way}/snapshots" for way in targets]
        asked += [f"/api/evolution/held/snapshot/{way}" for way in targets]
        asked += [f"/api/evolution/held/snapshots?run={way}" for way in targets]
        assert len(asked) > 300
        for target in asked:
            status, body = server.raw_get(target)
            assert status in (200, 400, 404), (target, status, body[:300])
            assert _OUTSIDE.encode() not in body, target
            assert b"root:" not in body, target


def test_no_link_in_a_run_folder_is_followed(
    folder: Path, outside: Path, environ: dict[str, str]
) -> None:
    run = make_run(folder)
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
    (folder / "20260102-000000-link-0002").symlink_to(outside)
    paths = [f"/api/runs/latest/{name}" for name in _ENDPOINTS]
    paths += ["/api/runs/latest/logs?file=run", "/api/runs/latest/logs?attempt=1", "/metrics"]
    paths += ["/api/runs", "/api/evolution/held/snapshots", "/api/evolution/held/snapshot/10"]
    paths += ["/api/evolution/datasets", "/api/gpu_stats", "/api/memory_stats"]
    paths += ["/api/runs/20260102-000000-link-0002/config"]
    with served(folder, environ) as server:
        for path in paths:
            answer = server.get(path)
            assert answer.status_code in (200, 400, 404), (path, answer.text)
            assert _OUTSIDE not in answer.text, path
        assert server.json("/api/runs")["total"] == 1


def test_a_control_folder_that_is_a_link_takes_no_request(
    folder: Path, outside: Path, environ: dict[str, str]
) -> None:
    from rundir.owner import take
    from rundir.paths import RunDir

    run = make_run(folder, status={"phase": "training", "exit_code": None})
    (run / "control").rmdir()
    (run / "control").symlink_to(outside / "control")
    take(RunDir(run), "this test")
    with served(folder, environ) as server:
        answer = server.with_token("/api/runs/latest/control", {"request": "stop"})
        assert answer.status_code == 409, answer.text
    assert not list((outside / "control").iterdir())


def test_a_pipe_in_place_of_a_file_blocks_nothing(folder: Path, environ: dict[str, str]) -> None:
    run = make_run(folder)
    names = ("command.txt", "status.json", "owner.json", "environment.json", "events/launch.jsonl")
    for name in (*names, "logs/run.log"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    with served(folder, environ) as server:
        for name in _ENDPOINTS[:5]:
            assert server.get(f"/api/runs/latest/{name}").status_code in (200, 404), name
        assert server.json("/api/runs")["total"] == 1
