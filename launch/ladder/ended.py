"""How a child has ended, and the last that it wrote."""

from __future__ import annotations

import signal

_MAX_LINES = 12
_HINTS = {signal.SIGKILL: " (out of memory? see `dmesg`)", signal.SIGILL: " (wrong CPU type?)"}


def how_it_ended(code: int) -> str:
    """A return code in words that have the process for their object: killed the process: …"""
    if code >= 0:
        return f"ended the process with exit code {code}"
    number = signal.Signals(-code)
    return f"killed the process: {number.name}{_HINTS.get(number, '')}"


def last_words(log: str) -> list[str]:
    """The stacks that faulthandler wrote, from the top; without any, the last lines."""
    lines = [line for line in log.strip().splitlines() if "<frozen " not in line]
    for index, line in enumerate(lines):
        if line.startswith(("Timeout (", "Fatal Python error", "Current thread")):
            return lines[index : index + _MAX_LINES]
    return lines[-_MAX_LINES:]


def quoted(lines: list[str]) -> str:
    """Lines of someone else's, below a text of ours."""
    return "".join(f"\n      | {line}" for line in lines)
