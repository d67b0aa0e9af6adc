"""One attempt at a job: what is typed for it, its run, what its end means, and why it failed."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inbox.inbox_settings import HELD_OUT, InboxSettings
from inbox.jobs import Attempt, InboxJob
from inbox.layout import Layout, entries
from rundir.checkpoints import complete_checkpoints, step_of
from rundir.errors import ExitCode
from rundir.files.reading import GrowingFile, json_object
from rundir.paths import RunDir

_STOPPED = (ExitCode.INTERRUPTED_SAVED, ExitCode.INTERRUPTED_UNSAVED)

How = Literal["trained", "failed", "hopeless", "stopped", "misconfigured"]
_DOCTOR_S = 300.0  # it reads files
_LOG_BYTES = 64 * 1024  # of its end, looked at for an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What the end of an attempt means, and why. `hopeless`: another would end the same."""

    how: How
    reason: str
    exit_code: int | None


def new_attempt(job: InboxJob, layout: Layout) -> Attempt:
    """Return the next attempt: it goes on from the last checkpoint, or anew.

    Anew if there is none, or if an attempt that went on from it has failed before the next one.
    """
    attempt = Attempt(number=len(job.attempts) + 1, started_t=time.time())
    for earlier in reversed(job.attempts):
        run = run_of(job, earlier, layout)
        saved = complete_checkpoints(run.checkpoints) if run else []
        if run and saved and step_of(saved[-1]) > earlier.resumed_step:
            attempt.resumed, attempt.resumed_step = str(run.path), step_of(saved[-1])
            break
        if earlier.counts:
            break
    return attempt


def command_of(
    settings: InboxSettings, job: InboxJob, attempt: Attempt, model: str | None
) -> tuple[str, ...]:
    """Return the command of an attempt, as a person would type it."""
    start = (str(settings.clone / "start.sh"), job.profile)
    name = ("--name", name_of(job, attempt))
    if attempt.resumed:  # with that run's settings; the number of ranks is not among them
        ranks = job.options.index("--num-gpus") if "--num-gpus" in job.options else None
        num_ranks = () if ranks is None else job.options[ranks : ranks + 2]
        return (*start, "--resume", attempt.resumed, *name, *num_ranks)
    base = () if model is None else ("--set", f"model.path={model}")
    return (*start, "--data", str(job.data), *name, *HELD_OUT, *base, *job.options)


def name_of(job: InboxJob, attempt: Attempt) -> str:
    """Return the name of an attempt's run, which no other has."""
    return f"{job.id}.{attempt.number}"


def run_of(job: InboxJob, attempt: Attempt, layout: Layout) -> RunDir | None:
    """Return the run folder of an attempt, once it has one."""
    its = re.compile(rf"\d{{8}}-\d{{6}}-{re.escape(name_of(job, attempt))}-[0-9a-f]{{4}}")
    runs = [entry.path for entry in entries(layout.runs) if its.fullmatch(entry.name)]
    return RunDir(Path(runs[-1])) if runs else None


def status_of(run: RunDir | None) -> dict[str, Any]:
    """Return the status of a run; {} before there is one."""
    return {} if run is None else json_object(run.status)


def judge(attempt: Attempt, run: RunDir | None, code: int | None, *, is_stopped: bool) -> Ended:
    """Return what the end of an attempt means; `code` is its exit code, None if nobody saw it.

    The run's own record comes first: it knows the end of a process that another daemon started.
    """
    status = status_of(run)
    kept = status.get("exit_code")
    code = kept if isinstance(kept, int) else code
    step = status.get("step") or 0
    if code == ExitCode.DONE:
        how, reason = _of_success(step, run)
    elif is_stopped and (code is None or code in _STOPPED or code < 0):
        how, reason = "stopped", f"stopped on request after step {step}"
    else:
        how, reason = _of_failure(attempt, code)
    return Ended(how=how, reason=reason, exit_code=code)


def _of_success(step: int, run: RunDir | None) -> tuple[How, str]:
    if step < 1:
        return "failed", "it ended well after 0 optimizer steps: nothing was trained"
    if run is None or not (run.model.is_dir() or run.adapter.is_dir()):
        return "failed", f"it trained {step} steps, and left no model"
    return "trained", f"trained {step} steps"


def _of_failure(attempt: Attempt, code: int | None) -> tuple[How, str]:
    if code is None:
        return "failed", "its process is gone without a word: it, or the machine, was ended"
    if code == ExitCode.DATA:
        return "hopeless", ExitCode.DATA.meaning
    if code == ExitCode.USAGE and not attempt.resumed:
        return "misconfigured", ExitCode.USAGE.meaning
    if code < 0:
        return "failed", f"./start.sh was killed by signal {-code}"
    try:
        return "failed", ExitCode(code).meaning
    except ValueError:
        return "failed", f"./start.sh ended with exit code {code}"


def log_of(job: InboxJob) -> Path:
    """Return the file with the output of a job's last attempt."""
    return job.folder / f"attempt{len(job.attempts)}.log"


def why_failed(
    job: InboxJob, run: RunDir | None, ended: str, settings: InboxSettings, layout: Layout
) -> tuple[str, str]:
    """Return (reason, fix) of a job's last attempt; `ended` is what its exit code means."""
    why, fix = ask_doctor(run, settings, layout) if run else ("", "")
    status = status_of(run)
    why = why.removesuffix(f": Exit code {status.get('exit_code')}: {ended}.")  # told below
    reason = why or str(status.get("error") or "") or last_error(log_of(job))
    return (f"{ended}: {reason}" if reason else ended), fix


def ask_doctor(run: RunDir, settings: InboxSettings, layout: Layout) -> tuple[str, str]:
    """Return (cause, fix) of a run that failed, in the doctor's words; ("", "") if unknown."""
    command = [str(settings.clone / "airlock"), "doctor", str(run.path), "--json"]
    try:
        ended = subprocess.run(
            command,
            env=settings.environ_for(layout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DOCTOR_S,
            check=True,
        )
        verdict = json.loads(ended.stdout.splitlines()[-1])
        if verdict["cause"] != "unknown":
            return f"{verdict['title']}: {verdict['why']}".removesuffix(": "), verdict["fix"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError, TypeError):
        pass  # the exit code and the log are told instead
    return "", ""


def last_error(log: Path) -> str:
    """Return what ./start.sh itself said last: its error, without what to type next."""
    end = GrowingFile(log, from_end_bytes=_LOG_BYTES).new_bytes().decode(errors="replace")
    last_lines = [line.strip() for line in end.splitlines() if line.strip()]
    errors = [line for line in last_lines if line.startswith("airlock: ")]
    return (errors or last_lines or [""])[-1].removeprefix("airlock: ")[:1000]
