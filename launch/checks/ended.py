"""The end of a child process in words, and its last output."""

from __future__ import annotations

import signal

_MAX_LINES = 12
_HINTS = {signal.SIGKILL: " (out of memory? see `dmesg`)", signal.SIGILL: " (wrong CPU type?)"}


def how_it_ended(code: int) -> str:
    """Return a verb phrase for an exit code, such as `killed the process: SIGKILL`."""
    if code >= 0:
        return f"ended the process with exit code {code}"
    number = signal.Signals(-code)
    return f"killed the process: {number.name}{_HINTS.get(number, '')}"


def last_words(log: str) -> list[str]:
    """Return the stacks that faulthandler wrote, from the top; without any, the last lines."""
    lines = [line for line in log.strip().splitlines() if "<frozen " not in line]
    for index, line in enumerate(lines):
        if line.startswith(("Timeout (", "Fatal Python error", "Current thread")):
            return lines[index : index + _MAX_LINES]
    return lines[-_MAX_LINES:]


def quoted(lines: list[str]) -> str:
    """Return lines of another program's output, indented to go below a text of ours."""
    return "".join(f"\n      | {line}" for line in lines)
