"""The state of a run, folded from its events: the source of status.json, console and report."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from rundir.errors import ExitCode, UserError
from rundir.events import Event
from rundir.status import RankStatus, Status
from state import out_of_memory
from state.blame import Blame, Failure, blame_of_exception, blame_of_exit, root_of
from state.gpu_use import GpuUse
from state.stragglers import Stragglers

# The phase of a rank after an event of this kind and name.
_RANK_PHASES = {
    ("start", "lock.wait"): "waiting",
    ("start", "lock.hold"): "importing",
    ("start", "model.load"): "loading",
    ("end", "lock.hold"): "ready",
    ("start", "script"): "loading",
    ("end", "pg.init"): "training",
    ("end", "ddp.wrap"): "training",
    ("error", "rank.exception"): "failed",
}


def update_rank(row: RankStatus, event: Event) -> None:
    """Update a rank's row with an event of that rank."""
    row.pid = event["pid"]
    row.last_event_t = event["t"]
    if row.phase != "failed":  # nothing that it still does on its way out changes that
        row.phase = _RANK_PHASES.get((event["kind"], event["name"]), row.phase)
    if event["kind"] == "mark" and event["name"].startswith("mem."):
        row.rss_bytes = event["rss_bytes"]
        row.pss_anon_bytes = event["pss_anon_bytes"]
        row.gpu_used_bytes = event["gpu_used_bytes"]


