"""`./start.sh --monitor`: the pages of a run beside it, which end with it."""

from __future__ import annotations

import os
import re
import signal
import stat
import urllib.request
from pathlib import Path

import psutil

from rundir.paths import RunDir
from tests.running import SHORT, Start, ended, finish, run_folder, wait_for

_LONG = ("--monitor", "--set", "train.max_steps=5000")


def _address(run: RunDir) -> str:
    def told() -> str:
        found = re.search(r"open (http://\S+?)#token", run.monitor_log.read_text())
        return found[1] if found else ""

    return wait_for(told, why="the monitor does not answer", timeout_s=60)


def _monitors(run: RunDir) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if "monitor" in words and run.run_id in words:
            found.append(one)
    return found


def _status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - its own address
        return int(answer.status)


def test_the_pages_are_there_while_the_run_lasts(airlock: Start, environ: dict[str, str]) -> None:
    with ended(airlock(*SHORT, *_LONG)) as process:
        run = _started(environ)
        url = _address(run)
        assert _status(url) == 200
        assert stat.S_IMODE(run.monitor_log.stat().st_mode) == 0o600  # its token is in there
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code in (20, 21), err
    assert "airlock: monitor: http://127.0.0.1:" in out
    assert "#token" not in out
    wait_for(lambda: not _monitors(run), why="the monitor stays")


def test_the_run_goes_on_without_the_monitor(airlock: Start, environ: dict[str, str]) -> None:
    with ended(airlock(*SHORT, "--monitor")) as process:
        run = _started(environ)
        (monitor,) = wait_for(lambda: _monitors(run), why="no process")
        monitor.kill()
        code, _, err = finish(process)
    assert code == 0, err


def test_the_monitor_ends_with_a_launcher_that_is_killed(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*SHORT, *_LONG)) as process:
        run = _started(environ)
        _address(run)
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: not _monitors(run), why="the monitor stays", timeout_s=60)


def _started(environ: dict[str, str]) -> RunDir:
    latest = Path(environ["AIRLOCK_RUNS_DIR"]) / "latest/logs/monitor.log"
    wait_for(latest.exists, why="no monitor", timeout_s=60)
    return run_folder(environ)
