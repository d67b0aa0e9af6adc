"""Run folders with the events that a test needs, written as a run writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rundir.events import EventWriter
from rundir.paths import RunDir
from tests.state.story import PLAN, TRAIN

_PARTS = ("data", "forward", "backward", "comm", "optimizer")
_TRAIN = TRAIN | {"mfu": None, **{f"time_{part}_s": 0.1 for part in _PARTS}}


class WrittenRun:
    """A run folder, and its writers: rank 0 and the launcher, and other ranks as needed."""

    def __init__(self, folder: Path, run_id: str = "20260101-000000-tiny-0000") -> None:
        self.run = RunDir(folder / run_id)
        self.run.events.mkdir(parents=True)
        self.run.run_log.parent.mkdir()
        self.run.config.write_text("")
        self._attempt = 0
        self._writers: dict[str, EventWriter] = {}

    def writer(self, name: str) -> EventWriter:
        """Return the writer of one event file."""
        if name not in self._writers:
            rank = int(name[4:]) if name.startswith("rank") else None
            path = self.run.event_file(name)
            self._writers[name] = EventWriter(path, rank=rank, attempt=self._attempt)
        return self._writers[name]

    def begin_attempt(self, attempt: int, first_step: int) -> None:
        """Training goes on from `first_step`."""
        self._attempt = attempt
        for one in self._writers.values():
            one.begin_attempt(attempt)
        plan = PLAN | {"total_steps": 1000, "first_step": first_step}
        self.writer("rank0").emit("mark", "train.plan", **plan)

    def train(self, step: int, loss: float, **fields: Any) -> None:
        """Write one metric of training."""
        self.writer("rank0").emit("metric", "train", step=step, loss=loss, **_TRAIN | fields)

    def evaluate(self, step: int, loss: float) -> None:
        """Write one evaluation."""
        self.writer("rank0").emit("metric", "eval", step=step, loss=loss, exact_match=None)

    def raw(self, data: bytes, writer: str = "rank0") -> None:
        """Append bytes as they are."""
        with self.run.event_file(writer).open("ab") as file:
            file.write(data)

    def many(self, first: int, last: int, writer: str = "rank0") -> None:
        """Write metrics of many steps; the loss is the step."""
        base = {"v": 1, "mono": 1.0, "node": 0, "attempt": 0, "rank": 0, "pid": 1}
        named = {"kind": "metric", "name": "train"}
        lines = (
            json.dumps(base | named | {"t": 1e9 + i, "step": i, "loss": float(i)} | _TRAIN)
            for i in range(first, last + 1)
        )
        self.raw(("\n".join(lines) + "\n").encode(), writer)
