"""The monitor's pages beside a run: `./start.sh 32b --monitor`, and the setting launch.monitor.

A process of its own serves them, and ends with this one. It reads the run folder as any other
monitor does, so that its crash never touches training.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from rich.console import Console

from launch.config.extra_packages import FOR_PAGES, require_packages
from machine.processes.descendants import OwnProcesses
from rundir.paths import RunDir

_PORT, _NUM_PORTS = 8080, 20


def require_monitor() -> None:
    """Raise UserError if the pages cannot be served here, with what to install."""
    require_packages("monitor", FOR_PAGES)


def start_monitor(
    run: RunDir, env: Mapping[str, str], processes: OwnProcesses, console: Console
) -> None:
    """Serve the pages of `run` until this process ends; say where, or why not."""
    try:
        port = _free_port()
        with run.monitor_log.open("ab") as log:
            run.monitor_log.chmod(0o600)  # it names the token
            words = ("monitor", "--run", run.run_id, "--runs-dir", str(run.path.parent))
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "monitor", *words),
                    *("--port", str(port), "--until-end-of", str(os.getpid())),
                ],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:  # no file, process or memory available
        text = f"no monitor: {error.strerror}; the training goes on without it"
    else:
        processes.set_apart(process.pid)
        text = (
            f"monitor: http://127.0.0.1:{port}/run?run={run.run_id}\n"
            f"  with controls: the address in {run.monitor_log}; "
            f"from elsewhere: ssh -L {port}:localhost:{port} {socket.gethostname()}"
        )
    console.out(f"airlock: {text}")


def _free_port() -> int:
    """Return a port that is free now; another program may still be faster. Raises OSError."""
    for port in range(_PORT, _PORT + _NUM_PORTS):
        with socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                made.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(errno.EADDRINUSE, f"ports {_PORT} to {_PORT + _NUM_PORTS - 1} are taken")
