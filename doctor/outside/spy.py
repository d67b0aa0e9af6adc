"""Python stacks of another process, by py-spy, which reads its memory and does not stop it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from doctor.logs.tracebacks import is_own
from doctor.runs.rank_stacks import Call, Stack
from machine.typed import pip_install

_TIMEOUT_S = 10.0
_TRIES = 3  # memory that changes while it is read may not be understood
INSTALL = pip_install("py-spy>=0.4")
Calls = tuple[Call, ...]  # of one thread, the innermost first


@dataclass(frozen=True, slots=True)
class Dump:
    """What py-spy says of a process: its threads' calls, the main one's first, or why none."""

    threads: tuple[Calls, ...] = ()
    why_not: str = ""

    @property
    def main(self) -> Calls:
        """The calls of the main thread."""
        return self.threads[0] if self.threads else ()


def program() -> str | None:
    """Return the path of py-spy: of this Python environment, or else of PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))


def dump(pid: int) -> Dump:
    """Return the stacks of a process; never raises."""
    py_spy = program()
    if py_spy is None:
        return Dump(why_not="py-spy is not installed")
    why_not = ""
    for _ in range(_TRIES):
        try:
            done = subprocess.run(
                [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Dump(why_not=f"py-spy does not answer: {error}")
        if done.returncode == 0 and (threads := parse(done.stdout, pid)):
            return Dump(threads=threads)
        why_not = _error(done.stderr)
    return Dump(why_not=why_not)


def _error(text: str) -> str:
    """Return the innermost reason in what py-spy has written, in a line."""
    above = text.partition("Stack backtrace")[0]
    lines = [line.strip() for line in above.splitlines() if line.strip()]
    if any("permission denied" in line.lower() for line in lines):
        return "the kernel does not allow reading its memory"
    return lines[-1].removeprefix("Error: ") if lines else "py-spy shows no thread of it"


def parse(text: str, pid: int) -> tuple[Calls, ...]:
    """Return the calls of each thread in the output of `py-spy dump --json`, the main one first."""
    try:
        threads: list[dict[str, Any]] = json.loads(text)
        # The id of the main thread, in the kernel, is the process's.
        threads.sort(key=lambda thread: int(thread["os_thread_id"] or 0) != pid)
        return tuple(tuple(map(_call, thread["frames"])) for thread in threads if thread["frames"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _call(read: dict[str, Any]) -> Call:
    return Call(file=read["filename"], line=read["line"], where=read["name"])


def as_stack(threads: Sequence[Calls], script: str = "") -> Stack | None:
    """Return a process's stack in the shape of the doctor's others; None if nothing is known.

    `script` is what the process runs: the user's own code, even below site-packages.
    """
    if not threads:
        return None
    main, *others = (_stack(calls, script) for calls in threads)
    return replace(main, others=tuple(thread for thread in others if is_own(thread.own.file)))


def own_call(calls: Sequence[Call], script: str = "") -> Call | None:
    """Return the innermost call in the user's own code."""
    number = _number_of_own(calls, script)
    return None if number is None else calls[number]


def _stack(calls: Sequence[Call], script: str) -> Stack:
    number = _number_of_own(calls, script) or 0
    own = calls[number]
    return Stack(
        log=Path(own.file),
        line=own.line,
        text=f'File "{own.file}", line {own.line} in {own.where}',
        own=own,
        above=tuple(calls[:number]),
    )


def _number_of_own(calls: Sequence[Call], script: str) -> int | None:
    for number, call in enumerate(calls):
        if is_own(call.file) or (script and os.path.realpath(call.file) == script):
            return number
    return None
