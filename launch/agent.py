"""The torchrun child: torch's own elastic agent, told what to start by torchrun's own arguments.

`python -P -m launch.agent RUN_DIR TORCHRUN_ARGS…` does what `torchrun TORCHRUN_ARGS…` does, but
forks the ranks from a zygote (warm start), and writes to the run folder which rank failed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from launch import torch_delays, warm_rank
from launch.warm import WarmStart, ZygoteLostError, signal_name
from rundir.config_file import read_config
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir

_ZYGOTE_LOST = 255  # what multiprocessing makes of a fork whose server is no longer there to ask


def main() -> None:
    """Start the ranks and watch them; exits with 0 when all of them did, else 10."""
    run, torchrun_args = RunDir(Path(sys.argv[1])), sys.argv[2:]
    launch = read_config(run.config).launch
    events = EventWriter(run.event_file("agent"))
    # Only this process knows its pid; zygote and ranks get its environment.
    os.environ["AIRLOCK_AGENT_PID"] = str(os.getpid())
    warm = WarmStart(run, events, launch.zygote_timeout_s) if launch.start != "cold" else None

    torch_delays.leave_no_main()
    # Not before: while the zygote imports torch on one core, this process does so on another.
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api
    from torch.distributed.run import config_from_args, get_args_parser

    torch_delays.format_plainly()
    torch_delays.hasten_rendezvous()
    config, command, args = config_from_args(get_args_parser().parse_args(torchrun_args))
    # launch_agent names its class itself; what it sets up besides is all wanted.
    api.LocalElasticAgent = _airlock_agent(LocalElasticAgent, events, launch.start, warm)  # type: ignore[attr-defined]
    try:
        with events.span("spawn", num_ranks=config.nproc_per_node):
            api.elastic_launch(config, command)(*args)
    except (ChildFailedError, ZygoteLostError):  # both are in the run folder by now
        sys.exit(int(ExitCode.RANK_FAILED))


def _airlock_agent(base: Any, events: EventWriter, asked: str, warm: WarmStart | None) -> Any:
    """torch's agent, which starts ranks warm if it can and writes down how they ended."""

    class AirlockAgent(base):
        def __init__(self, spec: Any, *args: Any, **options: Any) -> None:
            super().__init__(spec, *args, **options)
            self._cold: Any = (spec.entrypoint, spec.args, self._start_method)

        def _start_workers(self, worker_group: Any) -> Any:
            """Here, after the rendezvous, so that the zygote has had that time too."""
            events.begin_attempt(worker_group.spec.max_restarts - self._remaining_restarts)
            events.emit("mark", "attempt")
            reason = warm.why_not() if warm else None
            if warm and reason is None:
                events.emit("mark", "start", start=asked, reason=None)
                try:
                    return self._start(worker_group, warm_rank.main, (), "forkserver")
                except (EOFError, OSError) as error:  # it ended, or could not fork
                    reason = warm.give_up(f"no rank could be forked: {error!r}")
            events.emit("mark", "start", start="cold", reason=reason)
            return self._start(worker_group, *self._cold)

        def _start(self, worker_group: Any, entry: Any, args: Any, method: str) -> Any:
            worker_group.spec.entrypoint, worker_group.spec.args = entry, args
            self._start_method = method
            return super()._start_workers(worker_group)

        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if result.is_failed():
                exitcodes = _exitcodes(worker_group, self._pcontext, result)
                if warm:  # ranks die with the zygote: then that is the cause
                    warm.report_exit(is_likely=_ZYGOTE_LOST in exitcodes.values())
                for rank, exitcode in exitcodes.items():
                    events.emit(
                        "error", "rank.exit", failed_rank=rank,
                        exitcode=exitcode, signal=signal_name(exitcode),
                    )  # fmt: skip
            return result

    return AirlockAgent


def _exitcodes(worker_group: Any, context: Any, result: Any) -> dict[int, int]:
    """Exit code by global rank of every rank that did not end with 0.

    Of forked ranks torch reports the one that it happened to look at first; the others are known
    to the processes themselves.
    """
    found = {rank: failure.exitcode for rank, failure in result.failures.items()}
    forked = getattr(getattr(context, "_pc", None), "processes", ())
    for worker, process in zip(worker_group.workers, forked, strict=False):
        if process.exitcode:
            found[worker.global_rank] = process.exitcode
    return found


if __name__ == "__main__":
    main()
