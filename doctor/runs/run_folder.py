"""The verdict on one of Airlock's own runs, from its folder: events say more than any log."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from doctor.logs.choose import suspects
from doctor.logs.diagnosis import search, verdict_of
from doctor.logs.reading import STDIN, Log, natural, rank_of_name
from doctor.logs.rules import ROLES
from doctor.logs.search import Found
from doctor.logs.sightings import Sighting
from doctor.logs.verdict import Verdict, first_line_with, written_verdict
from doctor.runs.hang_verdict import of_hang
from doctor.runs.left_early import left_early
from doctor.runs.running import of_live
from machine.processes.runs import OVER, processes_of
from machine.typed import typed_run
from rundir.config_file import is_of_script
from rundir.errors import ExitCode
from rundir.events import Event, read_events
from rundir.files.reading import json_object
from rundir.paths import RunDir, find_run, shown
from state.blame import Failure
from state.run_state import RunState, new_state

_ATTEMPT = re.compile(r'"attempt": (\d+)')
_REFUSALS = {
    ExitCode.USAGE: ("wrong-usage", "{typed}   # once what it names is mended"),
    ExitCode.DOES_NOT_FIT: ("does-not-fit", "{plan}   # says what would fit"),
    ExitCode.PREFLIGHT: ("machine-not-ready", "{preflight}"),
    ExitCode.DATA: ("data-unusable", "{typed}   # once the data are as docs/data.md says"),
    ExitCode.OUT_OF_MEMORY: (
        "memory-guard",
        "{typed} --set data.max_samples=1000   # say; or a machine with more memory",
    ),
}


def of_run(run: RunDir) -> Verdict:
    """Return the verdict on a run that is over, live, or was cut off. Raises RuleError."""
    events = read_events(run.events)
    state = read_state(run, events)
    status = state.status
    if status.phase == "done":
        before = f", after restarts: {'; '.join(state.restarts)}" if state.restarts else ""
        return _fine(f"The run is done: step {status.step}{before}", "no action needed")
    if status.phase == "interrupted":
        saved = "what the script saved is its own" if state.of_script else "nothing was saved"
        if state.last_checkpoint is not None:
            saved = f"the checkpoint after step {state.last_checkpoint} is saved"
        return _fine(f"The run was stopped on request; {saved}", _resume(run, state))
    if status.phase not in OVER and processes_of(run).launcher is not None:
        return of_live(run, state, events)
    return of_failed(run, state)


def of_failed(run: RunDir, state: RunState, most_bytes: int | None = None) -> Verdict:
    """Return the verdict on a run that is over, or whose launcher is dead. Raises RuleError.

    With `most_bytes`, at most that much of each log is read, from its head and its tail.
    """
    root = state.root_failure()
    attempt = state.status.attempt
    if root is not None and root.exit_code == ExitCode.HANG:
        return of_hang(run.incident(attempt)) or _hang(run, root)
    results = search(_logs(run, attempt, most_bytes))
    results.first_failed_rank = None if root is None else root.rank  # known from events
    ordered = [suspect for suspect in suspects(results) if _is_of_attempt(suspect, attempt)]
    ordered = [suspect for suspect in ordered if root is None or not _follows(suspect, root)]
    ordered.sort(key=lambda suspect: _order(suspect, root))
    if ordered and ordered[0].rule.cause == "gloo-timeout" and (late := _waited_for(run, attempt)):
        return late
    if ordered and (root is not None or ordered[0].rule.role == "root"):
        verdict = verdict_of(ordered, results)
        if left := left_early(run, state, verdict):
            return left
        if ordered[0].rule.fix_in_profile and not state.of_script:
            typed = typed_run(run, state.status.profile).again()
            fix = ordered[0].rule.fix_in_profile.replace("{typed}", typed)
            verdict = replace(verdict, fix=fix)
        return _with_state(verdict, root)
    if state.status.phase not in OVER:
        return _cut_off(run, state)
    return _refused(run, state) if state.status.error else _agent_ended(run, ordered, results)


def read_state(run: RunDir, events: Sequence[Event]) -> RunState:
    """Reconstruct the launcher's state of a run from the files that it has written."""
    status = json_object(run.status)  # {}: not written yet, or the disk is full
    num_ranks = 1 + max((event["rank"] or 0 for event in events), default=0)
    num_ranks = len(status.get("ranks", ())) or num_ranks
    profile = status.get("profile", "")
    state = new_state(run.run_id, profile, num_ranks, of_script=is_of_script(run.config))
    for event in events:
        if event["name"] == "rank.gone":  # upon which the launcher ends the others
            others = {row.rank for row in state.status.ranks} - {event["failed_rank"]}
            state.ended_by_us |= others
        with contextlib.suppress(KeyError):  # from an older version with fewer fields
            state.add(event)
    for key in ("phase", "started_t", "exit_code", "error", "fix"):
        setattr(state.status, key, status.get(key, getattr(state.status, key)))
    return state


def _logs(run: RunDir, attempt: int, most_bytes: int | None) -> list[Log]:
    """Return the last attempt's logs, then its events, which say less, and the agent's log last."""
    ranks = sorted(run.rank_log(0, attempt).parent.glob("rank*.log"), key=natural)
    events = sorted(run.events.glob("*.jsonl"), key=natural)
    paths = [*ranks, run.zygote_log, *events, run.agent_log]
    return [
        Log(shown(path), path, rank_of_name(path), most_bytes) for path in paths if path.is_file()
    ]


