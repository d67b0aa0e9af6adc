"""The workload of the ranks, our trainer or a script: how each is watched, and its output."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from rundir import control
from rundir.files.reading import GrowingFile
from rundir.paths import RunDir
from state.run_state import RunState

_MOST_AT_ONCE = 1 << 20  # bytes read from one log at a time
_PROMPT_S = 0.5  # after which the beginning of a line is taken for a question that waits
_LONGEST_LINE = 1 << 16  # bytes after which a line that does not end is cut
_LINE_END = re.compile(rb"(\r\n|\n|\r(?=.))", re.DOTALL)  # a final \r may be half of a \r\n


class LogTail:
    """A reader of one log: from its beginning, or `from_end_bytes` before its end."""

    def __init__(self, path: Path, *, from_end_bytes: int | None = None) -> None:
        self._file = GrowingFile(path, from_end_bytes=from_end_bytes)
        self._is_inside_line = self._file.offset > 0
        self._rest = b""
        self._read_mono = 0.0  # when there was something new

    def prompt(self) -> str | None:
        """Return the beginning of a line that has waited for its end, once; None if none does."""
        if not self._rest.strip() or time.monotonic() - self._read_mono < _PROMPT_S:
            return None
        text, self._rest = self._rest.decode(errors="replace"), b""
        return text

    def new_lines(self, *, last: bool = False) -> list[str] | None:
        """Return the lines completed since the last call, or None if there is nothing new.

        A carriage return ends a line too, so each state of a progress bar is a line. A long text
        comes in pieces, one per call; with `last` its end comes as well, even if it is not a whole
        line.
        """
        data = self._file.new_bytes(_MOST_AT_ONCE)
        self._read_mono = time.monotonic() if data else self._read_mono
        if not data and not (last and self._rest):
            return None
        *parts, self._rest = _LINE_END.split(self._rest + data)
        if self._is_inside_line and parts:
            self._is_inside_line, parts = False, parts[2:]
        ended = zip(parts[::2], parts[1::2], strict=True)
        lines = [line for line, end in ended if line or end != b"\r"]  # a \r may come first, too
        if self._rest and ((last and not data) or len(self._rest) > _LONGEST_LINE):
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]


class RankOutput:
    """The output of all ranks of a run, of every attempt."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._has_typist = sys.stdin is not None and sys.stdin.isatty()
        self._tails: dict[Path, LogTail] = {}

    def new_lines(self, *, last: bool = False) -> Iterator[list[str]]:
        """Yield new lines as `LogTail.new_lines` does, rank by rank.

        One piece of each rank, so that none silences the others; with `last`, all there is.
        """
        for path in sorted(self._logs.glob("attempt*/rank*.log")):
            self._tails.setdefault(path, LogTail(path))
        for tail in self._tails.values():
            while (lines := tail.new_lines(last=last)) is not None:
                if lines:
                    yield lines
                if not last:
                    break
            if self._has_typist and (question := tail.prompt()) is not None:
                yield [question]


def ask_to_save(run: RunDir, state: RunState) -> str | None:
    """Ask our trainer to save and stop; return a message for the user.

    Returns None if nothing can be saved, as before training.
    """
    if state.status.phase not in ("training", "paused", "finishing"):
        return None
    try:
        control.ask(run, "stop")
    except OSError:  # where no empty file can be created, no checkpoint can either
        return None
    saver = "the ranks save" if len(state.status.ranks) > 1 else "the run saves"
    return f"stopping: {saver} a checkpoint; Ctrl-C again ends at once"


class Workload:
    """What the ranks run: Airlock's trainer, or a script as torchrun runs it.

    The trainer saves when asked to stop, reports when it is done, and is shown by its events. A
    script's output is shown, and exit codes are all it reports. `end_signal` ends the agent, and
    through it the ranks, at once.
    """

    def __init__(self, run: RunDir, *, of_script: bool) -> None:
        self._run, self._of_script = run, of_script
        self._output = RankOutput(run.agent_log.parent)
        self.end_signal = signal.SIGKILL if of_script else signal.SIGTERM

    def new_output(self, *, last: bool = False) -> Iterable[list[str]]:
        """Return all output of a script that is new."""
        return self._output.new_lines(last=last) if self._of_script else []

    def ask_to_stop(self, agent: subprocess.Popen[bytes], state: RunState) -> str | None:
        """Ask the ranks to stop; return a message for the user.

        The trainer's are asked through the run folder. A script's get SIGTERM from the agent, which
        allows them 30 seconds. Returns None if asking is of no use.
        """
        if not self._of_script:
            return ask_to_save(self._run, state)
        agent.send_signal(signal.SIGTERM)
        return "stopping: the script has 30 seconds; Ctrl-C again ends at once"

    def gone(self, state: RunState, alive: Container[int]) -> list[int]:
        """Return the ranks that are missed; `alive` holds live pids.

        Those of the trainer that left before the end was announced; those of a script that failed:
        one that ends with 0 leaves the others to their work.
        """
        is_expected = state.status.phase == "stopping" if self._of_script else bool(state.result)
        return [
            row.rank
            for row in state.status.ranks
            if not is_expected
            and (row.phase == "failed" or not self._of_script)
            and row.pid is not None
            and row.pid not in alive
        ]
