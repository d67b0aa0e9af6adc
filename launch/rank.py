"""The entry of a rank: limits → gate → imports → model → gate opens for the next → training.

Nothing heavy is imported before the rank is inside the gate. torchrun starts this module once for
each rank; everything it needs besides torchrun's variables is in the run folder.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.gate import Gate, gate_folder
from launch.limits import apply_limits
from launch.memory import measure
from launch.parent import die_with_parent
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where this rank stands, as torchrun's variables say."""

    rank: int
    local_rank: int
    world_size: int
    node: int
    attempt: int

    @classmethod
    def from_environment(cls) -> RankPlace:
        """Read RANK, LOCAL_RANK, WORLD_SIZE, GROUP_RANK and TORCHELASTIC_RESTART_COUNT."""
        return cls(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            node=int(os.environ["GROUP_RANK"]),
            attempt=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        )


class Reporter:
    """Says what a rank does: as a line in its log and as an event."""

    def __init__(self, events: EventWriter, rank: int) -> None:
        self.events = events
        self._rank = rank

    def line(self, text: str) -> None:
        """Print `[Rank N] text`, whole."""
        line = f"[Rank {self._rank}] {text}"
        os.write(1, f"{line}\n".encode())
        self.events.emit("log", "line", text=line)

    def memory(self, label: str) -> None:
        """Print `MEM:LABEL` with this process's figures, and write the mark of that name."""
        memory = measure()
        self.events.emit("mark", f"mem.{label.lower().replace('-', '_')}", **asdict(memory))
        self.line(f"MEM:{label} {memory.line()}")


def main() -> None:
    """Bring this rank up and train; ends the process with 0, or 1 after saying why."""
    die_with_parent(int(os.environ.get("AIRLOCK_AGENT_PID", os.getppid())))
    run = RunDir(Path(os.environ["AIRLOCK_RUN_DIR"]))
    place = RankPlace.from_environment()
    _write_to(run.rank_log(place.rank, place.attempt))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    events = EventWriter(
        run.event_file(f"rank{place.rank}"),
        rank=place.rank, node=place.node, attempt=place.attempt,
    )  # fmt: skip
    try:
        _train(run, place, Reporter(events, place.rank))
    except Exception as error:  # noqa: BLE001 - whatever ends a rank must be told to its launcher
        _report_failure(events, error)
        # Not sys.exit: destructors of a broken process group can wait for ranks that never come.
        os._exit(1)


def _train(run: RunDir, place: RankPlace, report: Reporter) -> None:
    config = read_config(run.config)
    events = report.events
    report.line(f"INIT: rank={place.rank}/{place.world_size} local_rank={place.local_rank}")
    events.emit("mark", "limits", **apply_limits(config.limits))
    report.memory("START")
    with _gate(config, run, place, report) as admitted, events.span("lock.hold"):
        report.line("LOCK: acquired! Starting initialization...")
        admitted.phase("importing")
        with events.span("import"):
            from train import worker
        report.memory("POST-IMPORT")
        admitted.phase("loading")
        with events.span("model.load"):
            model = worker.load(config, run, place.local_rank)
        report.memory("POST-MODEL")
        # Said before the lock is given up, so that the next rank's "acquired" comes after it.
        report.line("LOCK: released")
    worker.train(config, run, model, events)


@contextlib.contextmanager
def _gate(config: RunConfig, run: RunDir, place: RankPlace, report: Reporter) -> Iterator[Gate]:
    """Pass the gate as `launch.admit` says; inside it the block runs."""
    waiting = contextlib.ExitStack()  # the lock.wait span, entered only by a rank that waits

    def on_wait(reminder: str) -> None:
        if reminder:
            report.line(f"LOCK: still waiting: {reminder}")
        else:
            waiting.enter_context(report.events.span("lock.wait"))
            report.line("LOCK: waiting for exclusive access...")

    gate = Gate(
        gate_folder(),
        run_id=f"{run.run_id}-{place.attempt}",
        rank=place.rank,
        local_rank=place.local_rank,
        timeout_s=config.launch.gate_timeout_s,
        on_wait=on_wait,
    )
    passage: AbstractContextManager[None] = (
        gate.admitted() if config.launch.admit == "serial" else contextlib.nullcontext()
    )
    with waiting, passage:
        waiting.close()
        yield gate


def _write_to(log: Path) -> None:
    """Send this process's output, and that of every library in it, to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _report_failure(events: EventWriter, error: Exception) -> None:
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        error.add_note("RLIMIT_AS is set for this rank: AIRLOCK_RLIMIT_AS_GIB=0 takes it off")
    is_users = isinstance(error, UserError)  # says itself what to do: a traceback tells no more
    text = f"{error}\n" if is_users else "".join(traceback.format_exception(error))
    events.emit(
        "error",
        "rank.exception",
        exception=type(error).__name__,
        message=str(error),
        traceback=text,
        exit_code=_exit_code(error),
    )
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()


def _exit_code(error: Exception) -> int:
    if isinstance(error, UserError):
        return int(error.code)
    # torch's OutOfMemoryError says itself that the device is full; by name, torch may not be there.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return int(ExitCode.OUT_OF_MEMORY)
    return int(ExitCode.RANK_FAILED)


if __name__ == "__main__":
    main()
