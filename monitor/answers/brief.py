"""What is kept of snapshots in memory: no texts, so that timelines of thousands of answers fit."""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from monitor.answers.snapshot_files import parts_of, read_snapshot
from monitor.http.json_api import NotFoundError
from monitor.runs.inside import inside
from rundir.paths import RunDir

_MOST_KEPT = 1024  # snapshots, of about 25 bytes for each example


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A snapshot without its texts; the arrays have an entry for each example, by its number."""

    step: int
    timestamp: str = ""
    dataset_hash: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    left_out_steps: list[int] = field(default_factory=list)
    error: str = ""  # why it cannot be read; then the rest is empty
    ids: array[int] = field(default_factory=lambda: array("q"))
    is_right: bytes = b""
    similarity: array[float] = field(default_factory=lambda: array("f"))  # NaN: not known
    loss: array[float] = field(default_factory=lambda: array("d"))

    def row(self) -> dict[str, Any]:
        """Return what is listed of the snapshot; of one that cannot be read, why."""
        if self.error:
            return {"step": self.step, "error": self.error}
        keys = ("step", "timestamp", "summary", "cost", "left_out_steps", "dataset_hash")
        return {key: getattr(self, key) for key in keys}


def brief_of(run: RunDir, dataset: str, step: int) -> Brief:
    """Return the brief of a snapshot; one that cannot be read has an `error`."""
    try:
        with inside(run, *parts_of(run, dataset, step)) as file:
            stat = os.fstat(file.fileno())
    except NotFoundError as error:
        return Brief(step=step, error=error.text)
    stamp = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return _brief(run, dataset, step, stamp)


@lru_cache(_MOST_KEPT)
def _brief(run: RunDir, dataset: str, step: int, _stamp: tuple[int, ...]) -> Brief:
    try:
        snapshot = read_snapshot(run, dataset, step)
    except NotFoundError as error:
        return Brief(step=step, error=error.text)
    nan = float("nan")
    return Brief(
        step=step,
        timestamp=snapshot.timestamp,
        dataset_hash=snapshot.dataset_hash,
        summary=snapshot.summary,
        cost=snapshot.cost,
        left_out_steps=snapshot.left_out_steps,
        ids=array("q", (example.example_id for example in snapshot.examples)),
        is_right=bytes(example.is_right for example in snapshot.examples),
        similarity=array("f", (_or(example.similarity, nan) for example in snapshot.examples)),
        loss=array("d", (_or(example.loss, nan) for example in snapshot.examples)),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
