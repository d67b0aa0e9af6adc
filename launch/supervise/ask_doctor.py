"""What the doctor says of a run that this launcher watches: the one place where it is asked.

Import this late: it loads the doctor, which a run that goes well never needs.
"""

from __future__ import annotations

import textwrap

from diagnostics.doctor.logs.verdict import Verdict
from diagnostics.doctor.runs.hang_verdict import of_hang
from diagnostics.doctor.runs.run_folder import of_failed
from launch.run_state.hang import Hang
from launch.run_state.hang_evidence import collect
from launch.run_state.state import RunState
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir

_MOST_BYTES, _LEAST_BYTES = 6 << 20, 1 << 18  # of all logs, of each: a report must not wait long
_WIDTH = 100


def of_hung(run: RunDir, state: RunState, hang: Hang) -> Verdict | None:
    """Who keeps the others waiting, from what the ranks do now; None where that is not to be told.

    Collects the evidence, which asks the ranks for their stacks and takes seconds.
    """
    pids = {row.rank: row.pid for row in state.status.ranks if row.pid is not None}
    return of_hang(collect(run, state.status.attempt, pids, hang))


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
