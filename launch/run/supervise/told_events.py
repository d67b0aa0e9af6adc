"""The events of a run that `--on-event` tells of: one table, from events in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rundir.events import Event
from rundir.exit_codes import ExitCode
from rundir.masking import Mask
from rundir.paths import RunDir
from state.run_state import RunState

Facts = dict[str, Any]
_LONGEST_TEXT = 4000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A kind of event to tell of: its name for the command, and its own facts."""

    name: str
    facts: Callable[[Event], Facts]


def _fields(*names: str) -> Callable[[Event], Facts]:
    return lambda event: {name: event.get(name) for name in names}


# By (kind, name) of the run's own events. A new kind needs a row here and in docs/watching.md.
TOLD: Mapping[tuple[str, str], Told] = {
    ("error", "hang"): Told(
        name="hang",
        facts=_fields("failed_rank", "cause", "title", "still_s", "limit_s", "ends"),
    ),
    ("mark", "stall"): Told(
        name="stall",
        facts=lambda event: {
            "what": event["waiting"],
            "waited_s": event["waited_s"],
            "limit_s": event["limit_s"],
        },
    ),
    ("mark", "loss.bad"): Told(
        name="bad-loss",
        facts=lambda event: {
            "what": event["text"],
            "answer": event["answer"],
            "step": event["step"],
            "loss": event["loss"],
            "usual": event["usual"],
            "limit": event["limit"],
            "samples": event["samples"],
        },
    ),
    ("mark", "restart"): Told(
        name="failure",
        facts=lambda event: {
            "what": event["cause"],
            "is_restarted": True,
            "num_restarts": event["num_restarts"],
        },
    ),
}


def common_facts(name: str, run: RunDir, state: RunState) -> Facts:
    """Return what every event says: which run, how far it is, and what to type to look at it."""
    status = state.status
    return {
        "event": name,
        "run": status.run_id,
        "folder": str(run.path),
        "profile": status.profile,
        "phase": status.phase,
        "attempt": status.attempt,
        "step": status.step,
        "total_steps": status.total_steps,
        "loss": status.loss,
    }


def facts_of_failure(run: RunDir, state: RunState) -> Facts:
    """Return the facts of a run that has failed for good."""
    root, archive = state.root_failure(), run.incident_archive
    return {
        "what": root.summary if root else state.status.error,
        "failed_rank": root.rank if root else None,
        "is_restarted": False,
        "incident": str(archive) if archive.exists() else None,
    }


def facts_of_end(code: ExitCode, seconds: float, run: RunDir, state: RunState) -> Facts:
    """Return the facts of a run that is over."""
    return {
        "exit_code": int(code),
        "meaning": code.meaning,
        "seconds": round(seconds, 1),
        "last_checkpoint": state.last_checkpoint,
        "model": str(run.model) if run.model.is_dir() else None,
    }


def masked(value: Any, mask: Mask) -> Any:
    """Return facts with secrets masked in each text, and texts cut to a length one can read."""
    if isinstance(value, str):
        return mask.text(value)[:_LONGEST_TEXT]
    if isinstance(value, Mapping):
        return {name: masked(item, mask) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, mask) for item in value]
    return value
