"""What the endpoints answer, over real HTTP: real statuses, hints, one table of routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from inbox.daemon_state import held
from inbox.layout import Layout
from monitor.api.app import create_app, nearest, paths_of
from monitor.api.server_settings import ServerSettings
from monitor.http.json_api import Json
from rundir.masking import MASK
from rundir.owner import take
from rundir.paths import RunDir
from tests.conftest import ROOT
from tests.monitor.serving import Server, event, make_run, served

_PHASES = ("lock.wait", "import", "model.load", "all_loaded.wait", "pg.init", "ddp.wrap")


def test_wrong_requests_have_real_statuses_and_say_what_to_do(server: Server) -> None:
    here = f"/api/runs/{make_run(server.folder, '20260101-000000-asked-0001').name}"
    asked = {
        "/api/evolution/snapshot/D/10": (404, "did you mean /api/evolution/D/snapshot/10?"),
        "/api/evolutoin/datasets": (404, "did you mean /api/evolution/datasets?"),
        "/api/runs/latest/staus": (404, "did you mean /api/runs/latest/status?"),
        "/api/runs/": (404, "did you mean /api/runs"),
        "/api/quite/another/thing": (404, "api/openapi.json"),
        "/api/runs/no-such-run/status": (404, "api/runs"),
        "/api/runs?limit=0": (400, "greater than or equal to 1"),
        "/api/runs?limit=1e3": (400, "a valid integer"),
        "/api/runs?limit=" + "9" * 5000: (400, "as an integer"),
        "/api/runs?state=dead": (400, "'crashed'"),
        f"{here}/events?after=x": (400, "leave it out"),
        f"{here}/logs?file=nix": (404, "none yet"),
        "/api/inbox_files": (404, "--inbox FOLDER"),
    }
    for path, (status, hint) in asked.items():
        answer = server.get(path)
        assert answer.status_code == status, (path, answer.text)
        assert set(answer.json()) == {"error", "hint"}
        assert hint in answer.json()["hint"], path
    posted = server.with_token("/api/runs", {})
    assert posted.status_code == 405
    assert server.get(f"{here}/control").status_code == 405
    head = server.client.head("/api/runs")
    assert (head.status_code, head.content) == (200, b"")
    bodies: list[Any] = [{}, {"request": "explode"}, {"request": 3}, [], "x", None]
    for body in bodies:
        answer = server.with_token(f"{here}/control", body)
        assert answer.status_code == 400, body
        assert "pause" in answer.json()["hint"]


def test_a_run_is_told_as_it_is(server: Server) -> None:
    rows = []
    for attempt in (0, 1):
        for number, span in enumerate(_PHASES):
            start_t = 100.0 * attempt + 10 * number
            rows.append({**event(start_t, span, "start"), "attempt": attempt})
            rows.append({**event(start_t + 5, span, "end"), "attempt": attempt})
        step = event(100.0 * attempt + 90, "train", "metric", step=1, loss="nan")
        rows.append({**step, "attempt": attempt})
    gpu = {"index": 0, "used_bytes": 5, "total_bytes": 80}
    launch = [event(1.0, "gpu", "metric", **gpu), event(2.0, "hang", "error", title="rank 1 hangs")]
    launch.append(event(3.0, "host", "metric", pss_bytes=7, available_bytes=9))
    status = {"attempt": 1, "loss": "nan"}
    run = make_run(
        server.folder,
        "20260101-000000-told-0001",
        events={"rank0": rows, "launch": launch},
        status=status,
    )
    (run / "plan.json").write_text('{"verdict": "fits"}')
    told = server.json(f"/api/runs/{run.name}/status")
    assert (told["loss"], told["plan"]) == ("nan", {"verdict": "fits"})
    assert told["alarms"][0]["title"] == "rank 1 hangs"
    rank = told["ranks"][0]
    assert rank["limit_bytes"] == 80
    names = ["waiting", "import", "load", "all_loaded", "process_group", "ddp"]
    assert [phase["phase"] for phase in rank["timeline"]] == names
    assert rank["timeline"][1] == {"phase": "import", "start_t": 110.0, "end_t": 115.0}
    assert server.json(f"/api/gpu_stats?run={run.name}")["gpus"][0] == {"t": 1.0, **gpu}
    memory = server.json(f"/api/memory_stats?run={run.name}")
    assert (memory["host"]["pss_bytes"], memory["is_stale"]) == (7, True)
    figures = server.get("/metrics")
    assert figures.headers["content-type"].startswith("text/plain; version=0.0.4")
    labels = f'{{run="{run.name}",profile="tiny"}}'
    assert f"airlock_run_loss{labels} NaN" in figures.text
    assert f"airlock_run_step{labels} 4" in figures.text


def test_secrets_in_the_configuration_are_masked(server: Server) -> None:
    token = "hf_" + "a1B2" * 8
    mine = "very-own-value-of-mine"
    name = "20260101-000000-secret-0001"
    run = make_run(
        server.folder, name, config=f'profile = "x"\n[data]\ntoken = "{mine}"\npath = "{token}"\n'
    )
    (run / "command.txt").write_text(f"HF_TOKEN={token} ./start.sh x --note {mine}\n")
    variables = [{"name": "MY_API_KEY", "value": mine}]
    told = {"variables": variables, "not_passed_on": []}
    (run / "environment.json").write_text(json.dumps(told))
    (run / "incidents/incident-attempt0").mkdir()
    verdict = f"# x: a rank failed\n\n**rank 0 with {mine}**\n\n→ read the log\n"
    (run / "incidents/incident-attempt0/verdict.md").write_text(verdict)
    found = server.json(f"/api/runs/{name}/config")
    assert found["values"]["data.token"] == found["values"]["data.path"] == MASK
    incidents = server.json(f"/api/runs/{name}/incidents")["incidents"]
    assert incidents[0]["verdict"] == f"rank 0 with {MASK}"
    assert incidents[0]["do"] == "read the log"
    assert incidents[0]["files"] == ["incidents/incident-attempt0/verdict.md"]
    text = json.dumps([found, incidents])
    assert token not in text
    assert mine not in text


def test_requests_are_files_in_the_control_folder_of_a_live_run_alone(server: Server) -> None:
    name = "20260101-000000-asked-0002"
    path, status = f"/api/runs/{name}/control", {"exit_code": None, "phase": "training"}
    run = RunDir(make_run(server.folder, name, status=status))
    dead = server.with_token(path, {"request": "pause"})
    assert (dead.status_code, "crashed" in dead.text) == (409, True)
    take(run, "this test")
    assert server.with_token(path, {"request": "resume"}).status_code == 409
    for request in ("pause", "stop", "save", "evaluate"):
        told = server.with_token(path, {"request": request}).json()
        assert (run.path / told["file"]).is_file()
        assert bool(told["id"]) == (request in ("save", "evaluate"))
    assert server.with_token(path, {"request": "resume"}).status_code == 200
    assert not (run.control / "pause").exists()
    run.config.write_text('profile = ""\n[script]\npath = "x.py"\n')
    assert server.with_token(path, {"request": "pause"}).status_code == 409
    assert len(list(run.control.iterdir())) == 3


def test_an_inbox_is_told_of_and_takes_requests(
    folder: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    layout = Layout(tmp_path / "box")
    layout.create()
    job = layout.queue / "000001-a-1234"
    job.mkdir()
    table = {"id": job.name, "name": "a.jsonl", "priority": "high", "dropped_t": 5.0}
    (job / "job.json").write_text(json.dumps({**table, "attempts": []}))
    with held(layout), served(folder, environ, "--inbox", str(layout.path)) as server:
        told = server.json("/api/inbox_files")
        assert [(one["name"], one["state"]) for one in told["files"]] == [("a.jsonl", "queue")]
        assert told["total"] == 1
        assert told["status"]["is_running"]
        path = "/api/inbox/control"
        assert server.post(path, {"request": "skip"}).status_code == 401
        assert server.with_token(path, {"request": "resume"}).status_code == 409
        for request in ("pause", "skip", "resume", "stop"):
            assert server.with_token(path, {"request": request}).status_code == 200, request
    left = {file.name.partition(".")[0] for file in layout.control.iterdir()}
    assert left == {"skip", "stop"}


def test_the_document_tells_of_every_endpoint_and_parameter_in_words(folder: Path) -> None:
    document = create_app(ServerSettings(runs_folder=folder)).openapi()
    for path, operations in document["paths"].items():
        assert path.startswith(("/api/", "/metrics"))  # pages are no part of it
        for method, operation in operations.items():
            assert operation["description"], path
            assert set(operation["responses"]) >= {"200", "400", "401", "404"}, path
            assert "422" not in operation["responses"], path
            assert ("security" in operation) == (method == "post"), path
            for parameter in operation.get("parameters", ()):
                assert parameter["in"] == "path" or parameter["description"], path
    assert document["servers"] == [{"url": ".."}]


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/api/evolution/snapshot/D/10", "/api/evolution/D/snapshot/10"),
        ("/api/evolution/diff/D/1/2", "/api/evolution/D/diff/1/2"),
        ("/api/status/runs/R", "/api/runs/R/status"),
        ("/api/run", "/api/runs"),
        ("/api/x/y/z/a/b/c", ""),
        ("/", ""),
        ("/favicon", ""),
    ],
)
def test_an_unknown_path_is_answered_with_the_nearest(folder: Path, path: str, near: str) -> None:
    assert nearest(path, paths_of(create_app(ServerSettings(runs_folder=folder)))) == near


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ({"a": float("nan"), "b": [float("inf")]}, {"a": "nan", "b": ["inf"]}),
        ({"name": "\udcff"}, {"name": "\udcff"}),
    ],
)
def test_an_answer_is_json_whatever_it_holds(value: Any, sent: Any) -> None:
    assert json.loads(bytes(Json(value).body)) == sent


def test_the_help_that_the_launcher_shows_names_every_option() -> None:
    from monitor.serve_command import command

    shown = (ROOT / "setup/help/serve.txt").read_text()
    for param in command.params:
        if isinstance(param, click.Option) and param.hidden:
            continue
        assert param.opts[0] in shown, param.name
