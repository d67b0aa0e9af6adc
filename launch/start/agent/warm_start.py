"""The agent's side of a warm start: start the zygote and learn whether it may be forked."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import forkserver

from launch.start.rank.fork_safety import inspect
from launch.start.rank.zygote import one_thread
from machine.processes.python_compat import fork_forkserver, forkserver_pid
from ranks.heavy_imports import heavy_imports
from rundir.events import Event, EventTail, EventWriter
from rundir.paths import RunDir

_POLL_S = 0.02
_GRACE_S = 0.3  # time for a process that is being killed to show up as ended


class ZygoteLostError(Exception):
    """The zygote was killed from outside or by the kernel, so a cold start is not worth trying."""


class WarmStart:
    """The zygote as seen by its parent; to be created in the main thread, before any other starts.

    The main thread, because the zygote dies with the thread that starts it. `timeout_s` applies to
    each step of the zygote; waiting for the gate has a timeout of its own. With `shares_torch` this
    process imports torch first, and the zygote begins as a fork of it.
    """

    def __init__(
        self, run: RunDir, events: EventWriter, timeout_s: float, *, shares_torch: bool
    ) -> None:
        self._tail = EventTail(run.event_file("zygote"))
        self._events = events
        self._timeout_s = timeout_s
        self._ready_pid: int | None = None
        self._given_up: str | None = None
        self._told_of: int | None = None  # pid of the zygote whose exit has been recorded
        forkserver.set_forkserver_preload(["launch.start.rank.preload"])
        self._start(fork_forkserver if shares_torch and _import_torch(events) else None)

    def why_not(self) -> str | None:
        """Return None if ranks can be forked now, else the reason why this run must start cold.

        Waits for the zygote; starts another one if it has died since the last attempt. Raises
        ZygoteLostError when the zygote was killed by SIGKILL in the meantime, as the kernel does
        when memory runs out.
        """
        if self._given_up is None and self._ready_pid == self._pid:
            self._start()  # a new one, if it has died since it was ready
        if self._given_up is None and self._ready_pid != self._pid:
            unfit = self._wait()
            self._ready_pid = self._pid
            if unfit is not None:
                self.give_up(unfit)
        return self._given_up

    def give_up(self, reason: str) -> str:
        """End the zygote, so that nothing is forked from it any more, and return `reason`.

        Raises ZygoteLostError when it has been killed by SIGKILL already.
        """
        if self._exitcode(_GRACE_S) == -signal.SIGKILL:
            self.report_exit()
            raise ZygoteLostError
        self._given_up = reason
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        return reason

    def report_exit(self, *, is_likely: bool = False) -> None:
        """Record in the run folder that the zygote has ended, if it has.

        If that `is_likely`, wait a moment for it: its forks may be seen to end before it does.
        """
        if self._given_up is not None:
            return  # this process ended it, and no rank came from it
        exitcode = self._exitcode(_GRACE_S if is_likely else 0.0)
        if exitcode is not None and self._told_of != self._pid:
            self._told_of = self._pid
            self._events.emit(
                "error", "zygote.exit", exitcode=exitcode, signal=signal_name(exitcode)
            )

    def _start(self, start: Callable[[], None] | None = None) -> None:
        """Start the zygote unless it is running; if that fails, a cold start is still possible.

        One that died is followed by a fresh interpreter: by then this process has threads.
        """
        try:
            (start or forkserver.ensure_running)()
        except OSError as error:  # its socket is in $TMPDIR, which may be full or too long
            self._given_up = f"the zygote could not be started: {error}"

    @property
    def _pid(self) -> int | None:
        return forkserver_pid()

    def _wait(self) -> str | None:
        step, step_since = "starting", time.monotonic()
        while True:
            exitcode = self._exitcode()  # checked before reading its events, so that none is missed
            for event in self._tail.new_events():
                if event["name"] == "zygote.ready" and event["pid"] == self._pid:
                    unfit: str | None = event["unfit"]
                    return unfit
                step, step_since = _step(event, step), time.monotonic()
            if exitcode is not None:
                return f"the zygote ended with {exitcode} while {step}"
            if step != "waiting" and time.monotonic() - step_since > self._timeout_s:
                return f"the zygote was {step} for more than {self._timeout_s:g} s"
            time.sleep(_POLL_S)

    def _exitcode(self, grace_s: float = 0.0) -> int | None:
        """Return the exit code, negative for a signal, or None if it still runs after `grace_s`.

        The process is not reaped: the forkserver module does that.
        """
        deadline = time.monotonic() + grace_s
        while self._pid is not None:
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        return None


def _import_torch(events: EventWriter) -> bool:
    """Import torch; return whether this process may be forked after that."""
    with one_thread(), events.span("zygote.import", what="torch"), heavy_imports():
        import torch  # noqa: F401
    return inspect().why_not_to_fork is None


def _step(event: Event, before: str) -> str:
    """Return a phrase for what the zygote does after `event`."""
    match event["kind"], event["name"]:
        case "start", "lock.wait":
            return "waiting"
        case "end", "lock.wait":
            return "starting"
        case "start", "zygote.import":
            return f"importing {event['what']}"
        case "start", "zygote.build":
            return "building the model"
    return before


def signal_name(exitcode: int) -> str | None:
    """Return the name of the signal behind a negative exit code, or None."""
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {-exitcode}"
