"""A run is watched from other terminals: its log has what its console said, and views leave."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.running import ENDLESS, Start, events_of, finish, training, wait_for

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of a given size, with a command on it."""

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


def test_two_terminals_of_different_sizes_follow_a_run_and_one_leaves_it(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        small = Terminal(80, 24, environ, "attach", str(run.path))
        large = Terminal(200, 50, environ, "attach", str(run.path))
        views = [small, large]
        try:
            for view in views:
                view.read_until("attached to ")
                view.read_until("eta ")
            small.process.send_signal(signal.SIGINT)
            assert small.read_to_end() == 0
            assert f"left {run.run_id}, which goes on" in small.text
            assert "stop " in small.text
            step = len(events_of(run, "metric", "train"))
            wait_for(lambda: len(events_of(run, "metric", "train")) > step, why="it has stopped")
            process.send_signal(signal.SIGINT)
            code, out, err = finish(process)
            assert large.read_to_end() == code == 20, err
        finally:
            for view in views:
                view.process.kill()
    begun = small.lines().index(
        next(line for line in small.lines() if line.startswith("airlock: attached"))
    )
    drawn = small.lines()[begun + 1 :]
    assert max(map(len, drawn)) <= 82  # a typed Ctrl-C is echoed within a line
    whole = any("loss " in line and "eta " in line for line in small.lines())
    assert whole, small.text[-3000:]  # all of it, on 80 columns
    report = out[out.index("\ninterrupted; ") :].strip().splitlines()
    assert set(report) <= {line.rstrip() for line in large.lines()}
    assert run.run_log.read_text().splitlines() == [line.rstrip() for line in out.splitlines()]


def test_a_live_view_leaves_a_log_as_complete_as_plain_output(
    environ: dict[str, str],
) -> None:
    args = ("run", "tiny", "--set", "train.max_steps=3", "--set", "train.log_every_steps=1")
    more = ("--set", "train.global_batch_size=8", "--set", "train.eval_generate=false")
    terminal = Terminal(100, 30, environ, *args, *more)
    assert terminal.read_to_end() == 0, terminal.text
    text = (Path(environ["AIRLOCK_RUNS_DIR"]) / "latest/logs/run.log").read_text()
    for words in ("run ", "data: train.jsonl: ", "[Rank 1] LOCK: released", "step 2/3  loss ",
                  "checkpoint after step 3 saved", "tiny: done in ", "  upload  "):  # fmt: skip
        assert text.count(f"\n{words}") == 1, words
    assert "\x1b" not in text
    assert "\r" not in text
