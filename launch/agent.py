"""The torchrun child: torch's own elastic agent, told what to start by torchrun's own arguments.

`python -P -m launch.agent RUN_DIR TORCHRUN_ARGS…` does what `torchrun TORCHRUN_ARGS…` does, and
besides writes to the run folder which rank failed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir


def main() -> None:
    """Start the ranks and watch them; exits with 0 when all of them did, else 10."""
    run_dir, *torchrun_args = sys.argv[1:]
    events = EventWriter(RunDir(Path(run_dir)).event_file("agent"))

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, get_args_parser

    config, command, command_args = config_from_args(get_args_parser().parse_args(torchrun_args))
    # Only this process knows its pid, and elastic hands its own environment on to the ranks.
    os.environ["AIRLOCK_AGENT_PID"] = str(os.getpid())
    try:
        with events.span("spawn", num_ranks=config.nproc_per_node):
            elastic_launch(config, command)(*command_args)
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            events.emit(
                "error",
                "rank.exit",
                failed_rank=rank,
                exitcode=failure.exitcode,
                signal=_signal_name(failure.exitcode),
            )
        sys.exit(int(ExitCode.RANK_FAILED))


def _signal_name(exitcode: int) -> str | None:
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {-exitcode}"


if __name__ == "__main__":
    main()
