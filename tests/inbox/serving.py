"""An inbox that really runs, with a stand-in for start.sh, watched through its folder."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from inbox.attempt import status_of
from inbox.daemon_state import answer
from inbox.jobs import every_job
from inbox.layout import Layout
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.paths import ROOT, RunDir
from rundir.prepared import Prepared, PreparedData, write_prepared
from tests.forked import run_module
from tests.running import wait_for

STAND_IN = ROOT / "tests/inbox/stand_in.py"
QUICK = ("--settle-s", "0.1", "--poll-s", "0.05", "--backoff-s", "0.05", "--min-free-gib", "0")


def clone(folder: Path) -> Path:
    """Return a folder with a start.sh and an airlock that are the stand-in."""
    folder.mkdir(parents=True)
    records = RunDir(folder)
    records.config.write_text(config_text(RunConfig(profile="tiny"), {}), encoding="utf-8")
    data = PreparedData(path="a", num_samples=1, num_too_long=0, longest=1, end_token_id=0)
    base = Prepared(model_path="base", train=data, evaluation=None, resume_from=None)
    write_prepared(records, base)
    for name in ("start.sh", "airlock"):
        program = folder / name
        program.write_text(
            f"#!/bin/sh\nexport STAND_IN_RECORDS='{folder}'\n"
            f"exec '{sys.executable}' -S -E '{STAND_IN}' {name} \"$@\"\n"
        )
        program.chmod(0o755)
    return folder


class Served:
    """One inbox in a folder of its own; its daemon can be started, ended and killed."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.layout = Layout(folder / "served")
        self.clone = clone(folder / "clone")
        self.environ = environ
        self.process: subprocess.Popen[str] | None = None
        self.layout.create()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "inbox", str(self.layout.path), *words]

    def start(
        self, *options: str, env: dict[str, str] | None = None, within: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start the daemon; a test that wants other options gives them again."""
        if self.process is not None:  # ended, and read to its end
            self.process.communicate(timeout=60)
        words = ("--profile", "tiny", "--clone", str(self.clone), *QUICK, *options)
        self.process = subprocess.Popen(
            [*within, *self.command(*words)],
            cwd=ROOT,
            env=self.environ | (env or {}),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        return self.process

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Type a command beside the daemon."""
        inbox, own = str(self.layout.path), ("inbox.inbox_command",)
        return run_module("inbox", inbox, *words, env=self.environ, modules=own)

    def status(self) -> dict[str, Any]:
        """Return what `status --json` prints, without a process for it."""
        return answer(self.layout)

    def drop(self, name: str, text: str = '{"steps": 2}', priority: str = "normal") -> Path:
        """Put a file there as a careful program does: written elsewhere, then renamed."""
        folder = self.layout.drops()[priority]
        hidden = folder / f".{name}"
        hidden.write_text(text)
        return hidden.rename(folder / name)

    def plan(self, name: str, priority: str = "normal", **plan: Any) -> Path:
        """Drop what the stand-in is to do."""
        return self.drop(name, json.dumps({"steps": 2, "of": name} | plan), priority)

    def log(self) -> str:
        """Return what the daemon has said so far."""
        return self.layout.log.read_text() if self.layout.log.exists() else ""

    def plan_long(self, name: str) -> Path:
        """Drop what trains until the file that is returned is there."""
        until = self.clone / f"{name} may end"
        self.plan(name, steps=1000000, step_s=0.02, until=str(until))
        return until

    def states(self) -> dict[str, str]:
        """Return the state of each dropped thing, by its name."""
        return {job.name: state for state, job in every_job(self.layout)}

    def wait_for(self, **states: str) -> None:
        """Wait until each name (without its ending) has reached that folder."""

        def is_so() -> bool:
            by_stem = {name.partition(".")[0]: state for name, state in self.states().items()}
            return all(by_stem.get(name) == state for name, state in states.items())

        wait_for(is_so, why=f"{states}, but {self.states()}", timeout_s=60.0)

    def verdict(self, name: str) -> dict[str, Any]:
        """Return the verdict of the one job that is called so."""
        folders = [job.folder for _, job in every_job(self.layout) if job.name == name]
        assert len(folders) == 1, folders
        verdict: dict[str, Any] = json.loads((folders[0] / "verdict.json").read_text())
        return verdict

    def completed(self) -> list[str]:
        """Return the name, JOB.ATTEMPT, of the run of each training that ended well."""
        runs = [path for path in self.layout.runs.glob("2*") if not path.is_symlink()]
        ended = [path for path in runs if status_of(RunDir(path)).get("exit_code") == 0]
        names = [path.name.split("-", 2)[2].rpartition("-")[0] for path in ended]
        return [name for name in names if "." in name]  # the others score models

    def processes(self) -> list[psutil.Process]:
        """Return every live process that has to do with this folder, but the daemon."""
        live = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get("AIRLOCK_RUNS_DIR") == str(self.layout.runs)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    live.append(process)
        return live

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        """End the daemon as Ctrl-C does, and return what it wrote on stderr."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=60)[1]


@contextlib.contextmanager
def serving(folder: Path, environ: dict[str, str], *options: str) -> Iterator[Served]:
    """Yield an inbox whose daemon runs, and end everything of it afterwards."""
    served = Served(folder, {key: environ[key] for key in environ if key != "AIRLOCK_RUNS_DIR"})
    try:
        if options != ("not started",):
            served.start(*options)
        yield served
    finally:
        if served.process is not None and served.process.poll() is None:
            served.kill()
        for process in served.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if served.process is not None and served.process.stderr is not None:
            served.process.stderr.close()  # nobody has read it if the daemon ended by itself
