"""A command on a terminal of a given size."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of a given size, with a command of Airlock's on it."""

    def __init__(self, columns: int, rows: int, environ: dict[str, str], *args: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        sizes = ("COLUMNS", "LINES")
        env = {name: value for name, value in environ.items() if name not in sizes}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launch", *args],
            env=env | {"TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.text = ""

    def read_until(self, words: str, timeout_s: float = 120.0) -> None:
        """Read until `words` have come."""
        deadline = time.monotonic() + timeout_s
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            if not self._read():
                assert words in self.text, self.text

    def read_to_end(self) -> int:
        """Read until the command has ended; return its exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(60)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # closed by the other end
            return False
        self.text += data.decode(errors="replace")
        return True

    def lines(self) -> list[str]:
        """Return all that was written, as lines, without colours and cursor movements."""
        return re.split(r"\r\n|\n|\r", _SEQUENCE.sub("", self.text))
