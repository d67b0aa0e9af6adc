"""A run without a launcher, `./airlock run --plain`: this process is rank 0 of 1.

Its run folder is like that of any run, and its training is bit-for-bit that of a launched run with
one rank. It has no gate, zygote, agent, limits or plan.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console

from launch.config.environment_text import left_out_lines
from launch.config.extra_packages import require
from launch.config.job import Job, make_job
from launch.config.records import banner, make_folder
from launch.config.request import PLAIN, RUN, Request
from launch.run.monitor_beside import require_monitor, start_monitor
from launch.run.ready import have_prepared
from launch.run.supervise.on_event import OnEvent
from launch.run.supervise.plain_watch import PlainWatch
from launch.run.supervise.report import exit_code, report
from launch.run.supervise.watch import Watch
from launch.start.rank.last_words import last_words
from launch.start.rank.reporter import Reporter, open_log, write_stacks_to
from launch.track.sidecar import Tracking
from machine.gpus.devices import installed_gpus, visible_gpus
from machine.gpus.gpu_samples import GpuSampler
from machine.processes.descendants import OwnProcesses
from machine.processes.line_console import keep_in
from machine.processes.output import Output
from machine.processes.signals import Interrupted, Signals
from machine.processes.stacks import answer_in
from rundir.checkpoints import remove_half_written
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import shown
from state.follow import Follower
from state.run_state import new_state

_SOURCE = "one process, without the launcher"
# Variables that torchrun or a job script sets for its own ranks.
_OF_RANKS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def run(request: Request, console: Console, output: Output, environ: Mapping[str, str]) -> ExitCode:
    """Carry out the request and return its exit code. Raises UserError for what users can fix."""
    _refuse_company(request, environ)
    own = {name: value for name, value in environ.items() if name not in _OF_RANKS}
    job = make_job(replace(request, num_gpus=1), own)
    job = replace(
        job,
        placement=replace(job.placement, source=_SOURCE),
        sources=job.sources | {"launch.num_ranks": _SOURCE},
    )
    require(job.config)
    if job.config.launch.monitor:
        require_monitor()
    plain = _PlainRun(request, job, console, output, own)
    plain.greet(request, own)
    try:
        code = plain.to_its_end()
        plain.report(code)
    finally:
        plain.tell()
    return code


def _refuse_company(request: Request, environ: Mapping[str, str]) -> None:
    """Raise UserError in one of several ranks: each would train alone, all on the same device."""
    world_size = environ.get("WORLD_SIZE", "").strip()
    if world_size in ("", "1"):
        return
    ranks = {"num_gpus": int(world_size)} if world_size.isdigit() else {}
    raise UserError(
        f"{PLAIN} is one process, and WORLD_SIZE={world_size} says that this is one of several",
        do=f"{request.command(RUN, {}, **ranks)}   # "
        "starts its ranks itself: run it without torchrun, or unset WORLD_SIZE",
    )


def _leave_bars_to_terminals() -> None:
    """Keep transformers' progress bars out of files and pipes."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class _PlainRun:
    """A run with its folder, carried out by this process."""

    def __init__(
        self,
        request: Request,
        job: Job,
        console: Console,
        output: Output,
        environ: Mapping[str, str],
    ) -> None:
        self._job, self._console, self._output = job, console, output
        self._signals = Signals()
        output.on_reader_gone = self._signals.ask_to_stop
        self.folder, self._environment = make_folder(job, environ)
        keep_in(console, self.folder)
        self._env = self._environment.of_child(environ)
        self.state = new_state(
            self.folder.run_id,
            job.config.profile,
            1,
            resume_command=request.command(PLAIN, {}, resume=shown(self.folder.path)),
        )
        self._events = EventWriter(self.folder.event_file("launch"))
        self._log = open_log(self.folder.rank_log(0, 0))
        self._follower = Follower(
            self.folder, self.state, self._events, GpuSampler(job.placement.gpus)
        )
        processes = OwnProcesses()
        self._tracking = Tracking(self.folder, job.config, self._env, processes, console)
        if job.config.launch.monitor:
            start_monitor(self.folder, environ, processes, console)
        self._on_event = OnEvent(
            self.folder, self.state, job.config.launch.on_event, processes, console
        )
        self._watch = Watch(
            run=self.folder,
            state=self.state,
            follower=self._follower,
            tracking=self._tracking,
            on_event=self._on_event,
            console=console,
            signals=self._signals,
            stop_timeout_s=job.config.launch.stop_timeout_s,
            end_now=self._end_now,
            progress=PlainWatch(
                self.folder, job.config.launch.hang_timeout_s, self._log, self._tell_of_freeze
            ),
        )

    def greet(self, request: Request, environ: Mapping[str, str]) -> None:
        """Print what runs where, and the command that uses more of this machine."""
        keep_env = self._job.config.launch.keep_env
        lines = [banner(self._job, self.folder), *left_out_lines(self._environment, keep_env)]
        if self._job.placement.device == "cuda":
            visible = visible_gpus(installed_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
            if len(visible) > 1:
                all_of_them = request.command(RUN, {})
                lines.append(f"airlock: 1 of {len(visible)} GPUs is used; all: {all_of_them}")
        self._console.out("\n".join(lines), highlight=False)

    def to_its_end(self) -> ExitCode:
        """Prepare and train. Raises UserError for what users can fix."""
        code = ExitCode.RANK_FAILED  # unless another outcome is found
        self._watch.start()
        try:
            have_prepared(
                self._job,
                self.folder,
                self._console,
                self._env,
                self._events,
                self._signals,
                start="cold",
            )
            self.state.enter("starting")
            agent_code = self._train()
            self._watch.stop()
            code = exit_code(self.state, agent_code, self._signals)
        except Interrupted:
            code = ExitCode.INTERRUPTED_UNSAVED
        except UserError as error:
            code = error.code
            self.state.refused(error)
            raise
        finally:
            self._watch.stop()
            self._tracking.end(self._signals)
            self._close(code)
        return code

    def report(self, code: ExitCode) -> None:
        """Print the outcome of the run."""
        report(self._console, self.folder, self.state, code)

    def tell(self) -> None:
        """Tell the command of --on-event how it ended."""
        self._on_event.end_of_run(self._signals)

    def _train(self) -> int:
        """Do what a rank does after the gate; return 0, or 1 if it failed."""
        # Final before torch is imported. From here on, this process is a rank.
        os.environ.clear()
        os.environ.update(self._env)
        write_stacks_to(self._log)
        answer_in(self.folder.stacks("rank0"))
        events = EventWriter(self.folder.event_file("rank0"), rank=0)
        rank = Reporter(events, "Rank 0", self._log)
        try:
            rank.line("INIT: rank=0/1 local_rank=0")
            rank.memory("START")
            with events.span("import"):
                from train import worker
            rank.memory("POST-IMPORT")
            _leave_bars_to_terminals()
            with events.span("model.load"):
                model = worker.load(self._job.config, self.folder, 0, tell=rank.line)
            rank.memory("POST-MODEL")
            if (device := next(model.parameters()).device).type == "mps":  # only torch knows of it
                rank.line(f"DEVICE: {device}, the GPU of this Mac")
            worker.train(self._job.config, self.folder, model, events)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported as for any rank
            self._tell(events, error)
            return 1
        return 0

    def _tell(self, events: EventWriter, error: BaseException) -> None:
        num_lost, words = events.num_lost, last_words(error)
        events.emit("error", "rank.exception", **words)
        if events.num_lost > num_lost:  # a full disk: the event cannot be read back
            about = {"kind": "error", "name": "rank.exception", "rank": 0, "attempt": 0}
            self.state.add({**about, "pid": os.getpid(), "t": time.time(), **words})
        with contextlib.suppress(OSError):
            os.write(self._log, words["traceback"].encode(errors="replace"))

    def _tell_of_freeze(self, text: str) -> None:
        """Write a line of the watching thread to the log, and by its event to the console."""
        line = f"airlock: {text}"
        with contextlib.suppress(OSError):
            os.write(self._log, f"{line}\n".encode(errors="replace"))
        self._events.emit("log", "line", text=line)

    def _end_now(self) -> None:
        """End this process, whatever its main thread is doing; called by the watching thread."""
        code = exit_code(self.state, 1, self._signals)
        self._close(code)
        self.report(code)
        self._output.discard_rest()
        os._exit(int(code))

    def _close(self, code: ExitCode) -> None:
        """Record the outcome, and remove incomplete files."""
        self.state.end(code, is_preempted=self._signals.has_preempted(self.folder))
        self._follower.write_status()
        remove_half_written(self.folder)
