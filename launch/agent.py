"""The torchrun child: torch's own elastic agent, told what to start by torchrun's own arguments.

`python -P -m launch.agent RUN_DIR TORCHRUN_ARGS…` does what `torchrun TORCHRUN_ARGS…` does, but
forks the ranks from a zygote (warm start), and writes to the run folder which rank failed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from launch import warm_rank
from launch.warm import ZygoteLostError, ZygoteProcess, signal_name
from rundir.config_file import read_config
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir


def main() -> None:
    """Start the ranks and watch them; exits with 0 when all of them did, else 10."""
    run, torchrun_args = RunDir(Path(sys.argv[1])), sys.argv[2:]
    launch = read_config(run.config).launch
    events = EventWriter(run.event_file("agent"))
    # Only this process knows its pid; zygote and ranks get its environment.
    os.environ["AIRLOCK_AGENT_PID"] = str(os.getpid())
    zygote = ZygoteProcess(run, events) if launch.start == "warm" else None

    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api
    from torch.distributed.run import config_from_args, get_args_parser

    config, entry, entry_args = config_from_args(get_args_parser().parse_args(torchrun_args))
    try:
        reason = zygote.wait_until_ready(launch.zygote_timeout_s) if zygote else None
        if zygote and reason is None:
            config.start_method, entry, entry_args = "forkserver", warm_rank.main, []
        elif zygote:
            zygote.end()
            zygote = None
        events.emit("mark", "start", start="warm" if zygote else "cold", reason=reason)
        # launch_agent names its class itself; what it sets up besides is all wanted.
        api.LocalElasticAgent = _reporting(LocalElasticAgent, events, zygote)  # type: ignore[attr-defined]
        with events.span("spawn", num_ranks=config.nproc_per_node):
            api.elastic_launch(config, entry)(*entry_args)
    except (ChildFailedError, ZygoteLostError):  # both are in the run folder by now
        sys.exit(int(ExitCode.RANK_FAILED))


def _reporting(base: Any, events: EventWriter, zygote: ZygoteProcess | None) -> Any:
    """torch's agent class, which also writes down how each rank ended when one has failed."""

    class ReportingAgent(base):
        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if result.is_failed():
                if zygote:
                    zygote.report_exit()  # ranks die with it: then it is the cause
                attempt = worker_group.spec.max_restarts - self._remaining_restarts
                for rank, exitcode in _exitcodes(worker_group, self._pcontext, result).items():
                    events.emit(
                        "error", "rank.exit", failed_rank=rank, failed_attempt=attempt,
                        exitcode=exitcode, signal=signal_name(exitcode),
                    )  # fmt: skip
            return result

    return ReportingAgent


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