@dataclass(slots=True)
class RunState:
    """Everything known about a run so far; `add` is the only way in for events."""

    status: Status
    of_script: bool = False  # one of the user's, which reports less than our trainer
    resume_command: str = ""  # what goes on from its last checkpoint; "" if only its folder tells
    plan: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    export: dict[str, Any] = field(default_factory=dict)  # which checkpoint became the model
    first_loss: float | None = None
    evals: list[Event] = field(default_factory=list)
    sets: dict[str, tuple[Event, Event]] = field(default_factory=dict)  # first and last, by name
    bad_losses: list[Event] = field(default_factory=list)
    early_stop: dict[str, Any] = field(default_factory=dict)  # why it has ended before its steps
    failures: list[Failure] = field(default_factory=list)
    peak_pss_bytes: int = 0
    gpus: dict[int, GpuUse] = field(default_factory=dict)  # by index
    stragglers: Stragglers = field(default_factory=Stragglers)
    last_checkpoint: int | None = None
    ended_by_us: set[int] = field(default_factory=set)  # ranks that the launcher had to kill
    restarts: list[str] = field(default_factory=list)  # what ended each earlier attempt
    is_final: bool = False  # it failed in a way that no restart mends
    added_restarts: list[Event] = field(default_factory=list)  # beside launch.max_restarts
    zygote: str = ""  # what the zygote is doing
    oom_kill: Event | None = None  # proof that the kernel has killed a process in this attempt
    started_mono: float = field(default_factory=time.monotonic)
    _first_train: Event | None = None
    _has_other_exit: bool = False  # a rank has ended in another way than by SIGTERM

    def add(self, event: Event) -> None:
        """Take in one event of the run."""
        rank, is_error = event["rank"], event["kind"] == "error"
        if event["attempt"] > self.status.attempt:
            self._begin_attempt(event["attempt"])
        elif event["attempt"] < self.status.attempt and (rank is not None or is_error):
            return  # about ranks that are gone
        if rank is not None and rank < len(self.status.ranks):
            update_rank(self.status.ranks[rank], event)
        if event["kind"] == "mark" and event["name"].startswith("mem."):
            # A process may be gone before memory is measured; it has told what it had to itself.
            self.peak_pss_bytes = max(self.peak_pss_bytes, event["pss_anon_bytes"])
        handler = _HANDLERS.get((event["kind"], event["name"]))
        if handler is not None:
            handler(self, event)
        else:
            self._note(event)

    def _note(self, event: Event) -> None:
        """Take in an event that changes one thing."""
        match event["kind"], event["name"]:
            case "start", "zygote.import":
                self.zygote = f"importing {event['what']}, once for all ranks"
            case "start", "zygote.build":
                self.zygote = "loading the model, once for all ranks"
            case "error", "zygote.exit":
                self._add_ending(event, None, Blame.ROOT)
            case "error", "memory.oom_kill":
                self.oom_kill = event
            case "mark", "restart.none":
                self.is_final = True
            case "mark", "export.choice":
                self.export = event
            case "mark", "train.result":
                self.result = event
            case "end", "checkpoint" if event["ok"]:
                self.last_checkpoint = event["step"]
            case "metric", "host":
                self.peak_pss_bytes = max(self.peak_pss_bytes, event["pss_bytes"])

    def _begin_attempt(self, attempt: int) -> None:
        """Reset everything about the ranks: all of them are started again."""
        root = self.root_failure()
        self.restarts.append(root.summary if root else "a rank failed")
        self.status.attempt = attempt
        self.status.ranks = [RankStatus(rank=row.rank) for row in self.status.ranks]
        self.failures, self.ended_by_us, self.result, self.oom_kill = [], set(), {}, None
        self._first_train, self._has_other_exit = None, False
        self.stragglers = Stragglers()
        self.enter("starting")

    def enter(self, phase: str) -> None:
        """Set the phase of the run to `phase`; one that is stopping stays so until it has ended."""
        if self.status.phase != "stopping":
            self.status.phase = phase

    def refused(self, error: UserError) -> None:
        """Record why the run does not start, and what helps."""
        self.status.error, self.status.fix = str(error.args[0]), error.do

    def end(self, code: ExitCode, *, is_preempted: bool = False) -> None:
        """Record that the run has ended with `code`, and whether a scheduler has interrupted it."""
        status, root = self.status, self.root_failure()
        status.exit_code, status.waiting = int(code), None
        interrupted = (ExitCode.INTERRUPTED_SAVED, ExitCode.INTERRUPTED_UNSAVED)
        done = code is ExitCode.DONE
        status.phase = "done" if done else "interrupted" if code in interrupted else "failed"
        status.preempted = is_preempted and code in interrupted
        if status.phase == "failed" and root is not None:
            status.error = f"{root.who}: {root.title}"
        for row in status.ranks:
            row.phase = "done" if done else row.phase

    @property
    def has_own_failure(self) -> bool:
        """True if a rank failed by itself, and not because another one, or the launcher, ended."""
        return any(failure.blame <= Blame.LIKELY for failure in self.failures)

    def root_failure(self) -> Failure | None:
        """Return the failure that the others follow from: the likeliest, then the earliest."""
        return root_of(self.failures)

    def _on_plan(self, event: Event) -> None:
        self.plan = event
        self.status.total_steps = event["total_steps"]
        self.status.step = event["first_step"]
        self.enter("training")

    def _on_group(self, event: Event) -> None:
        """Note that a script has joined its process group, and so trains, as far as is known."""
        if self.of_script and event["rank"] == 0 and event["ok"]:
            self.enter("training")

    def _on_train(self, event: Event) -> None:
        status = self.status
        if self._first_train is None:
            self._first_train = event
        if self.first_loss is None:
            self.first_loss = event["loss"]
        status.step, status.loss, status.lr = event["step"], event["loss"], event["lr"]
        status.tokens_per_s, status.mfu = event["tokens_per_s"], event["mfu"]
        status.eta_s = self._eta_s(event)
        if status.step == status.total_steps:
            self.enter("finishing")

    def _eta_s(self, event: Event) -> float | None:
        """Return the seconds left at the pace since the first report; steps before it are slow."""
        assert self._first_train is not None
        num_steps = event["step"] - self._first_train["step"]
        if num_steps == 0 or self.status.total_steps is None:
            return None
        pace_s = (event["mono"] - self._first_train["mono"]) / num_steps
        return float(round((self.status.total_steps - event["step"]) * pace_s, 1))

    def _on_eval(self, event: Event) -> None:
        self.evals.append(event)
        self.status.exact_match = event["exact_match"]

    def _on_set(self, event: Event) -> None:
        first, _ = self.sets.get(event["set"], (event, event))
        self.sets[event["set"]] = first, event

    def _on_bad_loss(self, event: Event) -> None:
        self.bad_losses.append(event)
        self.status.step = max(self.status.step, event["step"])
        if event["answer"] == "rollback":
            self._first_train = None  # it is of a step that comes again

    def _on_early_stop(self, event: Event) -> None:
        self.early_stop = event
        self.enter("finishing")

    def _on_control(self, event: Event) -> None:
        self.status.step = event["step"]
        if event["request"] == "pause" and event["done"]:
            self.enter("paused")
        elif event["request"] == "resume":
            self.enter("training")
            self._first_train = None  # the pause is no part of the pace

    def _on_gpu(self, event: Event) -> None:
        gpu = self.gpus.setdefault(event["index"], GpuUse(event))
        gpu.add(event, is_training=self.status.phase == "training")

    def _on_rank_times(self, event: Event) -> None:
        self.stragglers.add(event, len(self.status.ranks), self.gpus)

    def _on_exception(self, event: Event) -> None:
        text = f"{event['exception']}: {event['message']}"
        blame, code = blame_of_exception(text), event["exit_code"]
        self.failures.append(
            Failure(event["rank"], event["t"], text, blame, code, traceback=event["traceback"])
        )

    def _on_gone(self, event: Event) -> None:
        rank = event["failed_rank"]
        if all(failure.rank != rank for failure in self.failures):
            title = "ended before the training did"
            self.failures.append(Failure(rank, event["t"], title, Blame.UNKNOWN))

    def _on_exit(self, event: Event) -> None:
        rank, signal = event["failed_rank"], event["signal"]
        self._has_other_exit |= signal != "SIGTERM"
        if 0 <= rank < len(self.status.ranks):
            self.status.ranks[rank].phase = "failed"
        if any(
            failure.rank == rank and failure.blame != Blame.UNKNOWN for failure in self.failures
        ):
            return  # it has reported its own error
        self.failures = [failure for failure in self.failures if failure.rank != rank]
        blame = blame_of_exit(
            signal,
            ended_by_launcher=rank in self.ended_by_us,
            is_first=not self._has_other_exit,
        )
        self._add_ending(event, rank, blame)

    def _add_ending(self, event: Event, rank: int | None, blame: Blame) -> None:
        """Add the failure of a process that has ended; by the OOM killer only if that is proven."""
        failure = Failure(rank, event["t"], _ending(event), blame)
        if event["signal"] == "SIGKILL" and self.oom_kill and blame is Blame.ROOT:
            failure.title, failure.notes = out_of_memory.by_kernel(
                self.oom_kill, of_script=self.of_script
            )
            failure.exit_code = ExitCode.OUT_OF_MEMORY
        self.failures.append(failure)

    def _on_guard(self, event: Event) -> None:
        """Record what the guard says about its victim, in place of the signal that killed it."""
        rank = event["failed_rank"]
        if rank is not None and rank < len(self.status.ranks):
            self.status.ranks[rank].phase = "failed"
        if any(failure.rank == rank and failure.traceback for failure in self.failures):
            return  # it has reported its own error
        self.failures = [failure for failure in self.failures if failure.rank != rank]
        title, notes = out_of_memory.by_guard(event, of_script=self.of_script)
        code = ExitCode.OUT_OF_MEMORY
        self.failures.append(Failure(rank, event["t"], title, Blame.ROOT, code, notes=notes))

    def _on_hang(self, event: Event) -> None:
        """Record a hang if the launcher ends all ranks for it, and does not only report it."""
        if event["ends"]:
            self.ended_by_us |= {row.rank for row in self.status.ranks}
            self.failures.append(
                Failure(event["failed_rank"], event["t"], event["title"], Blame.ROOT, ExitCode.HANG)
            )

    def _on_start(self, _event: Event) -> None:
        """Reset the ranks: none of this attempt exists yet, except forks of an abandoned zygote."""
        self.zygote = ""
        self.status.ranks = [RankStatus(rank=row.rank) for row in self.status.ranks]


