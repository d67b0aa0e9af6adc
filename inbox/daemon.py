"""The daemon's loop: look at requests, at what was dropped, at the training; then wait."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import shutil
import signal
import sys
import time
from types import FrameType

from inbox import claim, requests
from inbox.arrivals import Arrivals, Drops
from inbox.carry_out import carry_out
from inbox.daemon_state import State, StateFile, held
from inbox.inbox_settings import InboxSettings
from inbox.jobs import InboxJob, damaged_in, jobs_in
from inbox.layout import Layout
from inbox.models.held_out_scores import StoppedError
from inbox.trainer import JobTrainer
from inbox.wake import Wake
from machine.processes.monitor_beside import serve_pages
from rundir.units import GIB, size_text

_LOG_BYTES = 10 * 1024 * 1024  # then the log begins anew, and the one before is kept
_AGAIN_S = 1.0  # a second SIGTERM within this time is the same request
_RETRY_S = 10.0  # wait after an error of the disk
_POLL_S = 0.5  # between looks at a process whose end cannot be waited for
_SHORTEST_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Turn = tuple[str, int, float]


def serve(layout: Layout, settings: InboxSettings) -> None:
    """Train what is dropped until told to stop. Raises UserError if another daemon does."""
    # Who holds the lock is known to others, and answers signals: those before that wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with held(layout):
            Daemon(layout, settings).to_its_end()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class Daemon:
    """The only writer of the job folders, as it holds the lock."""

    def __init__(self, layout: Layout, settings: InboxSettings) -> None:
        self._layout, self._settings = layout, settings
        self._log = _logger(layout)
        watched = (*layout.drops().values(), layout.queue, layout.control)
        self._wake = Wake(watched, settings.poll_s)
        self._state = State(watches_by=self._wake.means)
        self._state_file = StateFile(layout)
        self._arrivals = Arrivals(layout, settings.settle_s)
        self._trainer = JobTrainer(layout, settings, self.say, self._hears_stop)
        self._ready_at: dict[_Turn, float] = {}  # monotonic
        self._is_stopping = self._end_now = False
        self._stopped_at = 0.0
        self._has_recovered = False
        self._drops = Drops()

    def to_its_end(self) -> None:
        """Serve until a stop is requested and the training has saved and ended."""
        self._listen()
        for request in requests.pending(self._layout):
            if request.kind == "stop":  # of the daemon before
                request.path.unlink(missing_ok=True)
        self.say(f"watches {self._layout.inbox} by {self._wake.means}")
        if self._settings.monitor:
            words = ["--inbox", str(self._layout.path), "--runs-dir", str(self._layout.runs)]
            serve_pages(
                words,
                self._layout.monitor_log,
                self._settings.environ,
                self._log.info,
                page="inbox",
                beside="the inbox",
            )
        while True:
            wait_s = self._serve_once()
            if self._is_stopping and self._trainer.job is None:
                break
            process = self._trainer.process if self._trainer.is_training else None
            with contextlib.ExitStack() as stack:
                descriptor = stack.enter_context(process.opened()) if process else None
                has_just_ended = process is not None and descriptor is None
                self._wake.wait(min(wait_s, _POLL_S) if has_just_ended else wait_s, descriptor)
        self._wake.close()
        self.say("stopped")

    def _serve_once(self) -> float:
        """Do all that can be done now; return for how many seconds nothing is to be done."""
        try:
            self._recover()
            self._answer_requests()
            self._trainer.end_if_over()
            if self._is_stopping:
                self._stop()
            else:
                self._take()
                self._begin()
            self._state.error = ""
            wait_s = self._wait_s()
        except StoppedError:
            self._trainer.let_go()
            wait_s = 0.0
        except OSError as error:  # a full disk, a folder that is gone: it may come back
            self._has_recovered = False
            self._state.error, wait_s = f"{error}; tried again every {_RETRY_S:.0f} s", _RETRY_S
            self._log.warning("%s", self._state.error)
            if self._is_stopping:
                self._stop()
                self._trainer.let_go()
        self._tell()
        return wait_s

    def _recover(self) -> None:
        """Finish what a killed daemon, or a full disk, has left half done."""
        if not self._has_recovered:
            for job in claim.recover(self._layout):
                self.say(f"{job.id}: {job.name} was being taken, and is in the queue")
            self._has_recovered = True
        if self._trainer.job is None and (left := jobs_in(self._layout.processing)):
            self._trainer.take_over(left[0])

    def _answer_requests(self) -> None:
        self._hears_stop()  # first, whatever keeps the others from being done
        for request in requests.pending(self._layout):
            if request.kind != "stop":
                self.say(carry_out(request, self._layout, self._trainer))
                request.path.unlink(missing_ok=True)

    def _hears_stop(self) -> bool:
        """Return whether to stop; looks for a request, as long work does not come back here."""
        for request in requests.pending(self._layout):
            if request.kind == "stop":
                self._ask_to_stop()
                with contextlib.suppress(OSError):
                    request.path.unlink(missing_ok=True)
        return self._is_stopping

    def _take(self) -> None:
        """Make jobs of what is complete; what cannot be taken is told of, and stays."""
        self._drops = self._arrivals.scan()
        for arrival in self._drops.ready:
            try:
                job = claim.claim(self._layout, arrival)
            except OSError as error:
                self._drops.waiting[arrival.path] = f"cannot be taken: {error.strerror or error}"
                self._has_recovered = False
            else:
                self.say(f"{job.id}: took {arrival.path.name}, {job.priority} priority")

    def _begin(self) -> None:
        """Start the next attempt, unless something speaks against it."""
        waiting = jobs_in(self._layout.queue)
        turns = {_turn(job) for job in waiting}
        self._ready_at = {turn: at for turn, at in self._ready_at.items() if turn in turns}
        due = next((job for job in waiting if self._is_due(job)), None)
        self._state.why = self._why_held()
        if not self._trainer.is_training and not self._state.why:
            self._trainer.begin(due)
        if waiting and due is None and self._trainer.job is None:
            self._state.why = f"{waiting[0].id} failed, and is tried again after a while"

    def _why_held(self) -> str:
        """Return why nothing may be started; "" if it may."""
        if why := requests.paused(self._layout):
            return why
        free_bytes = shutil.disk_usage(self._layout.path).free
        limit_bytes = int(self._settings.min_free_gib * GIB)
        if free_bytes >= limit_bytes:
            return ""
        return (
            f"low disk: {size_text(free_bytes)} free, and nothing is started below "
            f"{size_text(limit_bytes)} (--min-free-gib); ./airlock clean shows what can go"
        )

    def _is_due(self, job: InboxJob) -> bool:
        """Return whether a job need not wait (any more); a restart of the daemon waits anew."""
        now = time.monotonic()
        return now >= self._ready_at.setdefault(_turn(job), now + job.retry_after_s)

    def _wait_s(self) -> float:
        """Return when to look again if nothing happens."""
        waits = [self._wake.idle_s]
        if self._drops.waiting:
            waits.append(self._settings.settle_s / 2)
        waits += [at - time.monotonic() for at in self._ready_at.values()]
        return max(_SHORTEST_S, min(wait for wait in waits if wait > 0))

    def _stop(self) -> None:
        if not self._trainer.is_training:
            self._trainer.let_go()
        elif self._end_now:
            self._end_now = False
            self._trainer.send_interrupt()
        else:
            self._trainer.interrupt("stop")

    def _tell(self) -> None:
        """Write the state; a disk that is full is no reason to end."""
        state, trainer = self._state, self._trainer
        state.job = trainer.job.id if trainer.job else ""
        state.waiting = {str(path): why for path, why in self._drops.waiting.items()}
        state.damaged = [*damaged_in(self._layout.queue), *damaged_in(self._layout.processing)]
        state.looked_t = time.time()
        if self._is_stopping:
            state.status, state.why = "stopping", "the training ends its step and saves"
        elif trainer.doing:
            state.status = trainer.doing
        elif requests.paused(self._layout):
            state.status = "paused"
        elif state.why or state.error:
            state.status = "held"
        else:
            state.status = "waiting" if state.waiting else "idle"
        with contextlib.suppress(OSError):
            self._state_file.write(state)

    def say(self, text: str) -> None:
        """Add a line to the log, and bring the state up to date."""
        self._log.info("%s", text)
        self._tell()

    def _listen(self) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)
            elif number == signal.SIGINT:  # by a shell's `&`; a training must hear it all the same
                signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGIO, lambda *_: None)  # someone opens a file just as it is looked at
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        is_again = time.monotonic() - self._stopped_at > _AGAIN_S
        if self._is_stopping and is_again and number != signal.SIGHUP:
            self._end_now = True
        self._ask_to_stop()
        self._wake.call()

    def _ask_to_stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping, self._stopped_at = True, time.monotonic()


def _turn(job: InboxJob) -> _Turn:
    """Return what names a job's next attempt; one that is asked for need not wait, and is new."""
    return job.id, len(job.attempts), job.retry_after_s


def _logger(layout: Layout) -> logging.Logger:
    """Return the log: FOLDER/inbox.log, and standard output."""
    log = logging.getLogger("inbox")
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.raiseExceptions = False  # a full disk: the log is not worth the daemon
    kept = logging.handlers.RotatingFileHandler(
        layout.log, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace"
    )
    for handler in (kept, logging.StreamHandler(sys.stdout)):
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    return log
