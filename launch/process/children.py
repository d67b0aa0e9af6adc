"""Child processes of `launch`: each dies with it, and none receives the terminal's Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from launch.process.signals import Interrupted, Signals

_POLL_S = 0.05
_GRACE_S = 3.0


def start(
    module: str, *args: str | Path, env: dict[str, str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m module args` in a new session, with output to `output` if given."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "launch.process.child",
        str(os.getpid()),
        module,
        *map(str, args),
    ]
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        start_new_session=True,
    )


def start_keeper(run: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends all others of `run` once this one has ended for any reason.

    It identifies them by the run's environment, which it does not have itself, and needs no
    packages.
    """
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(run)]
    env = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}  # the interpreter may need it
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, start_new_session=True)


def run(module: str, *args: str | Path, env: dict[str, str], signals: Signals) -> int:
    """Run a module to completion and return its exit code; a requested stop ends it.

    Raises Interrupted if a stop ended it.
    """
    child = start(module, *args, env=env)
    while child.poll() is None:
        if signals.stop_asked:
            end(child)
            raise Interrupted
        time.sleep(_POLL_S)
    return child.returncode


def end(child: subprocess.Popen[bytes]) -> None:
    """End a child: SIGTERM first, so that it can clean up, then SIGKILL to its process group."""
    child.terminate()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
