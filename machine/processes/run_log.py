"""logs/run.log: what a run says on its console, as plain lines, so that `tail -f` works."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator

from rundir.masking import mask_of
from rundir.paths import RunDir

_LONGEST_LINE = 1 << 16  # characters after which a line that does not end is cut
# Colours and cursor movements (CSI), titles and links (OSC), and shorter sequences.
_OF_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_KEY_BEGINS = re.compile("-----BEGIN [A-Z ]*PRIVATE KEY-----")


class RunLog:
    """The log of one run. Several processes may append to it, each whole lines at once.

    A full disk must not end a run: lines that cannot be written are counted, and their number is
    written once there is room.
    """

    def __init__(self, run: RunDir) -> None:
        self._mask = mask_of(run)
        self._rest = ""  # of a line that has not ended
        self._num_lost = 0
        self._is_torn = self._is_in_key = False
        self._lock = threading.Lock()  # the memory guard speaks from a thread of its own
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd: int | None = os.open(run.run_log, flags, 0o644)
        except OSError:
            self._fd = None

    def write(self, text: str) -> None:
        """Append the lines that `text` completes; what is left waits for its end."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > _LONGEST_LINE:
                lines, self._rest = [*lines, self._rest], ""
            if lines:
                self._append([plain(line) for line in lines])

    def flush(self) -> None:
        """Do nothing: whole lines are written at once, others wait."""

    def _append(self, lines: list[str]) -> None:
        if self._fd is None:
            return
        text = self._mask.text("\n".join(self._without_keys(lines))) + "\n"
        lost = f"({self._num_lost} lines are lost: they could not be written)\n"
        before = ("\n" if self._is_torn else "") + (lost if self._num_lost else "")
        data = (before + text).encode(errors="replace")
        num_written = 0
        with contextlib.suppress(OSError):
            num_written = os.write(self._fd, data)
        if num_written < len(data):
            self._is_torn |= num_written > 0
            self._num_lost += len(lines)
        else:
            self._num_lost, self._is_torn = 0, False

    def _without_keys(self, lines: list[str]) -> Iterator[str]:
        """Yield the lines but those of private keys, which a mask sees in whole texts only."""
        for line in lines:
            was_in_key, begins = self._is_in_key, _KEY_BEGINS.search(line) is not None
            self._is_in_key = (was_in_key or begins) and "-----END" not in line
            if not was_in_key:
                yield line


def plain(line: str) -> str:
    """Return a line without colours, and of one that was rewritten in place its last state."""
    states = [state for state in _OF_TERMINAL.sub("", line).split("\r") if state]
    return states[-1].rstrip() if states else ""
