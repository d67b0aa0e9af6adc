"""The events of a run that `--on-event` tells of: one table, from events in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rundir.errors import ExitCode
from rundir.events import Event
from rundir.masking import Mask
from rundir.paths import RunDir
from state.run_state import RunState

Facts = dict[str, Any]
_LONGEST_TEXT = 4000  # characters


class Notice(NamedTuple):
    """A kind of event to tell of: its name for the command, and its own facts."""

    name: str
    facts: Callable[[Event], Facts]


def _fields(*names: str, **of_field: str) -> Callable[[Event], Facts]:
    """Return a function from an event to some of its fields, those of `of_field` renamed."""
    fields = of_field | dict(zip(names, names, strict=True))
    return lambda event: {fact: event.get(name) for fact, name in fields.items()}


# By (kind, name) of the run's own events. A new kind needs a row here and in docs/watching.md.
NOTICES: Mapping[tuple[str, str], Notice] = {
    ("error", "hang"): Notice(
        "hang", _fields("failed_rank", "cause", "title", "still_s", "limit_s", "ends")
    ),
    ("mark", "stall"): Notice("stall", _fields("waited_s", "limit_s", what="waiting")),
    ("mark", "loss.bad"): Notice(
        "bad-loss", _fields("answer", "step", "loss", "usual", "limit", "samples", what="text")
    ),
    ("mark", "restart"): Notice(
        "failure",
        lambda event: _fields("num_restarts", what="cause")(event) | {"is_restarted": True},
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
