"""The doctor at the end of a run that failed: what it adds to the launcher's own report."""

from __future__ import annotations

import textwrap

from diagnostics.doctor.runs.run_folder import of_failed
from diagnostics.doctor.logs.verdict import Verdict
from launch.run_state.state import RunState
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir

_MOST_BYTES, _LEAST_BYTES = 6 << 20, 1 << 18  # of all logs, of each: a report must not wait long
_WIDTH = 100


def examined(run: RunDir, state: RunState) -> Verdict | str:
    """The verdict on a run that failed, or what kept the doctor from one."""
    try:
        num_files = 2 * len(state.status.ranks) + 4
        return of_failed(run, state, max(_LEAST_BYTES, _MOST_BYTES // num_files))
    except Exception as error:  # noqa: BLE001 - whatever it is, the run's own failure matters more
        return f"airlock doctor could not look at it: {type(error).__name__}: {error}"


def advice(verdict: Verdict | str, state: RunState) -> list[str]:
    """Lines for the report: what a rule knows from the logs, why, and the fix.

    None when the launcher knows as much by itself. A fault of a rule is said, and no more: the
    report stands without it.
    """
    if isinstance(verdict, str):
        return [verdict]
    root = state.root_failure()
    if root is not None and root.exit_code == ExitCode.HANG:  # the report has its title
        return [*textwrap.wrap(verdict.why, _WIDTH), f"→ {verdict.fix}"]
    if verdict.role == "symptom" and verdict.cause.startswith("killed-by-"):
        return [f"→ {verdict.fix}"]
    has_traceback = root is not None and root.traceback is not None
    is_told = not verdict.evidence or verdict.evidence[0].file.endswith((".jsonl", "status.json"))
    if is_told or (verdict.role == "symptom" and has_traceback):
        return []
    return [verdict.title, *textwrap.wrap(verdict.why, _WIDTH), f"→ {verdict.fix}"]
