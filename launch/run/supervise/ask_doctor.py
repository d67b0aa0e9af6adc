"""The doctor's verdict on a run that this launcher watches: the only place that asks for one.

Import this late: it loads the doctor, which a run that goes well never needs.
"""

from __future__ import annotations

import textwrap

from doctor.logs.verdict import Verdict
from doctor.runs.hang_verdict import of_hang
from doctor.runs.run_folder import of_failed
from rundir.errors import ExitCode
from rundir.paths import RunDir
from state.hang import Hang
from state.hang_evidence import collect
from state.run_state import RunState

_MOST_BYTES, _LEAST_BYTES = 6 << 20, 1 << 18  # of all logs, of each: a report must not wait long
_WIDTH = 100


def of_hung(run: RunDir, state: RunState, hang: Hang) -> Verdict | None:
    """Return the verdict on who keeps the others waiting now, or None if that cannot be told.

    Collects the evidence, which asks the ranks for their stacks and takes seconds.
    """
    pids = {row.rank: row.pid for row in state.status.ranks if row.pid is not None}
    return of_hang(collect(run, state.status.attempt, pids, hang))


def examined(run: RunDir, state: RunState) -> Verdict | str:
    """Return the verdict on a failed run, or a text that says what kept the doctor from one."""
    try:
        num_files = 2 * len(state.status.ranks) + 4
        return of_failed(run, state, max(_LEAST_BYTES, _MOST_BYTES // num_files))
    except Exception as error:  # noqa: BLE001 - the run's own failure matters more
        return f"airlock doctor could not look at it: {type(error).__name__}: {error}"


def advice(verdict: Verdict | str, state: RunState) -> list[str]:
    """Return lines for the report: what a rule of the doctor found in the logs, why, and the fix.

    Empty when the launcher knows as much by itself. An error in the doctor takes one line, and no
    more: the report stands without it.
    """
    if isinstance(verdict, str):
        return [verdict]
    root = state.root_failure()
    if root is not None and root.exit_code == ExitCode.HANG:  # the report has the title already
        return [*textwrap.wrap(verdict.why, _WIDTH), f"→ {verdict.fix}"]
    if verdict.role == "symptom" and verdict.cause.startswith("killed-by-"):
        return [f"→ {verdict.fix}"]
    has_traceback = root is not None and root.traceback is not None
    is_told = not verdict.evidence or verdict.evidence[0].file.endswith((".jsonl", "status.json"))
    if is_told or (verdict.role == "symptom" and has_traceback):
        return []
    return [verdict.title, *textwrap.wrap(verdict.why, _WIDTH), f"→ {verdict.fix}"]
