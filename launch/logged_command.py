"""Run a command of the installer: its output to a log, and what it is at on the screen.

Standard library only: it runs before there is anything else.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TextIO, cast

from launch.parent import die_with_parent


def say(text: str) -> None:
    """Tell the person at the terminal."""
    sys.stderr.write(f"airlock: {text}\n")
    sys.stderr.flush()


class Progress:
    """What pip is at, and for how long: one line that changes on a terminal, else plain lines."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        self.doing = "making .venv"

    def elapsed(self) -> str:
        seconds = int(time.monotonic() - self.started_s)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def read(self, line: str) -> None:
        """Take in one line of pip's output."""
        if found := re.match(r"\s*(?:Downloading|Using cached) (\S+?-\d[^-\s]*)\S* (\(.*)", line):
            self.doing = f"fetching {found[1]} {found[2]}"
        elif line.startswith("Installing collected packages:"):
            self.doing = f"installing {line.count(',') + 1} packages"
        elif found := re.match(r"\s*(?:Collecting|Processing|Building wheel for) (\S+)", line):
            self.doing = f"looking at {Path(found[1]).name}"
        else:
            return
        # The rest passes too quickly to be worth a line in a log.
        if not self.on_terminal and re.search(r" [MG]B\)$|^installing", self.doing):
            say(f"{self.doing}  {self.elapsed()}")

    def show(self) -> None:
        if self.on_terminal:
            line = f"airlock: {self.doing}  {self.elapsed()}"
            line = line[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()

    def hide(self) -> None:
        if self.on_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def run_logged(command: list[str], log: TextIO, progress: Progress) -> tuple[int, list[str]]:
    """Run COMMAND to its end; its exit status and its output by lines, which go to LOG as well.

    It runs in a session of its own, so that a Ctrl-C reaches this process alone, which then ends
    it; and it does not outlive this process.
    """
    own_pid = os.getpid()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # The user's own settings for pip hold, but for one that would install elsewhere.
        env={**os.environ, "PIP_USER": "0", "PIP_PROGRESS_BAR": "off", "PIP_NO_INPUT": "1"},
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(own_pid),  # noqa: PLW1509 - no threads here
    )
    lines = []
    try:
        for line in output_lines(process, progress):
            log.write(f"{line}\n")
            log.flush()
            lines.append(line)
        return process.wait(), lines
    finally:
        progress.hide()
        end(process)


def output_lines(process: subprocess.Popen[bytes], progress: Progress) -> Iterator[str]:
    """The lines of PROCESS as they come, with PROGRESS shown at least every second meanwhile."""
    pipe, rest = cast(IO[bytes], process.stdout).fileno(), b""
    while True:
        progress.show()
        if not select.select([pipe], [], [], 1.0)[0]:
            continue
        data = os.read(pipe, 1 << 16)
        *whole, rest = (rest + data).split(b"\n")
        if not data and rest:
            whole, rest = [rest], b""
        for line in whole:
            text = line.decode(errors="replace")
            progress.read(text)
            yield text
        if not data:
            return


def end(process: subprocess.Popen[bytes]) -> None:
    """End PROCESS and its session, kindly first; nothing if it has ended by itself."""
    for signum, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, signum)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
