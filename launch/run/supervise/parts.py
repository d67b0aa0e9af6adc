"""The parts of a run, launched or plain: its folder, its state, and what shows and follows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from launch.config.environment_text import left_out_lines
from launch.config.job import Job
from launch.config.records import banner, make_folder
from launch.config.request import Request
from launch.run.supervise.console import View
from launch.run.supervise.on_event import OnEvent
from launch.run.supervise.report import exit_code
from launch.run.supervise.workload import Workload
from launch.track.sidecar import Tracking
from machine.gpus.gpu_samples import GpuSampler
from machine.processes.descendants import OwnProcesses
from machine.processes.line_console import keep_in
from machine.processes.monitor_beside import serve_pages
from machine.processes.signals import Interrupted, Signals
from rundir.checkpoints import remove_half_written
from rundir.errors import ExitCode, UserError
from rundir.events import Event, EventWriter
from rundir.paths import shown
from state.follow import Follower
from state.run_state import new_state


class RunParts:
    """A run with its new folder, and everything that looks at it and acts on it.

    `program` is the command that goes on from it. Raises UserError if the folder cannot be made.
    """

    def __init__(
        self,
        request: Request,
        job: Job,
        console: Console,
        signals: Signals,
        environ: Mapping[str, str],
        *,
        program: str,
    ) -> None:
        self.job, self.console, self.signals = job, console, signals
        self.config = job.config.launch
        self.processes = OwnProcesses()
        self.run, self.environment = make_folder(job, environ)
        keep_in(console, self.run)
        self.env = self.environment.of_child(environ)
        self.state = new_state(
            self.run.run_id,
            job.config.profile,
            job.placement.num_ranks,
            of_script=job.config.script is not None,
            resume_command=request.command(program, {}, resume=shown(self.run.path)),
        )
        self.workload = Workload(self.run, of_script=self.state.of_script)
        self.events = EventWriter(self.run.event_file("launch"))
        self.follower = Follower(self.run, self.state, self.events, GpuSampler(job.placement.gpus))
        self.tracking = Tracking(self.run, job.config, self.env, self.processes, console)
        self.on_event = OnEvent(self.run, self.state, self.config.on_event, self.processes, console)

    def greet(self, lines: Sequence[str], environ: Mapping[str, str]) -> None:
        """Print what runs where, then `lines`, and serve the pages if they are asked for."""
        left_out = left_out_lines(self.environment, self.config.keep_env)
        self.say("\n".join([banner(self.job, self.run), *left_out, *lines]))
        if self.config.monitor:
            self._serve_pages(environ)

    def _serve_pages(self, environ: Mapping[str, str]) -> None:
        words = ["--run", self.run.run_id, "--runs-dir", str(self.run.path.parent)]
        pid = serve_pages(
            words,
            self.run.monitor_log,
            environ,
            lambda text: self.say(f"airlock: {text}"),
            beside="the training",
        )
        if pid is not None:
            self.processes.set_apart(pid)

    def say(self, text: str) -> None:
        """Print one or more lines on the console."""
        self.console.out(text)

    def follow(
        self,
        view: View,
        judge: Callable[[list[Event]], object] = lambda _: None,
        proves_oom: Callable[[list[Event]], bool] = lambda _: False,
    ) -> None:
        """Take in new events, and pass them to `judge` and to all who show them or react to them.

        If `proves_oom` says that it has found and recorded a proof, that comes before the others.
        Writes the status and host memory when due.
        """
        events = self.follower.new_events()
        if proves_oom(events):
            events = self.follower.new_events() + events
        self.follower.take_in(events)
        judge(events)
        view.show(self.state, events)
        self.tracking.look(events)
        self.on_event.look(events)
        self.follower.write_when_due()

    def emit_error(
        self, events: EventWriter, name: str, fields: Mapping[str, Any], rank: int | None = None
    ) -> None:
        """Emit an error by `events`, and take it in here if a full disk has lost it."""
        num_lost = events.num_lost
        events.emit("error", name, **fields)
        if events.num_lost > num_lost:
            about = {"kind": "error", "name": name, "rank": rank, "pid": os.getpid()}
            self.state.add(
                {**about, "attempt": self.state.status.attempt, "t": time.time(), **fields}
            )

    def carry_out(
        self,
        train: Callable[[], int],
        close: Callable[[], None],
        explained: Callable[[UserError], UserError] = lambda error: error,
    ) -> ExitCode:
        """Carry out the run by `train`, which returns the exit code of the agent; record the end.

        `close` ends whatever `train` has begun. Raises UserError for what users can fix, in the
        words of `explained`.
        """
        code = ExitCode.RANK_FAILED  # unless another outcome is found
        try:
            code = exit_code(self.state, train(), self.signals)
        except Interrupted:
            code = ExitCode.INTERRUPTED_UNSAVED
        except UserError as seen:
            error = explained(seen)
            code = error.code
            self.state.refused(error)
            raise error from None
        finally:
            close()
            self.tracking.end(self.signals)
            self.end(code)
        return code

    def end(self, code: ExitCode) -> None:
        """Record the outcome in the status, and remove incomplete files."""
        self.state.end(code, is_preempted=self.signals.has_preempted(self.run))
        self.follower.write_status()
        remove_half_written(self.run)
