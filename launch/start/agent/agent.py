"""The agent process: torch's own elastic agent, driven by torchrun's own arguments.

`python -P -m launch.start.agent.agent RUN_DIR TORCHRUN_ARGS…` does what `torchrun TORCHRUN_ARGS…`
does, but forks the ranks from a zygote (warm start) and records which rank failed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from signal import SIGTERM
from typing import Any

from launch.start.agent import elastic_compat as torch_compat
from launch.start.agent.restarts import Restarts
from launch.start.agent.warm_start import WarmStart, ZygoteLostError, signal_name
from launch.start.rank.rank import main_of_fork
from rundir.config_file import read_config
from rundir.errors import ExitCode
from rundir.events import EventWriter
from rundir.paths import RunDir

_ZYGOTE_LOST = 255  # multiprocessing's exit code for a fork whose forkserver is gone


def main() -> None:
    """Start the ranks and monitor them; exit with 0 if all of them exited with 0, else with 10."""
    run, torchrun_args = RunDir(Path(sys.argv[1])), sys.argv[2:]
    config = read_config(run.config)
    launch = config.launch
    events = EventWriter(run.event_file("agent"))
    # Only this process knows its own pid; the zygote and the ranks inherit its environment.
    os.environ["AIRLOCK_AGENT_PID"] = str(os.getpid())
    torch_compat.leave_no_main()
    warm = None
    if launch.start != "cold":
        preload = config.script.preload if config.script else ()
        shares_torch = "-torch" not in preload
        warm = WarmStart(run, events, launch.zygote_timeout_s, shares_torch=shares_torch)

    # Only now: while the zygote imports what else it needs, this process does so on another core.
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api
    from torch.distributed.run import config_from_args, get_args_parser

    torch_compat.format_plainly()
    torch_compat.hasten_rendezvous()
    elastic, command, args = config_from_args(get_args_parser().parse_args(torchrun_args))
    # launch_agent hard-codes the agent class; the rest of its set-up is wanted.
    api.LocalElasticAgent = _airlock_agent(  # type: ignore[attr-defined]
        LocalElasticAgent, run, events, launch.start, warm
    )
    try:
        with events.span("spawn", num_ranks=elastic.nproc_per_node):
            api.elastic_launch(elastic, command)(*args)
    except (ChildFailedError, ZygoteLostError):  # the run folder records both by now
        sys.exit(int(ExitCode.RANK_FAILED))


def _airlock_agent(
    base: Any, run: RunDir, events: EventWriter, asked: str, warm: WarmStart | None
) -> Any:
    """Return a subclass of torch's agent that starts ranks warm if possible, and records exits."""

    exits, restarts = _Exits(events, warm), Restarts(run, events)

    class AirlockAgent(base):
        def __init__(self, spec: Any, *args: Any, **options: Any) -> None:
            super().__init__(spec, *args, **options)
            self._cold: Any = (spec.entrypoint, spec.args, self._start_method)

        def _start_workers(self, worker_group: Any) -> Any:
            """Start the ranks after the rendezvous, which gives the zygote that time too."""
            exits.begin_attempt()
            events.begin_attempt(self._attempt())
            events.emit("mark", "attempt")
            reason = warm.why_not() if warm else None
            if warm and reason is None:
                events.emit("mark", "start", start=asked, reason=None)
                try:
                    return self._start(worker_group, main_of_fork, (), "forkserver")
                except (EOFError, OSError) as error:  # the zygote ended or could not fork
                    reason = warm.give_up(f"no rank could be forked: {error!r}")
            events.emit("mark", "start", start="cold", reason=reason)
            return self._start(worker_group, *self._cold)

        def _start(self, worker_group: Any, entry: Any, args: Any, method: str) -> Any:
            worker_group.spec.entrypoint, worker_group.spec.args = entry, args
            self._start_method = method
            return super()._start_workers(worker_group)

        def _monitor_workers(self, worker_group: Any) -> Any:
            # torch returns from a failure only after the other ranks have ended as well.
            failed = exits.tell(_exitcodes(worker_group, self._pcontext))
            if failed:
                local = self._pcontext.pids()
                pids = {rank.global_rank: local[rank.local_rank] for rank in worker_group.workers}
                _look_at_others(run, self._attempt(), failed, pids)
            result = super()._monitor_workers(worker_group)
            if result.is_failed():
                exitcodes = _exitcodes(worker_group, self._pcontext)
                failures = {rank: failure.exitcode for rank, failure in result.failures.items()}
                exits.tell(failures | exitcodes)
                left, num_added = restarts.after(self._attempt(), self._remaining_restarts)
                self._remaining_restarts: int = left + num_added
                worker_group.spec.max_restarts += num_added
            return result

        def _attempt(self) -> int:
            return self._worker_group.spec.max_restarts - self._remaining_restarts

    return AirlockAgent


class _Exits:
    """The record of how ranks have exited; each exit is reported once."""

    def __init__(self, events: EventWriter, warm: WarmStart | None) -> None:
        self._events, self._warm = events, warm
        self._told: dict[int, int] = {}  # exit code by rank

    def begin_attempt(self) -> None:
        """Start a new attempt: from here on the ranks are new processes."""
        self._told = {}

    def tell(self, exitcodes: dict[int, int]) -> list[int]:
        """Report the ranks that have newly failed, and return them."""
        new = exitcodes.items() - self._told.items()
        self._told |= exitcodes
        # Deaths by SIGTERM come first: one seen in a later call was caused by this process.
        failed = sorted((pair for pair in new if pair[1]), key=lambda pair: pair[1] != -SIGTERM)
        if self._warm and failed:  # ranks die with the zygote, which is then the cause
            self._warm.report_exit(is_likely=any(code == _ZYGOTE_LOST for _, code in failed))
        for rank, exitcode in failed:
            self._events.emit(
                "error",
                "rank.exit",
                failed_rank=rank,
                exitcode=exitcode,
                signal=signal_name(exitcode),
            )
        return [rank for rank, _ in failed]


def _look_at_others(run: RunDir, attempt: int, failed: list[int], pids: dict[int, int]) -> None:
    # No start should wait for this import.
    from launch.start.agent.timeout_evidence import look_at_others

    with contextlib.suppress(Exception):  # whatever goes wrong, the failure itself matters more
        look_at_others(run, attempt, failed, pids)


def _exitcodes(worker_group: Any, context: Any) -> dict[int, int]:
    """Return the exit code of every rank that has ended, by global rank.

    torch itself reports only the one that it happened to look at first.
    """
    ranks = (worker.global_rank for worker in worker_group.workers)
    codes = zip(ranks, torch_compat.exitcodes_of(context), strict=False)
    return {rank: code for rank, code in codes if code is not None}


if __name__ == "__main__":
    main()
