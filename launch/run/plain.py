"""A run without a launcher, `./airlock run --plain`: this process is rank 0 of 1.

Its run folder is like that of any run, and its training is bit-for-bit that of a launched run with
one rank. It has no gate, zygote, agent, limits or plan.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console

from launch.config.extra_packages import FOR_PAGES, require, require_packages
from launch.config.job import Job, make_job
from launch.config.request import PLAIN, RUN, Request
from launch.run.ready import have_prepared
from launch.run.supervise.parts import RunParts
from launch.run.supervise.plain_watch import FreezeWatch, PlainWatch
from launch.run.supervise.report import exit_code, report
from launch.start.rank.reporter import Reporter, last_words, open_log, write_stacks_to
from machine.gpus.devices import installed_gpus, visible_gpus
from machine.processes.output import Output
from machine.processes.signals import Signals
from machine.processes.stacks import answer_in
from ranks.heavy_imports import heavy_imports
from rundir.errors import ExitCode, UserError
from rundir.events import EventWriter

_SOURCE = "one process, without the launcher"


def run(request: Request, console: Console, output: Output, environ: Mapping[str, str]) -> ExitCode:
    """Carry out the request and return its exit code. Raises UserError for what users can fix."""
    _refuse_company(request, environ)
    job = make_job(replace(request, num_gpus=1), environ)
    job = replace(
        job,
        placement=replace(job.placement, source=_SOURCE),
        sources=job.sources | {"launch.num_ranks": _SOURCE},
    )
    require(job.config)
    if job.config.launch.monitor:
        require_packages("monitor", FOR_PAGES)
    plain = _PlainRun(request, job, console, output, environ)
    try:
        code = plain.parts.carry_out(plain.train, plain.watch.stop)
        plain.report(code)
    finally:
        plain.parts.on_event.end_of_run(plain.parts.signals)
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


def _other_gpus(request: Request, job: Job, environ: Mapping[str, str]) -> list[str]:
    """Return a line about GPUs that a plain run leaves idle, with the command that takes all."""
    if job.placement.device != "cuda":
        return []
    visible = visible_gpus(installed_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    if len(visible) <= 1:
        return []
    return [f"airlock: 1 of {len(visible)} GPUs is used; all: {request.command(RUN, {})}"]


def _leave_bars_to_terminals() -> None:
    """Keep transformers' progress bars out of files and pipes."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class _PlainRun:
    """A run from its folder to its end, in this process."""

    def __init__(
        self,
        request: Request,
        job: Job,
        console: Console,
        output: Output,
        environ: Mapping[str, str],
    ) -> None:
        signals = Signals()
        output.on_reader_gone = signals.ask_to_stop
        self._output = output
        self.parts = parts = RunParts(request, job, console, signals, environ, program=PLAIN)
        self._log = open_log(parts.run.rank_log(0, 0))
        parts.greet(_other_gpus(request, job, environ), environ)
        progress = FreezeWatch(parts.run, parts.config.hang_timeout_s, self._log, self._say_frozen)
        self.watch = PlainWatch(parts, progress, self._end_now)

    def train(self) -> int:
        """Prepare and train; return 0, or 1 if it failed. Raises UserError for what users can fix.

        Whatever was written has been shown by then.
        """
        self.watch.start()
        have_prepared(self.parts, start="cold")
        self.parts.state.enter("starting")
        code = self._train()
        self.watch.stop()
        return code

    def report(self, code: ExitCode) -> None:
        """Print the outcome of the run."""
        report(self.parts.console, self.parts.run, self.parts.state, code)

    def _train(self) -> int:
        """Do what a rank does after the gate; return 0, or 1 if it failed."""
        config, run = self.parts.job.config, self.parts.run
        # Final before torch is imported. From here on, this process is a rank.
        os.environ.clear()
        os.environ.update(self.parts.env)
        write_stacks_to(self._log)
        answer_in(run.stacks("rank0"))
        events = EventWriter(run.event_file("rank0"), rank=0)
        rank = Reporter(events, "Rank 0", self._log)
        try:
            rank.line("INIT: rank=0/1 local_rank=0")
            rank.memory("START")
            with events.span("import"), heavy_imports():
                from train import worker
            rank.memory("POST-IMPORT")
            _leave_bars_to_terminals()
            with events.span("model.load"):
                model = worker.load(config, run, 0, tell=rank.line)
            rank.memory("POST-MODEL")
            if (device := next(model.parameters()).device).type == "mps":  # only torch knows of it
                rank.line(f"DEVICE: {device}, the GPU of this Mac")
            worker.train(config, run, model, events)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported as for any rank
            words = last_words(error)
            self.parts.emit_error(events, "rank.exception", words, rank=0)
            with contextlib.suppress(OSError):
                os.write(self._log, words["traceback"].encode(errors="replace"))
            return 1
        return 0

    def _say_frozen(self, text: str) -> None:
        """Write a line of the watching thread to the log, and by its event to the console."""
        line = f"airlock: {text}"
        with contextlib.suppress(OSError):
            os.write(self._log, f"{line}\n".encode(errors="replace"))
        self.parts.events.emit("log", "line", text=line)

    def _end_now(self) -> None:
        """End this process, whatever its main thread is doing; called by the watching thread."""
        code = exit_code(self.parts.state, 1, self.parts.signals)
        self.parts.end(code)
        self.report(code)
        self._output.discard_rest()
        os._exit(int(code))
