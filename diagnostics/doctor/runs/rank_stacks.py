"""A rank's current call, from the stacks of its threads as written by faulthandler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from diagnostics.doctor.logs.tracebacks import is_own, show_code

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):", re.M)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<where>.+)$', re.M)
# The code that a rank is in while it waits for others: in a collective, in backward, for its GPU,
# or for all ranks to have loaded.
_WAITS = re.compile(
    r"torch/(distributed/|autograd/graph\.py|nn/parallel/distributed\.py)|/train/(ranks|rank/group)\.py"
)
_NUM_INNERMOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A rank's main thread: `text` is its innermost own call, on line `line` of the file `log`."""

    log: Path
    line: int
    text: str
    where: str
    show: str  # a command that shows the code
    waits: bool  # for other ranks, as far as can be told


def read_stack(log: Path, offset: int = 0) -> Stack | None:
    """Return the stack of the thread that took the signal, usually the main one, from `log`."""
    try:
        data = log.read_bytes()
    except OSError:
        return None
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
        show=show_code(own["file"], own["line"]),
        waits=any(_WAITS.search(frame["file"]) for frame in frames[:_NUM_INNERMOST]),
    )
