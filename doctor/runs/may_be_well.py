"""The verdicts on a live run that is silent and may be well: a look cannot tell it from a hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from doctor.logs.verdict import Evidence, Verdict, written_verdict
from rundir.config_file import read_config
from rundir.paths import RunDir
from rundir.units import clock_text
from state.hang_limit import LEAST_S, allowed_s
from state.run_state import RunState

_AT_WORK = ("rank-behind", "data-worker-stuck")  # causes that are none if it is just slow


def may_end(run: RunDir, verdict: Verdict, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the rank that others wait for may be at work, of which the launcher is judge.

    If that has been told not to watch, a long wait counts as a hang.
    """
    if verdict.cause not in _AT_WORK:
        return False
    waited_s = max((row["waits_s"] for row in rows if row.get("waits_s") is not None), default=0.0)
    return _is_watched(run) or waited_s <= LEAST_S


def _is_watched(run: RunDir) -> bool:
    return read_config(run.config).launch.hang_timeout_s != 0


def waits_for(run: RunDir, state: RunState, verdict: Verdict) -> Verdict:
    """Say for whom ranks wait, who may be at work: an evaluation, a download, a checkpoint."""
    when = (
        "Its launcher warns once that rank moves neither its stack nor its CPU time nor files for "
        f"{clock_text(allowed_s(read_config(run.config).launch.hang_timeout_s))} or longer."
        if _is_watched(run)
        else "Its launcher does not watch for hangs (launch.hang_timeout_s=0)."
    )
    words = {
        "title": verdict.title,
        "why": verdict.why.replace("No rank made progress for", "The run has been silent for", 1),
        "when": when,
        "run": state.status.run_id,
    }
    return written_verdict("run.waits", words, rank=verdict.rank, evidence=verdict.evidence)


def not_known(
    state: RunState, silent_s: float, where: str, evidence: tuple[Evidence, ...]
) -> Verdict:
    """Say where the ranks of a silent run are, which may be well, or not."""
    status, silent = state.status, clock_text(silent_s)
    words = {"run": status.run_id, "phase": status.phase, "silent": silent, "where": where}
    return written_verdict("run.not_known", words, evidence=evidence)
