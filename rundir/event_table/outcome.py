"""Rows about lines of logs, and about what ended ranks."""

from __future__ import annotations

from rundir.event_table.spec import EventSpec

_AVAILABLE = {
    "available_bytes": "what could still be had",
    "limit_bytes": "of how much in all",
    "where": "the host, or the cgroup with that limit",
}

EVENTS: tuple[EventSpec, ...] = (
    EventSpec(
        name="line",
        kind="log",
        writer="any",
        meaning="a line for people, as it was printed",
        fields={"text": "the line"},
    ),
    EventSpec(
        name="rank.exception",
        kind="error",
        writer="rank",
        meaning="a rank ends by an exception",
        fields={
            "exception": "its class",
            "message": "its text",
            "traceback": "as Python prints it",
            "exit_code": "what the run would exit with, were this the root cause",
        },
    ),
    EventSpec(
        name="rank.gone",
        kind="error",
        writer="launch",
        meaning="a rank's process is gone although the training is not over",
        fields={"failed_rank": "the rank"},
    ),
    EventSpec(
        name="rank.exit",
        kind="error",
        writer="agent, rank",
        meaning="a rank ended, and not with 0; a script's own exit code comes from the rank",
        fields={
            "failed_rank": "the rank",
            "exitcode": "its exit code, negative for a signal",
            "signal": "the signal's name, or null",
        },
        optional=frozenset({"signal"}),
    ),
    EventSpec(
        name="hang",
        kind="error",
        writer="launch",
        meaning="no rank has made progress for long; what was found lies in incidents/",
        fields={
            "failed_rank": "the rank that the others wait for; null where that cannot be told",
            "cause": "as the doctor names it",
            "title": "what that rank does, or the run",
            "still_s": "seconds without progress, while the launcher itself ran",
            "limit_s": "how many were allowed",
            "ends": "whether the launcher ends the ranks for it",
        },
        optional=frozenset({"failed_rank"}),
    ),
    EventSpec(
        name="hang.over",
        kind="mark",
        writer="launch",
        meaning="ranks go on after a hang was reported: that report is taken back",
        fields={},
    ),
    EventSpec(
        name="stall",
        kind="mark",
        writer="launch",
        meaning="ranks wait for others that do not move; if it lasts, the run hangs",
        fields={
            "waiting": "who waits for whom",
            "waited_s": "seconds that it has lasted",
            "limit_s": "seconds after which this is said",
        },
    ),
    EventSpec(
        name="memory.guard",
        kind="error",
        writer="launch",
        meaning="a process was ended because memory ran short",
        fields={
            "failed_rank": "the rank; null for a process that is none",
            "who": "the same in words",
            "phase": "what it did: a rank's phase, or preparing",
            "held_bytes": "its anonymous memory, with swap and its children's",
            "run_held_bytes": "that of all processes of the run",
            **_AVAILABLE,
        },
        optional=frozenset({"failed_rank"}),
    ),
    EventSpec(
        name="memory.oom_kill",
        kind="error",
        writer="launch",
        meaning="the kernel's OOM killer has killed, and a process of the run died of SIGKILL",
        fields={"num_kills": "by how much its count has risen", **_AVAILABLE},
    ),
    EventSpec(
        name="zygote.exit",
        kind="error",
        writer="agent",
        meaning="the zygote ended while it was needed",
        fields={
            "exitcode": "its exit code, negative for a signal",
            "signal": "the signal's name, or null",
        },
        optional=frozenset({"signal"}),
    ),
)
