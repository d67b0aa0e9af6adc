"""Start the children of `launch`: each dies with it, and none hears the terminal's Ctrl-C."""

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
    """Start `python -m module args` in a session of its own, its output to `output` if given."""
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
    """Start the process that ends all others of `run` once this one is gone, in whatever way.

    It has none of the run's environment, by which it knows what to end, and needs no packages.
    """
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(run)]
    env = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}  # Python itself may need it
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, start_new_session=True)


def run(module: str, *args: str | Path, env: dict[str, str], signals: Signals) -> int:
    """Run a module to its end and return its exit code; a stop asked for ends it.

    Raises Interrupted when it was ended by a stop.
    """
    child = start(module, *args, env=env)
    while child.poll() is None:
        if signals.stop_asked:
            end(child)
            raise Interrupted
        time.sleep(_POLL_S)
    return child.returncode


def end(child: subprocess.Popen[bytes]) -> None:
    """End a child and its session: first so that it can tidy up, then at once."""
    child.terminate()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
