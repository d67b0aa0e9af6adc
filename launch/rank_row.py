"""One rank's row of status.json, from the events of that rank."""

from __future__ import annotations

from rundir.events import Event
from rundir.status import RankStatus

# A rank's phase after an event of that kind and name.
_RANK_PHASES = {
    ("start", "lock.wait"): "waiting",
    ("start", "lock.hold"): "importing",
    ("start", "model.load"): "loading",
    ("end", "lock.hold"): "ready",
    ("start", "script"): "loading",
    ("end", "pg.init"): "training",
    ("end", "ddp.wrap"): "training",
    ("error", "rank.exception"): "failed",
}


def update_rank(row: RankStatus, event: Event) -> None:
    """Bring a rank's row up to date with an event of that rank."""
    row.pid = event["pid"]
    row.last_event_t = event["t"]
    if row.phase != "failed":  # what it does yet, on its way out, makes it no better
        row.phase = _RANK_PHASES.get((event["kind"], event["name"]), row.phase)
    if event["kind"] == "mark" and event["name"].startswith("mem."):
        row.rss_bytes = event["rss_bytes"]
        row.pss_anon_bytes = event["pss_anon_bytes"]
        row.gpu_used_bytes = event["gpu_used_bytes"]
