"""A process is on record before it runs, and is never mistaken for another."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from inbox.recorded_process import Recorded, start
from tests.running import wait_for


def started(tmp_path: Path, *command: str) -> tuple[subprocess.Popen[bytes], Recorded]:
    kept: list[Recorded] = []
    process = start(command, dict(os.environ), tmp_path / "log", kept.append)
    return process, kept[0]


def test_nothing_runs_if_it_cannot_be_put_on_record(tmp_path: Path) -> None:
    def record(_: Recorded) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        start(["touch", str(tmp_path / "ran")], dict(os.environ), tmp_path / "log", record)
    assert not (tmp_path / "ran").exists()


def test_the_recorded_process_becomes_the_command_in_a_session_of_its_own(tmp_path: Path) -> None:
    process, record = started(tmp_path, "sh", "-c", "echo $$; echo error >&2; read x || exit 7")
    assert os.getsid(record.pid) == record.pid != os.getsid(0)  # Ctrl-C does not reach it
    assert process.wait() == 7
    assert (tmp_path / "log").read_text() == f"{record.pid}\nerror\n"


def test_a_signal_reaches_the_process_and_no_other(tmp_path: Path) -> None:
    process, record = started(tmp_path, "sleep", "1000")
    later = replace(record, start_ticks=record.start_ticks + 1)  # the pid was reused
    before_boot = replace(record, boot_id="of another boot")
    for other in (later, before_boot, replace(record, pid=2**22 - 1)):
        assert not other.is_alive
        assert not other.send(signal.SIGKILL)
    assert process.poll() is None
    assert record.is_alive
    assert record.send(signal.SIGKILL)
    wait_for(lambda: not record.is_alive, why="it lives")  # a zombie until it is waited for
    assert process.wait() == -signal.SIGKILL
