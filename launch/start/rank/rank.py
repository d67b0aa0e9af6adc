"""The entry point of a rank: limits → gate → imports → model → gate opens for the next → training.

A script of the user's own is run by launch/start/rank/script.py instead.

Nothing heavy is imported before the rank is inside the gate. torchrun starts this module once for
each rank; apart from torchrun's variables, everything it needs is in the run folder. A warm rank is
a fork of a zygote that has already imported and built: it enters through `main_of_fork`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.start.gate.gate import Visitor
from launch.start.rank import zygote
from launch.start.rank.admission import through_gate
from launch.start.rank.reporter import Reporter, tell_failure, write_output_to
from launch.start.rank.script_preload import set_variables
from machine.cores.binding import bind_rank, pages_spread
from machine.memory.limits import apply_limits, die_before_others
from machine.processes.parent import die_with_parent
from machine.processes.python_compat import begin_exit_handlers_anew, run_exit_handlers
from ranks.heavy_imports import heavy_imports
from rundir.config import LaunchConfig, RunConfig
from rundir.config_file import read_config
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import Loading, read_prepared

_LONGEST_BACKOFF_S = 60.0
_MOST_DOUBLINGS = 20


def main_of_fork() -> None:
    """Bring this rank up; called by torch's agent in a fork of the zygote."""
    parent = zygote.current
    assert parent is not None, "a warm rank is a fork of the zygote"
    die_with_parent(parent.pid)
    # A session of its own, as torchrun's workers have: Linux divides processor time among sessions
    # first (autogroups), so all ranks in one session would get the share of a single program.
    os.setsid()
    begin_exit_handlers_anew()
    # A fork of a forkserver would start a forkserver for every worker; a cold rank would not.
    multiprocessing.set_start_method(None, force=True)
    bring_up(_inherit)
    run_exit_handlers()


def _inherit() -> Any:
    """Return the zygote's model, or None if it built none.

    Raises RuntimeError when the zygote must not be forked: if multiprocessing started it again
    after the first one had died, the agent has not inspected it.
    """
    parent = zygote.current
    assert parent is not None
    if parent.unfit is not None:
        raise RuntimeError(f"the zygote must not be forked: {parent.unfit}")
    gc.enable()
    set_variables(parent.variables)
    from train import warm

    warm.after_fork()
    return parent.model


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of this rank among the others, from torchrun's variables."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int
    attempt: int

    @property
    def gate_attempt(self) -> str:
        """The queue of this rank: the ranks of its attempt that were started the same way."""
        return f"{self.attempt}-{zygote.kind_of_start()}"

    @classmethod
    def from_environment(cls) -> RankPlace:
        """Read RANK, LOCAL_RANK and so on, and TORCHELASTIC_RESTART_COUNT."""
        return cls(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
            node=int(os.environ["GROUP_RANK"]),
            attempt=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        )


def main() -> None:
    """Bring up a rank that is a process of its own, as torchrun starts it."""
    die_with_parent(int(os.environ.get("AIRLOCK_AGENT_PID", os.getppid())))
    sys.exit(bring_up(lambda: None))


def bring_up(inherit: Callable[[], Any]) -> int:
    """Bring this rank up and train; return the exit code of the process.

    A failure is reported and ends the process with 1. `inherit` returns the model that this process
    was forked with, or None when it has to load one.
    """
    run = RunDir(Path(os.environ["AIRLOCK_RUN_DIR"]))
    place = RankPlace.from_environment()
    write_output_to(run.rank_log(place.rank, place.attempt), run.stacks(f"rank{place.rank}"))
    events = EventWriter(
        run.event_file(f"rank{place.rank}"),
        rank=place.rank,
        node=place.node,
        attempt=place.attempt,
    )
    try:
        return _come_up(run, place, Reporter(events, f"Rank {place.rank}"), inherit)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the launcher has to hear of it
        text = tell_failure(events, error)
        sys.stdout.flush()
        sys.stderr.write(text)
        sys.stderr.flush()
        # Not sys.exit: destructors of a broken process group can wait for ranks that never come.
        os._exit(1)


def _come_up(run: RunDir, place: RankPlace, report: Reporter, inherit: Callable[[], Any]) -> int:
    config = read_config(run.config)
    report.line(f"INIT: rank={place.rank}/{place.world_size} local_rank={place.local_rank}")
    die_before_others()
    report.events.emit("mark", "limits", **apply_limits(config.limits))
    report.bound(bind_rank(os.environ, place.local_rank))
    report.memory("START")
    inherited = inherit()
    _back_off(config.launch, place.attempt, report)
    if config.script is not None:
        from launch.start.rank.script import run_script

        return run_script(config, run, place, report)
    _train(config, run, place, report, inherited)
    return 0


def _train(
    config: RunConfig, run: RunDir, place: RankPlace, report: Reporter, inherited: Any
) -> None:
    events, loading = report.events, read_prepared(run).loading
    visitor = Visitor(
        run_id=run.run_id,
        attempt=place.gate_attempt,
        who=report.who.lower(),
        turn=place.local_rank,
        kind=_kind(loading, place),
        known_as=loading.known_as,
    )
    admit = config.launch.admit
    if admit == "auto" and inherited is not None:  # who has a model needs no memory
        admit = "open"
    timeout_s = config.launch.gate_timeout_s
    with through_gate(report, visitor, admit=admit, timeout_s=timeout_s) as gate:
        gate.phase("importing")
        with events.span("import"), heavy_imports():
            from train import worker
        report.memory("POST-IMPORT")
        gate.phase("loading")
        with events.span("model.load"):
            if inherited is None and place.local_rank == 0:
                _read_for_all(loading, place)
            model = worker.load(config, run, place.local_rank, inherited)
        report.memory("POST-MODEL")
    if config.scoring is not None:
        from train.score import score

        score(config, run, model, events)
        return
    worker.train(config, run, model, events, is_shared=inherited is not None)


def _read_for_all(loading: Loading, place: RankPlace) -> None:
    """Read the weights ahead into pages on all ranks' NUMA nodes: they find them in the page cache.

    Only while it reads: what CUDA allocates in this process belongs on the node of its own GPU.
    """
    from train.model.loading import read_ahead

    with pages_spread(os.environ, place.local_rank) as is_spread:
        read_ahead(loading.read_ahead if is_spread else ())


def _kind(loading: Loading, place: RankPlace) -> str:
    """Return the kind of this rank at the gate; ranks of a kind take about the same memory there.

    Ranks that receive their weights take less than the one that loads them.
    """
    receives = loading.load == "broadcast" and place.rank != 0
    return "receiver" if receives else zygote.kind_of_start()


def _back_off(config: LaunchConfig, attempt: int, report: Reporter) -> None:
    """Wait before the second and every later restart: what failed twice may need time."""
    if attempt < 2:  # noqa: PLR2004 - attempt 1 is the first restart, which comes at once
        return
    doubled = 2 ** min(attempt - 2, _MOST_DOUBLINGS)
    wait_s = min(config.restart_backoff_s * doubled, _LONGEST_BACKOFF_S)
    # launch.max_restarts, and those that the agent has added.
    limit = os.environ["TORCHELASTIC_MAX_RESTARTS"]
    report.line(f"RESTART: attempt {attempt} of {limit} starts in {wait_s:g} s")
    time.sleep(wait_s)


if __name__ == "__main__":
    main()
