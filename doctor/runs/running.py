"""The verdict on a live run: what it is doing, who waits for whom, or that it is stuck."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from doctor.logs.verdict import Evidence, Verdict, written_verdict
from doctor.runs.hang_seen import places, rows_of
from doctor.runs.hang_verdict import of_hang
from doctor.runs.may_be_well import may_end, not_known, waits_for
from doctor.runs.rank_progress import (
    JOINS,
    TRAINS,
    RankProgress,
    behind,
    progress_of_ranks,
    ranks_of,
    told,
)
from machine.processes.runs import processes_of
from rundir.config_file import read_config
from rundir.events import Event
from rundir.paths import RunDir, shown
from rundir.units import clock_text
from state.hang import Hang
from state.hang_evidence import collect
from state.hang_limit import allowed_s
from state.run_state import RunState

_SHARE = 0.5  # of the hang timeout: whoever asks has seen something odd
_LOOK_S = 30.0  # silent for so long, the ranks are asked where they are
_WAITS_S = 10.0  # a rank that waits for others less long than this may be in any step
_START_S = 120.0  # for a rank that is starting and neither computes nor reads
_SAMPLE_S = 0.5
_NUM_INTERVALS = 20


def of_live(run: RunDir, state: RunState, events: Sequence[Event]) -> Verdict:
    """Return the verdict on a run whose launcher is alive."""
    now_t = time.time()
    ranks = progress_of_ranks(state, events)
    if state.status.phase == "preparing" or not any(rank.pid for rank in ranks):
        return _goes_on(state, _before_ranks(state, now_t))
    late = behind(ranks)
    look_s = _look_s(run)
    is_warned = _is_warned(state, events)
    if late or any(rank.stage != TRAINS for rank in ranks):
        return _of_start(run, state, ranks, late, now_t, is_warned=is_warned)
    silent_s, limit_s = _silence(run, state, events, now_t)
    if silent_s <= look_s:
        last = f"it last reported {clock_text(silent_s)} ago"
        return _goes_on(state, f"{told(ranks, now_t)}; {last}")
    return _silent(run, state, ranks, silent_s, limit_s, is_warned=is_warned)


def _is_warned(state: RunState, events: Sequence[Event]) -> bool:
    """Return whether the launcher has said that the run hangs, and has not taken it back."""
    names = [event["name"] for event in events if event["attempt"] == state.status.attempt]
    warnings = [name for name in names if name in ("hang", "hang.over")]
    return warnings[-1:] == ["hang"]


def _look_s(run: RunDir) -> float:
    """Return the seconds of silence after which the ranks are asked where they are."""
    asked_s = read_config(run.config).launch.hang_timeout_s
    return min(_LOOK_S, _SHARE * asked_s) if asked_s > 0 else _LOOK_S


def _of_start(
    run: RunDir,
    state: RunState,
    ranks: Sequence[RankProgress],
    late: Sequence[RankProgress],
    now_t: float,
    *,
    is_warned: bool,
) -> Verdict:
    """Judge a run whose ranks are not all training yet."""
    joining_s = [now_t - rank.since_t for rank in ranks if rank.stage == JOINS]
    look_s = _look_s(run)
    if joining_s and max(joining_s) > look_s:
        hang = Hang(still_s=max(joining_s), limit_s=look_s)
        folder = _collected(run, state, ranks, hang)
        verdict = of_hang(folder)
        if verdict is not None and not is_warned and may_end(run, verdict, rows_of(folder)):
            return waits_for(run, state, verdict)
        if verdict is not None and verdict.cause != "hang":
            return _hangs(run, verdict, "The run hangs")
    stuck = [rank for rank in late or ranks if _is_stuck(rank, now_t)]
    if stuck:
        return _stuck(run, stuck, ranks, now_t)
    whom = f": the others wait for {ranks_of(late)}" if late else ""
    return _goes_on(state, f"{told(ranks, now_t)}{whom}")


def _before_ranks(state: RunState, now_t: float) -> str:
    if state.status.phase == "preparing":
        since = clock_text(max(0.0, now_t - state.status.started_t))
        return f"model and data are made ready, since {since}"
    return f"the zygote is {state.zygote}" if state.zygote else "no rank is there yet"


def _goes_on(state: RunState, what: str) -> Verdict:
    status = state.status
    step = f", step {status.step} of {status.total_steps}" if status.total_steps else ""
    words = {"progress": f"{status.phase}{step}", "what": what[0].upper() + what[1:]}
    return written_verdict("run.goes_on", words)


def _is_stuck(rank: RankProgress, now_t: float) -> bool:
    """Return whether a starting rank has been in one state for long and is completely idle."""
    return now_t - rank.since_t > _START_S and rank.pid is not None and not _moves(rank.pid)


def _moves(pid: int) -> bool:
    """Return whether a process computes or reads."""
    try:
        process = psutil.Process(pid)
        before = process.cpu_times()[:4], process.io_counters()[4:6]
        time.sleep(_SAMPLE_S)
        return (process.cpu_times()[:4], process.io_counters()[4:6]) != before
    except psutil.Error:
        return False


def _silence(
    run: RunDir, state: RunState, events: Sequence[Event], now_t: float
) -> tuple[float, float]:
    """Return (seconds without a sign of progress, the most that is considered normal)."""
    asked_s = read_config(run.config).launch.hang_timeout_s
    ours = [event for event in events if event["rank"] is not None]
    last_t = max((event["t"] for event in ours), default=state.status.started_t)
    if state.of_script:
        logs = [run.rank_log(row.rank, state.status.attempt) for row in state.status.ranks]
        last_t = max([last_t, *(log.stat().st_mtime for log in logs if log.exists())])
        return now_t - last_t, _SHARE * allowed_s(asked_s, is_slow=True)
    last = max(ours, key=lambda event: float(event["mono"]), default=None)
    times = [event["t"] for event in ours if event["name"] == "train"][-_NUM_INTERVALS:]
    intervals_s = [b - a for a, b in pairwise(times)][1:]  # the first includes compilation
    step_s = statistics.median(intervals_s) if intervals_s else 0.0
    is_aside = not intervals_s or (last is not None and last["kind"] == "start")
    return now_t - last_t, _SHARE * allowed_s(asked_s, step_s=step_s, is_slow=is_aside)


def _silent(
    run: RunDir,
    state: RunState,
    ranks: Sequence[RankProgress],
    silent_s: float,
    limit_s: float,
    *,
    is_warned: bool,
) -> Verdict:
    """Judge a run that has trained and reports nothing any more, by the stacks of its ranks."""
    folder = _collected(run, state, ranks, Hang(still_s=silent_s, limit_s=limit_s))
    verdict = of_hang(folder)
    step = f" since step {state.status.step}" if state.status.step else ""
    if verdict is None:
        return not_known(state, silent_s, "its ranks do not show where they are", ())
    rows = rows_of(folder)
    is_told = verdict.cause not in ("hang", "rank-behind", "collective-mismatch")
    waits = [row["waits_s"] for row in rows if row.get("waits_s") is not None]
    waits_long = not waits or max(waits) > min(_WAITS_S, _look_s(run))
    if not is_told and (not waits_long or _is_healthy(state, rows, silent_s, limit_s)):
        return not_known(state, silent_s, places(folder), verdict.evidence)
    if verdict.cause == "hang" and not waits and silent_s <= limit_s:
        return not_known(state, silent_s, places(folder), verdict.evidence)
    if state.of_script and not is_warned and may_end(run, verdict, rows):
        return waits_for(run, state, verdict)
    return _hangs(run, verdict, f"The run hangs{step}")


def _is_healthy(
    state: RunState, rows: Sequence[Mapping[str, Any]], silent_s: float, limit_s: float
) -> bool:
    """Return whether a step of our trainer may take as long, with a rank that waits or not."""
    has_left = any(row.get("left") for row in rows)
    return not state.of_script and silent_s <= limit_s and not has_left


def _collected(run: RunDir, state: RunState, ranks: Sequence[RankProgress], hang: Hang) -> Path:
    """Ask the ranks where they are; return the folder of the evidence."""
    ours = {process.pid for process in processes_of(run).processes}
    # One that has ended is not ours any more, and its pid not anybody else's yet.
    pids = {
        rank.rank: rank.pid
        for rank in ranks
        if rank.pid is not None and (rank.pid in ours or not psutil.pid_exists(rank.pid))
    }
    return collect(run, state.status.attempt, pids, hang)


def _hangs(run: RunDir, verdict: Verdict, title: str) -> Verdict:
    is_stopped = verdict.cause == "rank-stopped"  # it continues as if nothing had happened
    fix = verdict.fix if is_stopped else f"{verdict.fix}\n  {_stop(run)}"
    return replace(verdict, title=f"{title}: {verdict.title}", fix=fix)


def _stuck(
    run: RunDir, stuck: Sequence[RankProgress], ranks: Sequence[RankProgress], now_t: float
) -> Verdict:
    """Judge a run that never starts training."""
    first = stuck[0]
    words = {"stuck": told(stuck, now_t), "ranks": told(ranks, now_t), "stop": _stop(run)}
    evidence = _last_event(run, first.rank)
    return written_verdict("run.stuck", words, rank=first.rank, evidence=evidence)


def _last_event(run: RunDir, rank: int) -> tuple[Evidence, ...]:
    path = run.event_file(f"rank{rank}")
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return (Evidence(shown(path), len(lines), lines[-1]),) if lines else ()


def _stop(run: RunDir) -> str:
    return f"./airlock stop {run.run_id}   # then mend what the stacks show, and start it again"
