"""Runs a command with facts as its input: `python -I -S facts_command.py TIMEOUT_S COMMAND`.

The facts come first on standard input, their length in a line before them; then that pipe stays
open as long as the launcher lives. The command gets a process group of its own, which is killed
when it takes too long or the launcher is gone. What it prints is read, so that it never waits, and
its last words are kept. Prints one line of JSON at the end. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO

_LAST_BYTES = 1000


def main() -> None:
    """Run the command to its end, or end it."""
    timeout_s, command = float(sys.argv[1]), sys.argv[2]
    size = int(sys.stdin.buffer.readline() or 0)
    facts = sys.stdin.buffer.read(size)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryFile() as given:  # not a pipe: the command need not read it
        given.write(facts)
        given.seek(0)
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert child.stdout is not None
    try:
        last, is_late = _attend(child, child.stdout, time.monotonic() + timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    result = {"code": child.wait(), "is_late": is_late, "last": last.decode(errors="replace")}
    sys.stdout.write(json.dumps(result) + "\n")


def _attend(
    child: subprocess.Popen[bytes], output: IO[bytes], deadline: float
) -> tuple[bytes, bool]:
    """Read what the command prints until it has ended; return its end, and if it took too long."""
    last = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while child.poll() is None:
            if time.monotonic() > deadline:
                return last, True
            for key, _ in selector.select(0.05):
                data = os.read(key.fd, 65536)
                if key.fileobj is sys.stdin and not data:
                    sys.exit(1)  # the launcher is gone; what started is killed
                last = (last + data)[-_LAST_BYTES:] if key.fileobj is output else last
                if not data:
                    selector.unregister(output)
    os.set_blocking(output.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        last = (last + os.read(output.fileno(), 65536))[-_LAST_BYTES:]
    return last, False


if __name__ == "__main__":
    main()
