"""The launcher's own descendants: ending one that may have ended by itself."""

from __future__ import annotations

import subprocess
import sys

import psutil

from machine.processes.descendants import is_alive, kill


def test_a_process_that_has_ended_meanwhile_is_killed_without_a_word() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = psutil.Process(child.pid)
    assert is_alive(process)
    kill(process)
    assert child.wait() == -9
    kill(process)
    assert not is_alive(process)
