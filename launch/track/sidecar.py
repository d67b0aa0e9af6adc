"""The launcher's side of tracking: a process for each tracker, started once there is a metric.

A tracker that hangs delays no other, and none delays the training; the launcher itself loads no
tracker, and waits for a network only at the end of a run, within limits.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console

from launch.track.services import FILES, LAST_WORDS, TITLES, services_in
from machine.processes.descendants import OwnProcesses
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.events import Event
from rundir.paths import RunDir

_POLL_S = 0.05
_SILENT_S = 2.0  # a longer wait is announced
_FILES_S, _SERVICE_S = 10.0, 60.0  # longest wait at the end of a run, for files and for uploads
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Tracking:
    """All trackers of one run."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        env: Mapping[str, str],
        processes: OwnProcesses,
        console: Console,
    ) -> None:
        self._run, self._env, self._processes, self._console = run, env, processes, console
        self._names = [FILES, *services_in(config.train.report_to)]
        self._sidecars: list[_Sidecar] | None = None

    def look(self, events: Iterable[Event]) -> None:
        """Start tracking at the first metric of training in `events`; show what trackers print."""
        if self._sidecars is None and any(_is_of_training(event) for event in events):
            self._sidecars = list(self._started())
        self._show()

    def end(self, signals: Signals) -> None:
        """Let the trackers take the rest of the run, and leave none of their processes behind.

        They get their time, unless a stop is requested (again) meanwhile.
        """
        if not self._sidecars:
            return
        for sidecar in self._sidecars:
            sidecar.no_more()
        was_asked, started, is_announced = signals.stop_asked, time.monotonic(), False
        while left := self._alive(time.monotonic() - started):
            if signals.end_now or (signals.stop_asked and not was_asked):
                break
            if not is_announced and time.monotonic() - started > _SILENT_S:
                is_announced = True
                names = " and ".join(TITLES[sidecar.name] for sidecar in left)
                most_s = max(sidecar.most_s for sidecar in left)
                self._out(f"waiting for {names}, {most_s:.0f} s at most; Ctrl-C ends that")
            time.sleep(_POLL_S)
        for sidecar in self._sidecars:
            if sidecar.process.poll() is None:
                self._out(
                    f"{TITLES[sidecar.name]} is not done and is ended{self._what_to_do(sidecar)}"
                )
                sidecar.was_ended = True
            self._processes.take_back(sidecar.process.pid)
        self._processes.end()
        self._show()
        for sidecar in self._sidecars:
            sidecar.close()
        self._sidecars = []

    def _started(self) -> Iterator[_Sidecar]:
        for name in self._names:
            try:
                sidecar = _Sidecar(name, self._run, dict(self._env) | _ONE_THREAD)
            except OSError as error:  # no file, process or memory available
                self._out(f"{TITLES[name]}: {error.strerror}; the training goes on without it")
                continue
            self._processes.set_apart(sidecar.process.pid)
            yield sidecar

    def _alive(self, waited_s: float) -> list[_Sidecar]:
        """Return the sidecars that are still running and have time left."""
        self._show()
        return [
            sidecar
            for sidecar in self._sidecars or ()
            if sidecar.process.poll() is None and waited_s < sidecar.most_s
        ]

    def _show(self) -> None:
        """Print the lines of the trackers, and report each one that has failed."""
        for sidecar in self._sidecars or ():
            # Polled before its lines are read, so that none comes later.
            code = sidecar.process.poll()
            lines = sidecar.new_lines()
            if code and not sidecar.was_ended:
                sidecar.was_ended = True
                why = sidecar.why or _ending(code)
                lines.append(f"{why}; the training goes on without it{self._what_to_do(sidecar)}")
            for line in lines:
                self._out(f"{TITLES[sidecar.name]}: {line}")

    def _what_to_do(self, sidecar: _Sidecar) -> str:
        run = self._run
        if sidecar.name == FILES:
            return f"\n  → ./airlock track {run.run_id}   # writes its files anew"
        log = f"# its log: {run.track_log(sidecar.name)}"
        if next(run.path.glob("wandb/*run-*/*.wandb"), None) and sidecar.name == "wandb":
            return f"\n  → wandb sync {shlex.quote(str(run.path))}/wandb/*run-*   {log}"
        return f"\n  → ./airlock track {run.run_id} --to {sidecar.name}   {log}"

    def _out(self, text: str) -> None:
        self._console.out(f"airlock: {text}")


class _Sidecar:
    """One tracking process, and the pipes to it and from it."""

    def __init__(self, name: str, run: RunDir, env: dict[str, str]) -> None:
        self.name = name
        self.most_s = _FILES_S if name == FILES else _SERVICE_S
        self.was_ended = False  # or its failure has been reported
        self.why = ""  # the reason for its failure, in its own words
        command = [sys.executable, "-P", "-m", "launch.track"]
        command += [str(run.path), name, str(os.getpid())]
        with run.track_log(name).open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._text = ""

    def new_lines(self) -> list[str]:
        """Return the lines printed since the last call, without the last words; never block."""
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError, ValueError):
            while data := os.read(self.process.stdout.fileno(), 65536):
                self._text += data.decode(errors="replace")
        *lines, self._text = self._text.split("\n")
        for line in lines:
            if line.startswith(LAST_WORDS):
                self.why = line.removeprefix(LAST_WORDS)
        return [line for line in lines if not line.startswith(LAST_WORDS)]

    def no_more(self) -> None:
        """Tell the process that the run is over."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        """Close the remaining pipe, once the process has ended."""
        assert self.process.stdout is not None
        self.process.stdout.close()


def _is_of_training(event: Event) -> bool:
    return event["kind"] == "metric" and event["name"] in ("train", "eval")


def _ending(code: int) -> str:
    """Return how a process ended that has not said why."""
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
