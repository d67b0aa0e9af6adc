"""Why a training failed: what the doctor says, or else what ./start.sh said last."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from inbox.attempt import log_of, status_of
from inbox.inbox_settings import InboxSettings
from inbox.jobs import InboxJob
from inbox.layout import Layout
from rundir.files.growing import GrowingFile
from rundir.paths import RunDir

_DOCTOR_S = 300.0  # it reads files
_LOG_BYTES = 64 * 1024  # of its end, looked at for an error


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
