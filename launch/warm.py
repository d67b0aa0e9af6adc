"""The agent's side of a warm start: start the zygote, and hear whether ranks may be forked."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing import forkserver

from rundir.events import Event, EventTail, EventWriter
from rundir.paths import RunDir

_POLL_S = 0.02


class ZygoteLostError(Exception):
    """The zygote was killed from outside, or by the kernel: no reason to try without one."""


class ZygoteProcess:
    """The zygote as its parent sees it. Make it in the main thread, before torch is imported.

    It dies with the thread that starts it, and while it imports on one core this process can do so
    on another.
    """

    def __init__(self, run: RunDir, events: EventWriter) -> None:
        self._tail = EventTail(run.event_file("zygote"))
        self._events = events
        forkserver.set_forkserver_preload(["launch.preload"])
        forkserver.ensure_running()

    @property
    def pid(self) -> int:
        """Its pid now: multiprocessing starts another one when a rank is to be forked from a dead.

        There is no public name for it; this one is there in every Python from 3.4 to 3.14.
        """
        pid: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        return pid

    def wait_until_ready(self, timeout_s: float) -> str | None:
        """None once ranks may be forked from it, or the reason why they must not.

        `timeout_s` is for each of its steps; waiting for the gate has a limit of its own. Raises
        ZygoteLostError when it was killed by SIGKILL, as the kernel does when memory runs out.
        """
        step, step_since = "starting", time.monotonic()
        while True:
            exitcode = self.exitcode()  # before its events are read, so that none is missed
            for event in self._tail.new_events():
                if event["name"] == "zygote.ready":
                    unfit: str | None = event["unfit"]
                    return unfit
                step, step_since = _step(event, step), time.monotonic()
            if exitcode is not None:
                if exitcode == -signal.SIGKILL:
                    self.report_exit()
                    raise ZygoteLostError
                return f"the zygote ended with {exitcode} while {step}"
            if step != "waiting" and time.monotonic() - step_since > timeout_s:
                return f"the zygote was {step} for more than {timeout_s:g} s"
            time.sleep(_POLL_S)

    def exitcode(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs.

        It stays uncollected: the forkserver module keeps that for itself.
        """
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # collected: another is being started in its place
            return None
        if found is None:
            return None
        status: int = found.si_status
        return status if found.si_code == os.CLD_EXITED else -status

    def report_exit(self) -> None:
        """Write to the run folder that it has ended, if it has."""
        exitcode = self.exitcode()
        if exitcode is not None:
            self._events.emit(
                "error", "zygote.exit", exitcode=exitcode, signal=signal_name(exitcode)
            )

    def end(self) -> None:
        """Kill it and wait until it is gone; nothing can be forked from it afterwards."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _step(event: Event, before: str) -> str:
    """What the zygote does after `event`, in words."""
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
    """The signal behind a negative exit code, or None."""
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {-exitcode}"
