"""Why a training failed: what the doctor says, or else what ./start.sh said last."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from inbox.attempt import log_of, status_of
from inbox.jobs import Job
from inbox.layout import Layout
from inbox.settings import Settings
from rundir.paths import RunDir

_DOCTOR_S = 300.0  # it reads files
_LOG_BYTES = 64 * 1024  # of its end, looked at for an error


def why_failed(
    job: Job, run: RunDir | None, ended: str, settings: Settings, layout: Layout
) -> tuple[str, str]:
    """Return (reason, fix) of a job's last attempt; `ended` is what its exit code means."""
    why, fix = ask_doctor(run, settings, layout) if run else ("", "")
    why = why.removesuffix(
        f": Exit code {status_of(run).get('exit_code')}: {ended}."
    )  # `ended` is said already
    reason = why or str(status_of(run).get("error") or "") or last_error(log_of(job))
    return (f"{ended}: {reason}" if reason else ended), fix


def ask_doctor(run: RunDir, settings: Settings, layout: Layout) -> tuple[str, str]:
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
        if verdict["cause"] in ("unknown", ""):
            return "", ""
        why = f"{verdict['title']}: {verdict['why']}" if verdict.get("why") else verdict["title"]
        fix = verdict.get("fix") or ""
        return str(why), fix if isinstance(fix, str) else "\n".join(map(str, fix))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError, TypeError):
        return "", ""  # the exit code and the log are told instead


def last_error(log: Path) -> str:
    """Return what ./start.sh itself said last: its error, without what to type next."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    last_lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in last_lines if line.startswith("airlock: ")]
    return (errors or last_lines or [""])[-1].removeprefix("airlock: ")[:1000]
