"""A real server process and real HTTP, for the tests of the monitor."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import ROOT
from tests.running import wait_for

_START_S = 60.0


@dataclass(frozen=True)
class Server:
    """One running server."""

    process: subprocess.Popen[str]
    port: int
    token: str
    said: str
    folder: Path  # of its runs
    client: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(path, **more)

    def json(self, path: str, **more: Any) -> Any:
        answer = self.get(path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def row(self, run_id: str) -> dict[str, Any]:
        """Return what the list of runs has of one."""
        rows = self.json("/api/runs?limit=1000")["runs"]
        return next(row for row in rows if row["id"] == run_id)

    def until(self, run_id: str, state: str) -> None:
        """Wait until the list of runs has it in that state."""
        wait_for(lambda: self.row(run_id)["state"] == state, why=f"not {state}", timeout_s=300)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def with_token(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.post(path, body, Authorization=f"Bearer {self.token}", **headers)

    def raw(self, request: bytes) -> bytes:
        """Send bytes as they are, which no client would; return the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as link:
            link.sendall(request)
            link.settimeout(30)
            found = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                while piece := link.recv(65536):
                    found += piece
        return found

    def raw_get(self, target: str, *headers: str) -> tuple[int, bytes]:
        """Ask for a target as it is written, not normalised; return status and body."""
        lines = [f"GET {target} HTTP/1.1", "Connection: close", *headers]
        if not any(line.lower().startswith("host:") for line in headers):
            lines.append(f"Host: 127.0.0.1:{self.port}")
        answer = self.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    @property
    def peak_bytes(self) -> int:
        """The most memory that the process has had, without what it shares."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        assert found
        return int(found[1]) * 1024


@contextlib.contextmanager
def served(
    folder: Path | None, environ: Mapping[str, str], *words: str, what: str = "serve"
) -> Iterator[Server]:
    """Serve the runs in `folder` until the block is left, and check that it ends well.

    Without `folder` they are those that `environ` or `words` name.
    """
    of_runs = [] if folder is None else ["--runs-dir", str(folder)]
    arguments = ["--port", "0", *of_runs, *words]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "monitor", what, *arguments],
        cwd=ROOT,
        env={**environ, "PYTHONUNBUFFERED": "1"},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            said = _said_at_start(process)
            port = re.search(r"http://[^/\s]+:(\d+)", said)
            token = re.search(r"the token (\S+)", said)
            assert port, said
            assert token, said
            url = f"http://127.0.0.1:{port[1]}"
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                own = folder or Path(environ["AIRLOCK_RUNS_DIR"])
                yield Server(process, int(port[1]), token[1], said, own, client)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.stdout is not None
            rest = process.stdout.read()
            code = process.wait(timeout=30)
    assert code == 0, rest
    assert "Traceback" not in rest, rest


def _said_at_start(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said, deadline = "", time.monotonic() + _START_S
    while "the token" not in said:
        assert time.monotonic() < deadline, said
        line = process.stdout.readline()
        assert line, f"{said}: ended with {process.wait()}"
        said += line
    return said


def make_run(
    folder: Path,
    name: str = "20260101-000000-tiny-0001",
    *,
    status: Mapping[str, Any] | None = None,
    events: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    config: str = 'profile = "tiny"\n\n[train]\nmax_steps = 4  # default\n',
) -> Path:
    """Make the folder of a run, without an owner: by default of one that is done."""
    run = folder / name
    for part in ("events", "control", "checkpoints", "incidents", "logs/attempt0"):
        (run / part).mkdir(parents=True)
    (run / "config.toml").write_text(config)
    (run / "command.txt").write_text("./start.sh tiny\n\n# with torch's own:\ntorchrun x\n")
    told = {"v": 1, "run_id": name, "profile": "tiny", "phase": "done", "exit_code": 0}
    told |= {"step": 4, "total_steps": 4, "loss": 0.5, "started_t": 1e9, "updated_t": 1e9 + 60}
    ranks = [{"rank": 0, "phase": "done", "pid": 1}]
    (run / "status.json").write_text(json.dumps({**told, "ranks": ranks, **(status or {})}))
    for writer, rows in (events or {}).items():
        lines = (json.dumps(row) + "\n" for row in rows)
        (run / "events" / f"{writer}.jsonl").write_text("".join(lines))
    before = time.time() - 3600  # it is not being made just now
    os.utime(run, (before, before))
    return run


def event(t: float, name: str = "line", kind: str = "log", **fields: Any) -> dict[str, Any]:
    """Return an event as it stands in a file."""
    base = {"v": 1, "t": t, "mono": t, "node": 0, "attempt": 0, "rank": 0, "pid": os.getpid()}
    return {**base, "kind": kind, "name": name, **fields}
