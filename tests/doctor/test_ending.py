"""A wait is a verdict only where the log ends with it, and a cause is shown with its proof."""

from __future__ import annotations

from pathlib import Path

from doctor.logs.diagnosis import diagnose

REFUSED = (
    "[W1121 10:00:01.101 socket.cpp:764] [c10d] The client socket has failed to connect to "
    "[node-0]:29500 (errno: 111 - Connection refused)."
)
UNRESOLVED = (
    "[W1121 10:00:03.101 socket.cpp:697] [c10d] The IPv6 network addresses of (node-0, 29500) "
    "cannot be retrieved (gai error: -2 - Name or service not known)."
)
TIMED_OUT = (
    "[rank{rank}]:[E1121 10:20:57.66 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=8241, OpType={name}, NumelIn={size}, "
    "NumelOut={size}, Timeout(ms)=600000) ran for 600017 milliseconds before timing out."
)


def _diagnosed(tmp_path: Path, *lines: str) -> str:
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return diagnose([str(log)]).cause


def test_a_log_that_ends_with_refused_connections_waits_for_the_store(tmp_path: Path) -> None:
    assert _diagnosed(tmp_path, "loading", REFUSED, REFUSED) == "rendezvous-unreachable"


def test_a_stack_below_the_line_is_a_part_of_it(tmp_path: Path) -> None:
    frames = [f"frame #{number}: c10d::connect (0x7f)" for number in range(20)]
    assert _diagnosed(tmp_path, REFUSED, *frames) == "rendezvous-unreachable"


def test_a_name_that_is_not_resolved_comes_before_the_store_that_is_not_reached(
    tmp_path: Path,
) -> None:
    assert _diagnosed(tmp_path, REFUSED, UNRESOLVED) == "hostname-not-resolved"


def test_neither_counts_once_the_log_goes_on(tmp_path: Path) -> None:
    later = [f"loading shard {number} of 4" for number in range(4)]
    assert _diagnosed(tmp_path, REFUSED, UNRESOLVED, *later) == "unknown"


def test_the_proof_of_an_out_of_memory_kill_stands_beside_the_workers_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "[rank2]: RuntimeError: DataLoader worker (pid 41820) is killed by signal: Killed.\n"
        "Out of memory: Killed process 41820 (python3) total-vm:98312884kB\n",
        encoding="utf-8",
    )
    verdict = diagnose([str(log)])
    assert (verdict.cause, verdict.rank) == ("host-oom-killed", 2)
    assert [one.line for one in verdict.evidence] == [1, 2]


def test_ranks_that_timed_out_in_different_collectives_are_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        TIMED_OUT.format(rank=1, name="ALLREDUCE", size=7087872)
        + "\n"
        + TIMED_OUT.format(rank=0, name="BROADCAST", size=1)
        + "\n",
        encoding="utf-8",
    )
    why = diagnose([str(log)]).why
    assert "rank 0 in BROADCAST of 1 numbers; rank 1 in ALLREDUCE of 7087872 numbers" in why
