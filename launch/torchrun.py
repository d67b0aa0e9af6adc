"""The torchrun command that a run comes to: what the agent is told, and what people may type."""

from __future__ import annotations

import shlex

from launch.environment import RankEnvironment
from rundir.config import RunConfig
from rundir.paths import RunDir


def torchrun_args(run: RunDir, num_ranks: int, max_restarts: int) -> list[str]:
    """The arguments that torchrun takes to start `num_ranks` ranks of `run` on this node."""
    return [
        "--nnodes=1",
        f"--nproc-per-node={num_ranks}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",  # a free port; a fixed one could be in use
        f"--rdzv-id={run.run_id}",
        f"--max-restarts={max_restarts}",
        f"--log-dir={run.elastic}",  # else every run leaves a folder in /tmp
        "-m",
        "launch.rank",
    ]


def torchrun_line(args: list[str], environment: RankEnvironment) -> str:
    """The same as one line for a shell, environment included: a cold start of a prepared run."""
    unset = [word for leftover in environment.left_out for word in ("-u", leftover.name)]
    settings = [f"{variable.name}={variable.value}" for variable in environment.variables]
    return shlex.join(["env", *unset, *settings, "torchrun", *args])


def plain_torchrun_line(config: RunConfig) -> str:
    """The line that runs the script of `config` without Airlock."""
    assert config.script is not None
    restarts = config.launch.max_restarts
    options = ["--standalone", f"--nproc-per-node={config.launch.num_ranks}"]
    options += [f"--max-restarts={restarts}"] if restarts else []
    return shlex.join(["torchrun", *options, config.script.path, *config.script.args])
