"""The job that trains: its attempts are counted, started, found again, and brought to an end."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from typing import Any, Literal

from inbox import requests
from inbox.attempt import (
    Ended,
    command_of,
    judge,
    last_error,
    log_of,
    new_attempt,
    run_of,
    why_failed,
)
from inbox.claim import content_hash
from inbox.inbox_settings import InboxSettings
from inbox.job_verdict import JobVerdict, completed, finish, finish_again
from inbox.jobs import Attempt, InboxJob
from inbox.layout import Layout
from inbox.models.held_out_scores import Scorer
from inbox.models.models import Models
from inbox.recorded_process import Recorded, recorded, start
from rundir.errors import UserError
from rundir.paths import RunDir

_LONGEST_BACKOFF_S = 3600.0
_KILL_AFTER_S = 900.0  # a skipped training that has not saved and ended by then is killed


class JobTrainer:
    """Carries one job at a time. `say` logs a line; `is_stopped` tells whether to end soon."""

    def __init__(
        self,
        layout: Layout,
        settings: InboxSettings,
        say: Callable[[str], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._layout, self._settings, self._say = layout, settings, say
        self._is_stopped = is_stopped
        command = [str(settings.clone / "airlock")]
        scorer = Scorer(command, settings.environ_for(layout), is_stopped)
        self._models = Models(layout.models, forgetting=settings.forgetting, scorer=scorer)
        self._completed = completed(layout)
        self._popen: subprocess.Popen[bytes] | None = None
        self._is_interrupted = False  # the present attempt
        self._kill_at = inf  # monotonic: when it is skipped and has not ended by itself
        self.job: InboxJob | None = None
        self.doing = ""  # "training", "hashing", "scoring"; "" without a job

    @property
    def process(self) -> Recorded | None:
        """The process of the present attempt, ended or not; None without one."""
        return recorded(self._attempt.process) if self._attempt else None

    @property
    def run(self) -> RunDir | None:
        """The run folder of the present attempt, once there is one."""
        if self.job is None or self._attempt is None:
            return None
        return run_of(self.job, self._attempt, self._layout)

    @property
    def is_training(self) -> bool:
        """True if an attempt has been started whose end is not on record."""
        return self._attempt is not None and self._attempt.ended_t is None

    @property
    def _attempt(self) -> Attempt | None:
        return self.job.attempts[-1] if self.job and self.job.attempts else None

    def take_over(self, job: InboxJob) -> None:
        """Go on with a job that another daemon has left in processing. Raises OSError."""
        if finish_again(job, self._layout):
            self._completed = completed(self._layout)
            return self._say(f"{job.id}: had its verdict, and is put where it belongs")
        if job.retry_after_s and job.attempts and job.attempts[-1].ended_t is not None:
            job.move(self._layout.queue)
            return self._say(f"{job.id}: is tried again after a while")
        self.job = job
        if self.is_training:
            self.doing = "training"
            alive = self.process is not None and self.process.is_alive
            self._say(f"{job.id}: {'trains on' if alive else 'its process is gone'}")
        return None

    def begin(self, job: InboxJob | None) -> None:
        """Start an attempt at the present job, or at the next one.

        Raises OSError, and then the next look tries again, or StoppedError.
        """
        if self.job is None and job is not None:
            job.move(self._layout.processing)
            self.job = job
        if self.job is not None and not self.is_training:
            self._start()

    def let_go(self) -> None:
        """Leave a job whose process does not run in processing, for the next daemon."""
        if not self.is_training or not self._is_running():
            self.job, self.doing = None, ""

    def _start(self) -> None:
        """Start the next attempt, unless the same content was trained in the same way."""
        job = self.job
        assert job is not None
        if job.num_failures >= self._settings.attempts:  # killed before it had its verdict
            return self._finish(self._verdict("failed", job.attempts[-1].reason))
        attempt = new_attempt(job, self._layout)
        if not attempt.resumed:
            try:
                self._set_recipe(job)
            except OSError as error:  # taken away, or not to be read: others can be trained
                return self._finish(self._verdict("failed", f"its data cannot be read: {error}"))
        earlier = self._completed.get(job.key)
        if earlier is not None and not job.train_again:
            reason = f"the same content was trained in the same way as {earlier}"
            return self._finish(JobVerdict(result="duplicate", reason=reason, of_job=earlier))
        try:
            model = self._models.start_from(fresh=self._settings.fresh)
        except UserError as error:  # `current` leads nowhere: a person says what to go on from
            requests.pause(self._layout, str(error))
            job.move(self._layout.queue)
            return self.let_go()
        command = command_of(self._settings, job, attempt, model)
        self._is_interrupted, self._kill_at, self.doing = False, inf, "training"
        job.attempts.append(attempt)
        try:
            job.write()  # counted before it is started: one that kills the machine counts as well
            self._popen = self._launched(job, attempt, command)
        except OSError:
            job.attempts.pop()  # it never ran; what is on the disk already counts it
            raise
        return self._say(f"{job.id}: attempt {attempt.number}: {shlex.join(command)}")

    def _set_recipe(self, job: InboxJob) -> None:
        """Settle what a job is trained on, and how. Raises OSError or StoppedError."""
        if not job.content_hash:
            self.doing = "hashing"
            self._say(f"{job.id}: reads {job.name}")
            job.content_hash = content_hash(job.data, self._is_stopped)
        job.profile, job.options = self._settings.profile, list(self._settings.options)
        job.key = f"{job.content_hash[:32]}-{self._settings.recipe}"

    def _launched(
        self, job: InboxJob, attempt: Attempt, command: tuple[str, ...]
    ) -> subprocess.Popen[bytes]:
        def record(process: Recorded) -> None:
            attempt.process = asdict(process)
            job.write()

        return start(command, self._settings.environ_for(self._layout), log_of(job), record)

    def end_if_over(self) -> None:
        """Bring the attempt to its end if its process has ended.

        Raises OSError, and then the job is to be taken over as the disk has it: what could not be
        written is decided again, and a verdict that was written stands.
        """
        if self.job is None or not self.is_training or self._is_running():
            return
        try:
            self._end(self.job)
        except OSError:
            self.let_go()
            raise

    def _end(self, job: InboxJob) -> None:
        """Decide what becomes of a job whose process has ended; its verdict is written first."""
        attempt = job.attempts[-1]
        code = self._popen.returncode if self._popen else None
        is_stopped = bool(attempt.asked) or self._is_stopped()
        ended = judge(attempt, self.run, code, is_stopped=is_stopped)
        if ended.how == "trained":
            return self._complete(ended)
        if attempt.asked == "skip":
            return self._finish(self._verdict("skipped", "skipped on request"))
        why, fix = ended.reason, ""
        if ended.how in ("failed", "hopeless"):
            why, fix = why_failed(job, self.run, ended.reason, self._settings, self._layout)
        attempt.exit_code, attempt.counts = ended.exit_code, ended.how in ("failed", "hopeless")
        self._say(f"{job.id}: attempt {attempt.number} ended: {why}")
        if ended.how == "misconfigured":
            requests.pause(self._layout, f"{why}: {last_error(log_of(job))}")
        if ended.how == "hopeless" or job.num_failures >= self._settings.attempts:
            return self._finish(self._verdict("failed", why, fix=fix))
        wait_s = self._settings.backoff_s * 2 ** max(0, job.num_failures - 1)
        job.retry_after_s = min(wait_s, _LONGEST_BACKOFF_S) if ended.how == "failed" else 0.0
        attempt.ended_t, attempt.reason = time.time(), why
        job.write()
        if ended.how != "stopped":  # which stays in processing, and goes on first
            job.move(self._layout.queue)
        self._popen = None
        return self.let_go()

    def _complete(self, ended: Ended) -> None:
        """Have the model considered, then write the verdict: the job is complete only after that.

        Whatever is killed in between is done again, by a daemon that finds the run complete.
        """
        job, run = self.job, self.run
        assert job is not None
        assert run is not None
        self.doing = "scoring"
        self._say(f"{job.id}: {ended.reason}; its model is considered")
        try:
            outcome = self._models.consider(
                job_id=job.id, name=job.name, content_hash=job.content_hash, run=run.path
            )
        except (UserError, subprocess.SubprocessError, ValueError, KeyError) as error:
            reason = f"{ended.reason}, but its model could not be considered: {error}"
            return self._finish(self._verdict("failed", reason))
        reason = f"{ended.reason}; {outcome.reason}"
        scored = {"is_current": outcome.is_current, "scores": outcome.scores}
        return self._finish(self._verdict("done", reason, **scored))

    def _finish(self, verdict: JobVerdict) -> None:
        job = self.job
        assert job is not None
        finish(job, verdict, self._layout)
        if verdict.result == "done":
            self._completed[job.key] = job.id
        self._say(f"{job.id}: {verdict.result}: {verdict.reason}")
        self.job, self.doing, self._popen = None, "", None

    def _verdict(self, result: str, reason: str, **fields: Any) -> JobVerdict:
        run = str(self.run.path) if self.run else ""
        return JobVerdict(result=result, reason=reason, run=run, **fields)

    def _is_running(self) -> bool:
        if self._popen is not None:
            is_running = self._popen.poll() is None
        else:
            is_running = self.process is not None and self.process.is_alive
        if is_running and self.process is not None and time.monotonic() > self._kill_at:
            self.process.send(signal.SIGKILL)
        return is_running

    def interrupt(self, why: Literal["stop", "skip"]) -> None:
        """Have the training save after its step and end; only its own recorded process is told.

        What was asked is on the disk first: a daemon that takes over knows why it has ended.
        """
        job = self.job
        if job is None or not self.is_training or job.attempts[-1].asked == "skip":
            return
        if job.attempts[-1].asked != why:
            job.attempts[-1].asked = why
            with contextlib.suppress(OSError):  # a full disk must not keep it from saving
                job.write()
        if why == "skip":  # one that is stopped has its time
            self._kill_at = time.monotonic() + _KILL_AFTER_S
        if not self._is_interrupted:
            self.send_interrupt()

    def send_interrupt(self) -> None:
        """Send SIGINT; the second one has the training end without another step."""
        if self.process is not None:
            self._is_interrupted = self.process.send(signal.SIGINT)

    def skip(self) -> None:
        """End the present job for good; it is set aside among the failed ones. Raises OSError."""
        if self.is_training:
            self.interrupt("skip")
        else:
            self._finish(self._verdict("skipped", "skipped on request"))
