"""The roles of a run's processes: which is rank 3, which is the agent."""

from __future__ import annotations

import psutil

from machine.processes.runs import RunProcesses, status_of
from rundir.events import EventTail
from rundir.paths import RunDir

# Programs of a run, by a word of their command.
_PROGRAMS = {
    "launch.start.agent.agent": "agent (starts the ranks)",
    "launch.track": "tracker (metrics)",
    "train.prepare": "prepares the data",
    "train.trace": "plans the memory",
    "multiprocessing.resource_tracker": "resource tracker (cleans up)",
}


def roles_of(processes: RunProcesses) -> dict[int, str]:
    """Return the role of each process of a run, by pid; one that is not known is left out.

    A rank that was forked has the command of its zygote: only what the run has recorded tells
    them apart. What a rank starts is its worker.
    """
    roles = _recorded(processes.run)
    if processes.launcher is not None:
        roles[processes.launcher.pid] = "launcher"
    for process in processes.processes:  # parents are older, and come first
        if process.pid not in roles and (role := _role(process, roles)):
            roles[process.pid] = role
    return roles


def _recorded(run: RunDir) -> dict[int, str]:
    """Return what the events of the zygote, and the status, say about pids."""
    roles = {
        int(event["pid"]): "zygote (what ranks are forked from)"
        for event in EventTail(run.event_file("zygote")).new_events()
    }
    rows = status_of(run).get("ranks", ())
    ranks = {row["pid"]: f"rank {row['rank']}, {row['phase']}" for row in rows}
    return roles | {pid: role for pid, role in ranks.items() if pid is not None}


def _role(process: psutil.Process, known: dict[int, str]) -> str:
    try:
        command, parent = " ".join(process.cmdline()), process.ppid()
    except psutil.Error:
        return ""
    for word, role in _PROGRAMS.items():
        if word in command:
            return role
    above = known.get(parent, "")
    return f"worker of {above.partition(',')[0]}" if above.startswith("rank ") else ""
