"""The process that tracks one run with one tracker: until its launcher is gone, or just once.

`airlock track RUN` does it once, for a run that was not tracked, or not to the end.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from rich.console import Console

from launch.track.figures import MetricReader
from launch.track.services import FILES, LAST_WORDS, SERVICES, TITLES, Say, make_tracker
from machine.processes.parent import die_with_parent
from machine.typed import pip_install, run_called
from rundir.errors import ExitCode, UserError
from rundir.files.lock import lock
from rundir.paths import RunDir

_POLL_S = 1.0
_NICE = 5  # the training comes first
_LAST_S = 300  # after the end of the run, unless the launcher ends this process before


def track(name: str, service: str | None, console: Console) -> None:
    """Write the TensorBoard files of the run called `name` again, or send it to a service.

    Raises UserError when there is no such run or service, or when it cannot be done.
    """
    run = run_called(name)
    to = service or FILES
    if to not in TITLES:
        raise UserError(f"no tracker {to!r}", do=f"--to {' or --to '.join(SERVICES)}")
    track_once(run, to, console.out)
    where = f": tensorboard --logdir {shlex.quote(str(run.tensorboard))}" if to == FILES else ""
    console.out(f"{run.run_id} is in {TITLES[to]}{where}")


def track_once(run: RunDir, name: str, say: Say) -> None:
    """Pass on all events that `run` has.

    Raises UserError when a process of the run itself does that, or when it cannot be done.
    """
    with _alone(run, name):
        try:
            tracker = make_tracker(name, run, say)
            MetricReader(run, tracker).follow()
            tracker.close()
        except Exception as error:  # trackers may raise anything
            raise UserError(
                f"{TITLES[name]}: {_text(error)}",
                do=_what_to_do(name, error),
                code=ExitCode.PREFLIGHT,
            ) from error


def track_beside(run: RunDir, name: str, parent_pid: int) -> int:
    """Track `run` until its launcher, process `parent_pid`, closes our stdin or is gone.

    Standard output is for lines that the launcher is to show, with LAST_WORDS before that of a
    failure; what libraries print goes to stderr, which is a log. Returns the exit code: 1 if
    tracking has ended before the run.
    """
    stop_signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        stop_signals.append(number)

    signal.signal(signal.SIGTERM, note)
    die_with_parent(parent_pid, signal.SIGTERM)
    os.nice(_NICE)
    lines = os.dup(1)
    os.dup2(2, 1)

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone
            os.write(lines, f"{' '.join(text.split())}\n".encode())

    try:
        with _alone(run, name):
            tracker = make_tracker(name, run, say, is_beside=True)
            reader = MetricReader(run, tracker)
            while not stop_signals:
                reader.follow()
                if select.select([0], [], [], _POLL_S)[0]:
                    break
            signal.alarm(_LAST_S)
            reader.follow()
            tracker.close()
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the training goes on
        say(f"{LAST_WORDS}{_text(error)}")
        with contextlib.suppress(OSError):
            print(repr(error), file=sys.stderr, flush=True)  # noqa: T201
        return 1
    return 0


@contextlib.contextmanager
def _alone(run: RunDir, name: str) -> Iterator[None]:
    """Hold the lock for tracking `run` with this tracker. Raises UserError if it is taken."""
    with run.track_log(name).open("ab") as log:
        is_alone = True
        with contextlib.suppress(OSError):  # a file system without locks
            is_alone = lock(log.fileno())
        if not is_alone:
            raise UserError(
                f"run {run.run_id} is being tracked by a process of its own",
                do="wait until it has ended: ./airlock ps",
            )
        yield


def _text(error: Exception) -> str:
    """Return an error as one line."""
    if isinstance(error, UserError):
        return str(error.args[0])
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _what_to_do(name: str, error: Exception) -> str:
    if isinstance(error, UserError):
        return error.do
    if isinstance(error, ImportError):
        return pip_install(name)
    return "mend that, and call it again"
