"""Watching a real run from outside, through its run folder and the process table."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from rundir.events import Event, read_events
from rundir.paths import ROOT, RunDir
from rundir.status import read_status
from tests.forked import run_module

T = TypeVar("T")


def here(name: str) -> str:
    """Return the path of a file of the clone, as it is pasted into a shell."""
    return shlex.quote(str(ROOT / name))


Start = Callable[..., "subprocess.Popen[str]"]  # starts a command, like the fixture `airlock`


class Typing:
    """Commands that are typed to their end, each by `finish`, with whatever else that takes."""

    def finish(self, *args: Any, **how: Any) -> tuple[int, str, str]:
        """Type a command; return (exit code, stdout, stderr)."""
        raise NotImplementedError

    def output_of(self, *args: str, code: int = 0, **how: Any) -> str:
        """Type a command, which has to end with that code; return its output."""
        exit_code, out, err = self.finish(*args, **how)
        assert exit_code == code, out + err
        return out

    def error_of(self, *args: str, code: int = 2, **how: Any) -> str:
        """Type a command, which has to end with that code; return its error."""
        exit_code, out, err = self.finish(*args, **how)
        assert exit_code == code, out + err
        return err


class Typed(Typing):
    """Commands that somebody types to their end in a folder, like the fixture `typed`."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self._environ, self._folder = environ, folder

    def __call__(
        self, *args: str, env: Mapping[str, str] = {}, cwd: Path | None = None
    ) -> tuple[int, str, str]:
        """Type `airlock ARGS`; `env` adds variables. Return (exit code, stdout, stderr)."""
        environ = self._environ | dict(env)
        done = run_module("launch", *args, env=environ, cwd=cwd or self._folder)
        return done.returncode, done.stdout, done.stderr

    finish = __call__


def as_options(*settings: str) -> tuple[str, ...]:
    """Return settings (`key=value`) as they are typed, each after a `--set`."""
    return tuple(word for setting in settings for word in ("--set", setting))


# Ranks that need not wait for each other start sooner; tests of the gate add SERIAL.
_OPEN = ("--set", "launch.admit=open")
SERIAL = ("--set", "launch.admit=serial")
COLD = ("--set", "launch.start=cold")

# A run that only stops when it is told to, and reports at every step.
ENDLESS = (
    "run",
    "tiny",
    *_OPEN,
    *as_options(
        "train.max_steps=1000000",
        "train.log_every_steps=1",
        "train.eval_generate=false",
        "train.global_batch_size=4",
        "data.eval_path=",
    ),
)

# A whole run, including export, in a few steps.
SHORT = (
    "run",
    "tiny",
    *_OPEN,
    *as_options(
        "train.max_steps=4",
        "train.log_every_steps=1",
        "train.eval_generate=false",
        "train.global_batch_size=8",
    ),
)


# A run whose only checkpoint is always its latest.
ROTATING = as_options("train.checkpoint_every_steps=2", "train.keep_checkpoints=1")

# True in the zygote itself, and in none of its forks.
IN_ZYGOTE = """
from launch.start.rank import zygote
in_zygote = zygote.current is not None and zygote.current.pid == os.getpid()
"""

_HOOK = """
def install():
    import importlib.abc, importlib.util, os, sys

    def after(module):
        {body}

    class Hook(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name != {module!r}:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), after(module))
            return spec

    sys.meta_path.insert(0, Hook())

install()
"""


def hooked(environ: dict[str, str], folder: Path, module: str, body: str) -> dict[str, str]:
    """Return an environment in which every process runs `body` after importing `module`.

    Processes are the real ones, and so is the module: `body` knows it as `module`, and `os`. Hooks
    in the same folder add up.
    """
    lines = "\n        ".join(body.strip().splitlines())
    with (folder / "sitecustomize.py").open("a") as file:
        file.write(_HOOK.format(body=lines, module=module))
    return {"PYTHONPATH": os.pathsep.join([environ["PYTHONPATH"], str(folder)])}


@functools.cache
def _import_s() -> float:
    """Return the seconds that this machine, under its current load, takes to import torch.

    It is the second import that counts, as for runs here: the first may read it all from the disk.
    """
    took_s = 0.0
    for _ in range(2):
        started_s = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        took_s = time.monotonic() - started_s
    return took_s


def limit_s(imports: float) -> int:
    """Return a time limit in units of an import's time here, for tests that run into that limit.

    A run has begun to train after three to five: it imports more, in the agent and in the zygote.
    """
    return math.ceil(imports * _import_s())


