"""What the ranks of a live run are doing this moment: their own stacks, which SIGUSR2 asks for."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnostics.doctor.tracebacks import is_own

_PATIENCE_S = 1.5
_QUIET_S = 0.2  # after which a dump that has begun is taken for whole
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):", re.M)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<where>.+)$', re.M)
# Where a rank is that waits for others: in a collective, in backward, or for its GPU.
_WAITS = re.compile(r"torch/(distributed/|autograd/graph\.py|nn/parallel/distributed\.py)")
_NUM_INNERMOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The main thread of a rank: `text` is its innermost own call, in `line` of its log."""

    log: Path
    line: int
    text: str
    where: str
    waits: bool  # for other ranks, as far as can be told


def ask(logs: Mapping[int, Path], pids: Mapping[int, int]) -> dict[int, Stack]:
    """The stacks of those ranks that can be asked, after at most two seconds."""
    sizes: dict[int, int] = {}
    for rank, pid in pids.items():
        with contextlib.suppress(OSError):
            if answers(pid):
                sizes[rank] = logs[rank].stat().st_size
                os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + _PATIENCE_S
    before: dict[int, int] = {}
    while time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        now = {rank: logs[rank].stat().st_size for rank in sizes}
        if now == before and all(now[rank] > sizes[rank] for rank in sizes):
            break
        before = now
    found = {rank: _read(logs[rank], size) for rank, size in sizes.items()}
    return {rank: stack for rank, stack in found.items() if stack is not None}


def answers(pid: int) -> bool:
    """Whether the process has a handler for SIGUSR2: one that has none would end by it."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False


def _read(log: Path, offset: int) -> Stack | None:
    """The stack of the thread that took the signal, as a rule the main one, from the log's end."""
    data = log.read_bytes()
    text = data[offset:].decode(errors="replace")
    threads = list(_THREAD.finditer(text))
    if not threads:
        return None
    current = next((one for one in threads if one[1] == "Current thread"), threads[-1])
    ends = [one.start() for one in threads if one.start() > current.start()]
    frames = list(_FRAME.finditer(text, current.end(), ends[0] if ends else len(text)))
    if not frames:
        return None
    own = next((frame for frame in frames if is_own(frame["file"])), frames[0])
    return Stack(
        log=log,
        line=data[:offset].count(b"\n") + text.count("\n", 0, own.start()) + 1,
        text=own[0].strip(),
        where=f"{own['file']}:{own['line']} in {own['where']}",
        waits=any(_WAITS.search(frame["file"]) for frame in frames[:_NUM_INNERMOST]),
    )
