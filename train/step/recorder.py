"""A trace of some steps, by torch's profiler: a file for Perfetto, and the longest operations.

Each rank records for itself, and no rank waits for another. Whatever goes wrong, training goes on.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ranks.group import Ranks
from rundir.paths import RunDir

NUM_LONGEST = 10
_STEP = "airlock step "


class Recorder:
    """The trace of this rank, if one is being recorded."""

    def __init__(self, run: RunDir, ranks: Ranks) -> None:
        self._run, self._ranks = run, ranks
        self._profile: Any = None
        self._of_step: Any = None
        self._first = self._num_steps = self._num_done = 0
        self.is_recording = False

    def begin(self, step: int, num_steps: int) -> None:
        """Record the next `num_steps` steps, `step` being trained."""
        self._first, self._num_steps, self._num_done = step, num_steps, 0
        activities = [ProfilerActivity.CPU]
        if self._ranks.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with self._guarded():
            self._profile = profile(activities=activities)
            self._profile.start()
            self._begin_step()
            self.is_recording = True

    def stepped(self) -> None:
        """Note that a step has ended; write the trace after the last one."""
        if not self.is_recording:
            return
        self._num_done += 1
        if self._num_done >= self._num_steps:
            self.finish()
            return
        with self._guarded():
            self._of_step.__exit__(None, None, None)
            self._begin_step()

    def finish(self) -> None:
        """Write what has been recorded, if anything is: the training may end before the trace."""
        if not self.is_recording:
            return
        self.is_recording = False
        self._ranks.pulse.tick("trace")
        file = self._run.traces / f"step_{self._first + 1:08d}-rank{self._ranks.rank}.json.gz"
        with self._guarded():
            self._of_step.__exit__(None, None, None)
            if self._ranks.device.type == "cuda":
                torch.cuda.synchronize(self._ranks.device)
            self._profile.stop()
            table = longest(self._profile.key_averages())
            self._run.traces.mkdir(exist_ok=True)
            _export(self._profile, file)
            file.with_name(file.name.removesuffix(".json.gz") + ".txt").write_text(
                f"{table}\n", encoding="utf-8"
            )
            self._tell(file=str(file.relative_to(self._run.path)), table=table)
        self._profile = self._of_step = None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Tell what goes wrong in the block, and end the recording."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever the profiler does, training goes on
            self.is_recording, self._profile = False, None
            self._tell(why=f"{type(error).__name__}: {error}")

    def _begin_step(self) -> None:
        self._of_step = record_function(f"{_STEP}{self._first + self._num_done + 1}")
        self._of_step.__enter__()

    def _tell(
        self, *, file: str | None = None, table: str | None = None, why: str | None = None
    ) -> None:
        self._ranks.events.emit(
            "mark",
            "trace",
            step=self._first,
            num_steps=self._num_done,
            file=file,
            table=table,
            why=why,
        )


def _export(recorded: Any, path: Path) -> None:
    """Write the trace in one step. Raises OSError, also where torch does not notice a full disk."""
    plain, packed = path.with_name(f".{path.name}.json"), path.with_name(f".{path.name}.part")
    try:
        recorded.export_chrome_trace(str(plain))
        with plain.open("rb") as source:
            source.seek(max(0, plain.stat().st_size - 64))
            if not source.read().rstrip().endswith(b"}"):
                raise OSError(f"{path.name} could not be written to its end: is the disk full?")
            source.seek(0)
            with gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target)
        packed.replace(path)
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)


def longest(averages: Any) -> str:
    """Return the ten operations that took longest by themselves, as a table.

    `averages` is what torch's profiler returns as key_averages(); its times are microseconds.
    """
    averages_ = [average for average in averages if not average.key.startswith(_STEP)]
    on_device = any(operation.self_device_time_total > 0 for operation in averages_)

    def spent_us(average: Any) -> float:
        return float(average.self_device_time_total if on_device else average.self_cpu_time_total)

    total_us = sum(map(spent_us, averages_)) or 1.0
    rows = [f"{'ms':>10}  {'share':>6}  {'calls':>7}  operation ({'GPU' if on_device else 'CPU'})"]
    for operation in sorted(averages_, key=spent_us, reverse=True)[:NUM_LONGEST]:
        share = spent_us(operation) / total_us
        rows.append(
            f"{spent_us(operation) / 1e3:10.2f}  {share:6.1%}  {operation.count:7d}  "
            f"{operation.key[:80]}"
        )
    return "\n".join(rows)