def wait_for(what: Callable[[], T], *, why: str, timeout_s: float = 120.0) -> T:
    """Return the first true value of `what()`; fail with `why` if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < deadline, f"waited in vain: {why}"
        time.sleep(0.05)
    return value


def run_folder(environ: dict[str, str]) -> RunDir:
    """Return the run that `latest` points at, once there is one."""
    latest = Path(environ["AIRLOCK_RUNS_DIR"]) / "latest"
    wait_for(latest.exists, why="no run folder")
    return RunDir(latest.resolve())


def events_of(run: RunDir, kind: str, name: str, rank: int | None = None) -> list[Event]:
    """Return the events of that kind and name so far, of one rank or of all."""
    return [
        event
        for event in read_events(run.events)
        if (event["kind"], event["name"]) == (kind, name) and rank in (None, event["rank"])
    ]


def how_started(run: RunDir) -> tuple[str, str | None]:
    """Return (start, reason) of the first attempt."""
    event = events_of(run, "mark", "start")[0]
    return event["start"], event["reason"]


def rank_pids(run: RunDir) -> dict[int, int]:
    """Return the pid of each rank that has written an event."""
    events = read_events(run.events)
    return {event["rank"]: event["pid"] for event in events if event["rank"] is not None}


def wait_until_training(run: RunDir) -> None:
    """Wait until a step has been trained."""
    wait_for(lambda: events_of(run, "metric", "train"), why="no step was trained")


def zygote_pid(run: RunDir) -> int:
    """Return the pid of the zygote, once it has written an event."""
    marks = wait_for(lambda: events_of(run, "mark", "mem.start"), why="no zygote")
    return next(int(event["pid"]) for event in marks if event["rank"] is None)


def processes_of(run: RunDir) -> list[psutil.Process]:
    """Return every live process that was started for this run, whoever its parent is now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_ours = process.environ().get("AIRLOCK_RUN_DIR") == str(run.path)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def waiting_in(run: RunDir) -> str:
    """Return who is said to wait in the run's status, "" without one."""
    try:
        return str(read_status(run)["waiting"] or "")
    except (OSError, ValueError):  # not written yet
        return ""


def monitors_of(run: RunDir) -> list[psutil.Process]:
    """Return the processes that show the pages of this run."""
    commands = [(one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    return [one for one, words in commands if "monitor" in words and run.run_id in words]


def has_stacks(log: Path) -> bool:
    """Return whether a rank has written to its log where it is in a step."""
    return "train/step/loop.py" in log.read_text()


def assert_nothing_left(run: RunDir) -> None:
    """Fail if a process of the run is alive, and does not end within moments."""
    wait_for(lambda: not processes_of(run), why="processes are left behind", timeout_s=30.0)


def python(
    program: str, *args: str, env: dict[str, str] | None = None, within: Sequence[str] = ()
) -> str:
    """Return what `program` prints, run as Airlock's own programs are, with `env` added."""
    done = subprocess.run(
        [*within, sys.executable, "-P", "-c", program, *args],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def finish(process: subprocess.Popen[str], timeout_s: float = 200.0) -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) of a run that ends by itself."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Make sure that the process is gone afterwards, whatever the test does."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def output_of(process: subprocess.Popen[str], code: int = 0, timeout_s: float = 200.0) -> str:
    """Return the output of a run that ends by itself, as it has to, with that exit code."""
    with ended(process):
        exit_code, out, err = finish(process, timeout_s)
    assert exit_code == code, out + err
    return out


@contextlib.contextmanager
def training(
    process: subprocess.Popen[str], environ: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], RunDir]]:
    """Yield the run that `process` has started, once it has trained a step; end it afterwards."""
    with ended(process):
        run = run_folder(environ)
        wait_until_training(run)
        yield process, run


class User(Typing):
    """Somebody in a folder of their own, whose Airlock writes only there."""

    def __init__(
        self, environ: dict[str, str], folder: Path, airlock: Start, plain: Start, typed: Typed
    ) -> None:
        """`airlock`, `plain`, `typed`: see the fixtures of these names."""
        self.environ, self.folder = environ, folder
        self.airlock, self.plain, self.typed = airlock, plain, typed

    def run(self) -> RunDir:
        """Return the latest run, once there is one."""
        return run_folder(self.environ)

    def hooked(self, module: str, body: str) -> dict[str, str]:
        """Return an environment in which `body` runs after `module` is imported; see `hooked`."""
        return hooked(self.environ, self.folder, module, body)

    def finish(
        self,
        *args: str,
        timeout_s: float = 200.0,
        env: dict[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> tuple[int, str, str]:
        """Type a command to its end; return (exit code, stdout, stderr)."""
        with ended(self.airlock(*args, env=env, within=within)) as process:
            return finish(process, timeout_s)

    def diagnosis(self, folder: Path | None = None) -> dict[str, Any]:
        """Return what the doctor says of a run or an incident; of the latest run without one."""
        of = () if folder is None else (str(folder),)
        code, out, err = self.typed("doctor", "--json", *of)
        assert (code, err) == (0, ""), out + err
        verdict: dict[str, Any] = json.loads(out)
        return verdict

    def training(
        self, *args: str, env: dict[str, str] | None = None
    ) -> contextlib.AbstractContextManager[tuple[subprocess.Popen[str], RunDir]]:
        """Start a run; yield it once it has trained a step, and end it afterwards."""
        return training(self.airlock(*args, env=env), self.environ)
