"""A rank's current call, from the stacks of its threads as written by faulthandler."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from doctor.logs.tracebacks import is_own, show_code
from rundir.paths import shown

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):", re.M)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<where>.+)$', re.M)
# The code that a rank is in while it waits for others: in a collective, in backward, for its GPU,
# or for all ranks to have loaded (older versions had that file elsewhere).
_WAITS = re.compile(
    r"torch/(distributed/|autograd/graph\.py|nn/parallel/distributed\.py)|/train/ranks\.py|/(train/rank|ranks)/group\.py"
)
_NUM_INNERMOST = 4
# By the folders of this version, and of the one before it, whose run folders are read too.
_RUNS_SCRIPT = (
    "/launch/start/rank/script.py",
    "/launch/rank/script.py",
)  # the script's call is below
_WATCHDOG = ("/ranks/watchdog.py", "/train/rank/watchdog.py")
_AROUND = ("wrapper", "_wrapper", "inner")  # of decorators
_CODE_CHARACTERS = 90
_COLLECTIVES, _OF_TENSORS = "/torch/distributed/", "/torch/autograd/graph.py"
_TENSORS_WAIT = ("wait", "item", "tolist", "cpu", "synchronize", "backward", "step", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a stack: the line `line` of `file`, in the function `where`."""

    file: str
    line: int
    where: str

    @property
    def place(self) -> str:
        """The place as file:line in function."""
        return f"{shown(Path(self.file))}:{self.line} in {self.where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A thread, usually a rank's main one: `text` is its innermost own call, on `line` of `log`."""

    log: Path
    line: int
    text: str
    own: Call  # the innermost call of the user's own code
    above: tuple[Call, ...]  # the calls of libraries that it has made, the innermost first
    others: tuple[Stack, ...] = ()  # the other threads that are in the user's own code
    waits_in_driver: bool = False  # for a collective of NCCL's, in native code

    @property
    def where(self) -> str:
        """The user's own line, as file:line in function."""
        return self.own.place

    @property
    def show(self) -> str:
        """A command that shows the code."""
        return show_code(self.own.file, self.own.line)

    @property
    def code(self) -> str:
        """The source of the user's line; "" if it cannot be read."""
        text = linecache.getline(self.own.file, self.own.line).strip()
        return text if len(text) <= _CODE_CHARACTERS else f"{text[:_CODE_CHARACTERS]}…"

    @property
    def calls(self) -> str:
        """The library's function that the user's line has called, as `all_reduce`; "" if none."""
        names = [call.where for call in reversed(self.above) if call.where not in _AROUND]
        return names[0].rpartition(".")[2] if names else ""

    @property
    def waits(self) -> bool:
        """True if it waits for other ranks, as far as can be told."""
        return self.waits_in_driver or any(
            _WAITS.search(call.file) for call in (*self.above, self.own)[:_NUM_INNERMOST]
        )

    @property
    def is_collective(self) -> bool:
        """True if the user's line has called a function of torch.distributed itself."""
        return bool(self.above) and "torch/distributed/" in self.above[-1].file

    def is_in(self, *parts: str) -> bool:
        """Return whether one of the library's calls is in a file whose path has one of `parts`."""
        return any(part in call.file for call in self.above for part in parts)


def read_stack(log: Path) -> Stack | None:
    """Return the stack of the thread that took the signal, usually the main one, from `log`."""
    try:
        text = log.read_bytes().decode(errors="replace")
    except OSError:
        return None
    threads = list(_THREAD.finditer(text))
    if not threads:
        return None
    current = next((thread for thread in threads if thread[1] == "Current thread"), threads[-1])
    ends = [*(thread.start() for thread in threads[1:]), len(text)]
    stacks: dict[int, Stack] = {}
    for begin, end in zip(threads, ends, strict=True):
        if stack := _stack(log, text, begin.end(), end):
            stacks[begin.start()] = stack
    main = stacks.pop(current.start(), None)
    if main is None:
        return None
    others = tuple(stack for stack in stacks.values() if stack.text and is_own(stack.own.file))
    return replace(main, others=others)


def stack_by_watchdog(log: Path, line: int, row: Mapping[str, Any]) -> Stack | None:
    """Return what the watchdog of a rank has seen of its main thread, from its row of hang.json.

    That is the user's line and what it waits in, on `line` of `log`. None if the row has none, or
    the rank could not have written its stacks: then that they are missing says more.
    """
    at, calls = row.get("at") or {}, row.get("calls") or ""
    if not at.get("file") or not row.get("can_answer") or row.get("left"):
        return None
    own = Call(file=at["file"], line=at["line"], where=at["function"])
    above = Call(file=_OF_TENSORS if calls in _TENSORS_WAIT else _COLLECTIVES, line=0, where=calls)
    text = f'File "{own.file}", line {own.line} in {own.where}'
    return Stack(log=log, line=line, text=text, own=own, above=(above,) if calls else ())


def _stack(log: Path, text: str, begin: int, end: int) -> Stack | None:
    """Return the thread whose calls stand in `text` from `begin` to `end`."""
    frames = list(_FRAME.finditer(text, begin, end))
    if not frames or any(frame["file"].endswith(_WATCHDOG) for frame in frames):
        return None
    files = [frame["file"] for frame in frames]
    below = next((n for n, file in enumerate(files) if file.endswith(_RUNS_SCRIPT)), 0)
    script = files[below - 1] if below else ""  # it may lie in a library's folder
    number = next((n for n, file in enumerate(files) if is_own(file) or file == script), 0)
    calls = [_call(frame) for frame in frames[: number + 1]]
    return Stack(
        log=log,
        line=text.count("\n", 0, frames[number].start()) + 1,
        text=frames[number][0].strip(),
        own=calls[-1],
        above=tuple(calls[:-1]),
    )


def _call(frame: re.Match[str]) -> Call:
    return Call(file=frame["file"], line=int(frame["line"]), where=frame["where"])