def _ending(event: Event) -> str:
    """Return how a process ended, from a `rank.exit` or `zygote.exit` event."""
    if event["signal"]:
        return f"killed by {event['signal']}"
    return f"ended with exit code {event['exitcode']}"


_HANDLERS = {
    ("mark", "start"): RunState._on_start,
    ("error", "memory.guard"): RunState._on_guard,
    ("error", "hang"): RunState._on_hang,
    ("mark", "train.plan"): RunState._on_plan,
    ("end", "pg.init"): RunState._on_group,
    ("mark", "control"): RunState._on_control,
    ("metric", "eval.set"): RunState._on_set,
    ("mark", "loss.bad"): RunState._on_bad_loss,
    ("mark", "early_stop"): RunState._on_early_stop,
    ("metric", "train"): RunState._on_train,
    ("metric", "eval"): RunState._on_eval,
    ("metric", "gpu"): RunState._on_gpu,
    ("metric", "train.rank"): RunState._on_rank_times,
    ("error", "rank.exception"): RunState._on_exception,
    ("error", "rank.exit"): RunState._on_exit,
    ("mark", "restart.recompute"): lambda state, event: state.added_restarts.append(event),
    ("error", "rank.gone"): RunState._on_gone,
}


def new_state(
    run_id: str,
    profile: str,
    num_ranks: int,
    *,
    of_script: bool = False,
    resume_command: str = "",
) -> RunState:
    """Return the state of a run that this process has just created."""
    ranks = [RankStatus(rank=rank) for rank in range(num_ranks)]
    status = Status(
        run_id=run_id, profile=profile, started_t=time.time(), launch_pid=os.getpid(), ranks=ranks
    )
    return RunState(status, of_script=of_script, resume_command=resume_command)