def _is_of_attempt(suspect: Sighting, attempt: int) -> bool:
    """Return whether a sighting is of that attempt: event files hold the events of all attempts."""
    number = _ATTEMPT.search(suspect.text) if _is_event(suspect) else None
    return number is None or int(number[1]) == attempt


def _is_event(suspect: Sighting) -> bool:
    return suspect.log.name.endswith(".jsonl")


def _follows(suspect: Sighting, root: Failure) -> bool:
    """Return whether a suspect merely follows from the root failure, like another rank's end.

    If the root's rank was killed from outside, everything that other ranks say follows from that.
    If a rank raised an exception, the fact that it ended adds nothing, and what the zygote printed
    was got over: the rank was forked after it.
    """
    if root.traceback is not None and root.rank is not None and _is_zygotes(suspect):
        return True
    is_other = suspect.rank not in (None, root.rank)
    is_end = _is_event(suspect) and suspect.rule.role == "symptom"
    is_bare = suspect.rule.cause in ("rank-exited", "rank-ended-early")
    if _is_event(suspect) and is_bare and root.traceback is not None:
        return True
    return (is_other and is_end) or (_was_killed(root) and is_other)


def _is_zygotes(suspect: Sighting) -> bool:
    return suspect.log.path is not None and suspect.log.path.stem == "zygote"


def _was_killed(root: Failure) -> bool:
    """Return whether the rank was ended by a signal from outside rather than its own fault."""
    return root.title in ("killed by SIGKILL", "killed by SIGTERM")


def _order(suspect: Sighting, root: Failure | None) -> tuple[int, bool, bool]:
    """Sort by role; within a role, the log or event of the root failure's own rank comes first.

    If that rank was killed, the event says all: an exception in its log is an older one.
    """
    is_other = root is not None and suspect.rank != root.rank
    is_event_first = root is not None and _was_killed(root)
    return ROLES.index(suspect.rule.role), is_other, is_event_first and not _is_event(suspect)


def _with_state(verdict: Verdict, root: Failure | None) -> Verdict:
    """Add the failed rank, and what the launcher itself found out about its end."""
    if root is None:
        return verdict
    if verdict.rank is None:
        verdict = replace(verdict, rank=root.rank)
    if verdict.cause not in ("memory-guard", "host-oom-killed") or not root.notes:
        return verdict
    advice = [note.removeprefix("→ ") for note in root.notes if note.startswith("→ ")]
    notes = [note for note in root.notes if not note.startswith("→ ")]
    why = f"{root.who} was {root.title}; {'; '.join(notes)}."
    why = why[0].upper() + why[1:]
    return replace(verdict, why=why, fix=advice[0], is_proven=True)


def _waited_for(run: RunDir, attempt: int) -> Verdict | None:
    """Name the rank that a timed-out rank waited for (launch/start/agent/timeout_evidence.py)."""
    verdict = of_hang(run.incident(attempt))
    return None if verdict is None or verdict.cause == "hang" else verdict


def _hang(run: RunDir, root: Failure) -> Verdict:
    """Return the verdict on a hung run of which no evidence could be saved."""
    logs = shown(run.rank_log(root.rank or 0, 0).parent)
    evidence = first_line_with(run.event_file("launch"), '"name": "hang"')
    words = {"title": root.title, "logs": logs}
    return written_verdict("run.no_evidence", words, rank=root.rank, evidence=evidence)


def _cut_off(run: RunDir, state: RunState) -> Verdict:
    words = {"phase": state.status.phase, "resume": _resume(run, state)}
    evidence = first_line_with(run.status, '"launch_pid"')
    return written_verdict("run.cut_off", words, evidence=evidence)


def _refused(run: RunDir, state: RunState) -> Verdict:
    """Return the verdict on a run that ended before its ranks began, in the launcher's words."""
    status = state.status
    code = ExitCode(status.exit_code or ExitCode.RANK_FAILED)
    cause, fix = _REFUSALS.get(code, ("run-failed", f"less {shlex.quote(shown(run.agent_log))}"))
    if code == ExitCode.DATA and status.fix:
        fix = "{fix}\n→ {typed}   # then"
    typed = typed_run(run, status.profile)
    words = {"fix": status.fix, "typed": typed.again(), "plan": typed.question("plan")}
    told = {
        "cause": cause,
        "title": status.error or "",
        "code": code,
        "fix": fix.format(**words, preflight=typed.question("preflight")),
    }
    return written_verdict("run.refused", told, evidence=first_line_with(run.status, '"error"'))


def _agent_ended(run: RunDir, ordered: Sequence[Sighting], results: Found) -> Verdict:
    """Return the verdict on a run in which no rank has failed."""
    if ordered:
        return verdict_of(ordered, results)
    evidence = first_line_with(run.status, '"exit_code"')
    return written_verdict("run.agent_ended", {"log": shown(run.agent_log)}, evidence=evidence)


def _fine(title: str, fix: str) -> Verdict:
    return written_verdict("run.fine", {"title": title, "fix": fix})


def _resume(run: RunDir, state: RunState) -> str:
    typed = typed_run(run, state.status.profile)
    if state.of_script or state.last_checkpoint is None:
        return typed.again()
    return state.resume_command or typed.resumed(run)


def find_folder(name: str) -> RunDir | None:
    """Find the run called `name`, if any: a run folder, a folder of runs, an id, or `latest`."""
    if name == STDIN or Path(name).is_file():
        return None
    for folder in (name, str(Path(name) / "latest")):
        with contextlib.suppress(ValueError):
            return find_run(folder)
    return None
