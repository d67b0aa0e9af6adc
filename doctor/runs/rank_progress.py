"""The progress of each rank of a live run, from its events: who is behind, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rundir.events import Event
from rundir.units import clock_text
from state.run_state import RunState

STARTED, AT_GATE, INSIDE, WAITS_FOR_ALL, JOINS, WRAPS, TRAINS = range(7)

# For each open span: the stage of a rank that is in it, and what it is doing.
_SPANS = {
    "lock.wait": (AT_GATE, "waits at the gate"),
    "lock.hold": (INSIDE, "is inside the gate"),
    "import": (INSIDE, "imports"),
    "model.load": (INSIDE, "loads the model"),
    "all_loaded.wait": (WAITS_FOR_ALL, "waits until every rank has loaded"),
    "pg.init": (JOINS, "joins the process group"),
    "ddp.wrap": (WRAPS, "wraps the model in DDP"),
    "eval": (TRAINS, "evaluates"),
    "evolution": (TRAINS, "writes answers"),
    "checkpoint": (TRAINS, "writes a checkpoint"),
    "export": (TRAINS, "writes the model"),
}
_LAST_OF_START = ("pg.init", "ddp.wrap")  # of a script, and of our trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """The stage of a rank, what it is doing, and since when, in Unix seconds."""

    rank: int
    pid: int | None
    stage: int
    doing: str
    since_t: float


def progress_of_ranks(state: RunState, events: Sequence[Event]) -> list[RankProgress]:
    """Return the progress of every rank, in rank order."""
    attempt = state.status.attempt
    of_rank: dict[int, list[Event]] = {row.rank: [] for row in state.status.ranks}
    for event in events:
        if event["rank"] in of_rank and event["attempt"] == attempt:
            of_rank[event["rank"]].append(event)
    return [
        _progress(row.rank, row.pid, of_rank[row.rank], state.status.started_t)
        for row in state.status.ranks
    ]


def _progress(
    rank: int, pid: int | None, events: Sequence[Event], started_t: float
) -> RankProgress:
    stage, doing, since_t = STARTED, "is being started", started_t
    open_spans: dict[str, Event] = {}
    for event in events:
        name = event["name"]
        if event["kind"] == "start" and name in _SPANS:
            open_spans[name] = event
        elif event["kind"] == "end":
            open_spans.pop(name, None)
        since_t = event["t"]
        if event["kind"] == "end" and name in _LAST_OF_START:
            stage, doing = TRAINS, "trains"
    if open_spans:
        last = list(open_spans)[-1]
        stage, doing = _SPANS[last]
        since_t = open_spans[last]["t"]
    return RankProgress(rank=rank, pid=pid, stage=stage, doing=doing, since_t=since_t)


def behind(ranks: Sequence[RankProgress]) -> list[RankProgress]:
    """Return the ranks that the others wait for; none if all are at the same stage.

    Ranks at the gate wait for those inside it.
    """
    stages = {rank.stage for rank in ranks}
    if len(stages) < 2:  # noqa: PLR2004 - one stage has no order
        return []
    least = INSIDE if {AT_GATE, INSIDE} <= stages and STARTED not in stages else min(stages)
    return [rank for rank in ranks if rank.stage == least]


def told(ranks: Iterable[RankProgress], now_t: float) -> str:
    """Describe who does what and for how long, grouping ranks that do the same."""
    doing: dict[tuple[int, str], list[RankProgress]] = {}
    for rank in ranks:
        doing.setdefault((rank.stage, rank.doing), []).append(rank)
    parts = []
    for (_, what), some in sorted(doing.items()):
        longest_s = now_t - min(rank.since_t for rank in some)
        parts.append(
            f"{ranks_of(some)} {_verb(what, len(some))} ({clock_text(max(0.0, longest_s))})"
        )
    return "; ".join(parts)


def ranks_of(ranks: Sequence[RankProgress]) -> str:
    """Format ranks as `rank 3`, or `ranks 0, 2`."""
    numbers = ", ".join(str(rank.rank) for rank in ranks)
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def _verb(doing: str, num: int) -> str:
    """Inflect `doing` for `num` ranks."""
    if num == 1:
        return doing
    first, _, rest = doing.partition(" ")
    return " ".join(({"is": "are"}.get(first, first.removesuffix("s")), rest)).strip()
