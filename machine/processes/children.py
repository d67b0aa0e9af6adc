"""Child processes of `launch`: each dies with it, and none receives the terminal's Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from machine.processes.signals import Interrupted, Signals
from rundir.errors import ExitCode, UserError
from rundir.paths import ROOT, RunDir

_POLL_S = 0.05
_GRACE_S = 3.0
_PIPE_BYTES = 65536


def python_path(environ: Mapping[str, str]) -> str:
    """Return PYTHONPATH for a child process: the clone, then the user's entries."""
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([str(ROOT), *(entry for entry in entries if entry != str(ROOT))])


def start(
    module: str,
    *args: str | Path,
    env: dict[str, str],
    output: IO[bytes] | None = None,
    with_input: bool = False,
    copy_to: RunDir | None = None,
    tell: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m module args` in a new session, with output to `output` if given.

    The child finds the clone's modules even if `env` does not name it, as when the caller itself
    was started with `python -m` from the clone. Its standard input is empty, or this process's
    `with_input`. What it prints also goes to the log of the run `copy_to`. An
    error that users can fix is written to the descriptor `tell`, and not printed.
    """
    return subprocess.Popen(
        _command(module, args, copy_to, tell),
        pass_fds=() if tell is None else (tell,),
        env={**env, "PYTHONPATH": python_path(env)},
        stdin=None if with_input else subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        start_new_session=True,
    )


def wait(child: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for the end of a child for `timeout_s` at most, or less where the kernel cannot tell."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # not Linux, or a sandbox without it
        time.sleep(min(timeout_s, _POLL_S))
        return
    try:
        ends = select.poll()
        ends.register(descriptor, select.POLLIN)
        ends.poll(1000 * timeout_s)
    finally:
        os.close(descriptor)


def attend(module: str, *args: str | Path, env: dict[str, str]) -> int:
    """Run a module that has the terminal to itself, Ctrl-C included; return its exit code."""
    child = subprocess.Popen(_command(module, args), env={**env, "PYTHONPATH": python_path(env)})
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the child's now
    try:
        return child.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _command(
    module: str,
    args: tuple[str | Path, ...],
    copy_to: RunDir | None = None,
    tell: int | None = None,
) -> list[str]:
    wrapper = ["-P", "-m", "machine.processes.child", str(os.getpid())]
    wrapper += [f"--copy-to={copy_to.path}"] if copy_to else []
    wrapper += [] if tell is None else [f"--tell={tell}"]
    return [sys.executable, *wrapper, module, *map(str, args)]


def start_keeper(run: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends all others of `run` once this one has ended for any reason.

    It identifies them by the run's environment, which it does not have itself, and needs no
    packages.
    """
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(run)]
    env = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}  # the interpreter may need it
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, start_new_session=True)


def run(
    module: str,
    *args: str | Path,
    env: dict[str, str],
    signals: Signals,
    tell: int | None = None,
) -> int:
    """Run a module to completion and return its exit code; a requested stop ends it.

    It prints on the console of this process, and so into the log of the run that `env` names.
    `tell` is that of `start`. Raises Interrupted if a stop ended it.
    """
    of_run = RunDir(Path(env["AIRLOCK_RUN_DIR"])) if "AIRLOCK_RUN_DIR" in env else None
    has_log = of_run is not None and of_run.run_log.exists()
    child = start(module, *args, env=env, copy_to=of_run if has_log else None, tell=tell)
    while child.poll() is None:
        if signals.stop_asked:
            end(child)
            raise Interrupted
        time.sleep(_POLL_S)
    return child.returncode


def run_well(
    what: str, module: str, *args: str | Path, env: dict[str, str], signals: Signals
) -> None:
    """Run a module as `run` does. Raises UserError unless it ends well: its own, or else `what`."""
    reads, writes = os.pipe()
    try:
        code = run(module, *args, env=env, signals=signals, tell=writes)
        os.set_blocking(reads, False)  # a process that the child has left may hold it open
        report = b""
        with contextlib.suppress(BlockingIOError):
            report = os.read(reads, _PIPE_BYTES)
    finally:
        os.close(reads)
        os.close(writes)
    if code < 0:
        do = "if nobody did that, memory ran out: `dmesg | grep -i oom`"
        raise UserError(f"{what}: killed by signal {-code}", do=do, code=ExitCode.PREFLIGHT)
    if code != 0:
        known = ExitCode(code) if code in list(ExitCode) else ExitCode.PREFLIGHT
        error = json.loads(report) if report else {"what": what, "do": "see the lines above"}
        raise UserError(error["what"], do=error["do"], code=known)


def end(child: subprocess.Popen[bytes]) -> None:
    """End a child: SIGTERM first, so that it can clean up, then SIGKILL to its process group."""
    child.terminate()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
