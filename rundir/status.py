"""status.json: the state of a run at a glance; its only writer is `launch` on node 0."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from rundir.atomic import write_text
from rundir.paths import RunDir
from rundir.schema import PHASES, RANK_PHASES, VERSION


@dataclass(slots=True, kw_only=True)
class RankStatus:
    """One rank; memory is in bytes, as last measured at a memory mark of the rank."""

    rank: int
    phase: str = "spawn"
    pid: int | None = None
    rss_bytes: int | None = None
    pss_anon_bytes: int | None = None
    gpu_used_bytes: int | None = None
    last_event_t: float | None = None


@dataclass(slots=True, kw_only=True)
class Status:
    """The whole run; times are Unix seconds."""

    run_id: str
    profile: str
    phase: str = "preparing"
    started_t: float = 0.0
    updated_t: float = 0.0
    launch_pid: int = 0
    attempt: int = 0  # restarts so far
    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    lr: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    exact_match: float | None = None
    eta_s: float | None = None
    exit_code: int | None = None
    preempted: bool = False  # interrupted by SIGTERM, as schedulers do it
    error: str | None = None
    fix: str | None = None  # of the error: what to type or to change
    waiting: str | None = None  # which rank has waited long for which, in words; no fault as such
    ranks: list[RankStatus] = field(default_factory=list)


def write_status(run: RunDir, status: Status) -> None:
    """Replace status.json in one step. Raises OSError (a full disk)."""
    assert status.phase in PHASES, status.phase
    assert all(row.phase in RANK_PHASES for row in status.ranks), status.ranks
    text = json.dumps({"v": VERSION, **asdict(status)}, indent=1) + "\n"
    write_text(run.status, text, durable=False)  # a host crash may lose it, never truncate it


def read_status(run: RunDir) -> dict[str, Any]:
    """Return status.json as it is now. Raises FileNotFoundError before its first write."""
    status: dict[str, Any] = json.loads(run.status.read_text(encoding="utf-8"))
    return status
