"""The server as a process: its port, its end, its memory, what it says without the extra."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from monitor.api import http_server
from monitor.serve_command import main
from rundir.errors import UserError
from tests.forked import run_module
from tests.monitor.serving import event, make_run, served
from tests.running import hooked

_MOST_BYTES = 120 << 20


def test_a_taken_port_is_passed_over_unless_it_was_named(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_module("launch", "serve", "--port", str(port), env=environ)
        assert refused.returncode == 4
        assert f"port {port} of 127.0.0.1 is taken, by process {os.getpid()}: " in refused.stderr
        assert "./airlock serve --port 0" in refused.stderr
        with http_server.bound("127.0.0.1", port, is_named=False) as other:
            assert port < other.getsockname()[1] <= port + 20
        monkeypatch.setattr(http_server, "_NUM_PORTS", 1)
        with pytest.raises(UserError, match="all taken"):
            http_server.bound("127.0.0.1", port, is_named=False)
    with pytest.raises(UserError, match="cannot listen on"):
        http_server.bound("192.0.2.1", port, is_named=True)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_ends_the_server_in_order_and_does_not_wait_for_open_streams(
    folder: Path, environ: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    make_run(folder)
    # What is said of streams that had to be cut off, when their time was up, is a fault here.
    strict = "module._is_no_end = lambda record: 1 / 0"
    strict_environ = environ | hooked(environ, tmp_path, "monitor.api.http_server", strict)
    with served(folder, strict_environ) as server, contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(server.client.stream("GET", path))
            for path in ("/api/stream", "/api/runs/latest/stream")
        ]
        lines = [stream.iter_lines() for stream in streams]
        for each in lines:
            assert next(each) == "retry: 1000"
        server.process.send_signal(number)
        for each in lines:
            list(each)  # raises where an answer was cut off
        assert server.process.wait(timeout=60) == 0


@pytest.mark.long
def test_an_event_file_of_a_gigabyte_costs_no_memory(folder: Path, environ: dict[str, str]) -> None:
    run = make_run(folder, events={"rank0": [event(n) for n in range(20_000)]})
    for name in ("events/rank0.jsonl", "events/launch.jsonl", "logs/run.log"):
        with (run / name).open("ab") as file:
            file.truncate(1 << 30)  # a hole: bytes that are zero, and no end of a line
            file.seek(0, os.SEEK_END)
            file.write(
                b'\n{"v": 1, "t": 1e9, "mono": 1, "rank": 0, "kind": "log", "name": "end"}\n'
            )
    with served(folder, environ) as server:
        after, num_events = "", 0
        for _ in range(8):
            page = server.json(f"/api/runs/latest/events?after={after}")
            after, num_events = page["cursor"], num_events + len(page["events"])
            assert page["more"]
        assert num_events >= 5_000
        last = server.json("/api/runs/latest/events?last=5")
        assert last["events"][-1]["name"] == "end"
        assert '"end"' in server.json("/api/runs/latest/logs?file=run&last=1")["lines"][0]["text"]
        assert server.json("/api/runs/latest/logs?file=run&search=end&limit=1") is not None
        for name in ("status", "incidents"):
            server.json(f"/api/runs/latest/{name}")
        server.json("/api/gpu_stats")
        assert server.get("/metrics").status_code == 200
        server.json("/api/runs/latest/metrics?series=train.loss")

        assert server.peak_bytes < _MOST_BYTES, server.peak_bytes


def test_without_the_extra_it_says_what_to_install(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n in ('uvicorn', 'uplot') else real(n, *a)\n"
    )
    lacking = {**environ, "PYTHONPATH": f"{tmp_path}:{environ['PYTHONPATH']}"}
    ended = run_module("launch", "serve", env=lacking)
    assert ended.returncode == 4
    assert "airlock serve needs the package uvicorn>=" in ended.stderr
    assert "which is not installed" in ended.stderr
    assert re.search(r"→ .*python\S* -m pip install 'uvicorn>=", ended.stderr), ended.stderr


def test_the_demo_answers_before_anyone_has_trained(folder: Path, environ: dict[str, str]) -> None:
    with served(folder, environ, "--demo") as server:
        found = server.json("/api/evolution/heldout/snapshot/10")
        assert found["examples"]
        (run,) = server.json("/api/runs")["runs"]
        assert run["num_ranks"] == 8
        assert not list(folder.iterdir())


def test_options_that_are_wrong_end_with_what_to_type(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_TOKEN", "1234")
    for words, text in (
        (("--prot", "1"), "no such option"),
        (("--port", "99999"), "not in the range"),
        (("--runs-dir", "/nowhere"), "does not exist"),
        (("--port", "0"), "AIRLOCK_TOKEN has 4 characters"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["serve", *words])
        ended = capsys.readouterr().err
        assert text in ended
        assert "→ " in ended
    monkeypatch.setenv("AIRLOCK_TOKEN", "long-enough-1234567")
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--runs-dir", str(folder), "--run", "nix"])
    assert "no run 'nix'" in capsys.readouterr().err
