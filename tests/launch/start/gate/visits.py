"""The messages of ranks at the gate, and this process as one of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from launch.start.gate.gate import Admit, Gate, Visitor
from launch.start.gate.ledger import Ledger, LedgerEntry
from launch.start.gate.memory_profile import MemoryProfile, ProfileStore

# A rank that passes the gate: it writes when it got in and when it left, stays inside for a while
# and takes some memory there; with `fork` it has a child that outlives it.
RANK = """
import os, sys, time
from pathlib import Path
from launch.start.gate.gate import Gate, Visitor
folder, run, rank, admit, stay_s, mib, fork, log = sys.argv[1:]
def say(text):
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{text} {run} {rank}\\n".encode())
def on_wait(reminder):
    say("waits" if not reminder else "reminded " + reminder.replace(" ", "_"))
visitor = Visitor(run_id=run, attempt="0", who=f"rank {rank}", turn=int(rank))
gate = Gate(Path(folder), visitor, admit=admit, timeout_s=60, on_wait=on_wait)
say("here")
with gate.admitted():
    say("in")
    if fork == "True" and os.fork() == 0:
        say(f"child {os.getpid()}")
        time.sleep(1000)
    taken = b"x" * (int(mib) << 20)
    until = time.monotonic() + float(stay_s)
    while time.monotonic() < until and not Path(f"{log}.go{rank}").exists():
        time.sleep(0.01)
    del taken
    say("out")
gate.wait_until_all_passed(int(rank) + 1)
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


def said(log: Path, word: str) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if line.startswith(word + " ")]


def visit(
    folder: Path,
    *,
    rank: int | None = 0,
    admit: Admit = "serial",
    timeout_s: float = 1.0,
    on_wait: Callable[[str], None] = lambda _: None,
    run: str = "here",
    known_as: str = "",
) -> Gate:
    """Return a gate with this process as its visitor."""
    who = "zygote" if rank is None else f"rank {rank}"
    visitor = Visitor(run_id=run, attempt="0", who=who, turn=rank, known_as=known_as)
    return Gate(folder, visitor, admit=admit, timeout_s=timeout_s, on_wait=on_wait)


def inside(folder: Path) -> list[LedgerEntry]:
    return Ledger(folder / "ledger").inside()


def notes(folder: Path, run: str) -> ProfileStore:
    return ProfileStore(folder / "runs" / run / "rank.growth")


def foretell(folder: Path, run: str, peak_bytes: int, cores: float = 0.0) -> None:
    """Pretend that a rank of that run has been measured."""
    notes(folder, run).write(0, MemoryProfile(peak_bytes=peak_bytes, cores=cores))


def most_inside(log: Path) -> int:
    """Return the largest number of ranks inside at once."""
    num = most = 0
    for line in log.read_text().splitlines():
        num += line.startswith("in ") - line.startswith("out ")
        most = max(most, num)
    return most
