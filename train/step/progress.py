"""Measurements between two reports: the time of each part of a step, and the `train` metric."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from ranks.group import Ranks
from rundir.config import RunConfig
from train.batches.batch import NO_WORK, Work
from train.step.mfu import ModelFlops, peak_flops_per_s

HOST_PARTS = ("data", "comm")  # these wait, so their time on the host is their real time
DEVICE_PARTS = ("forward", "backward", "optimizer")  # on a GPU these only queue work
_WAIT = "wait"  # the end of backward, in which the gradients of other ranks are still to come

Event = Callable[[], Any]  # makes an object like torch.cuda.Event


class Stopwatch:
    """Sums of seconds by part. On a GPU its own time is measured, between events in its queue.

    Nothing waits for the GPU until the sums are asked for.
    """

    def __init__(self, device: torch.device, *, make_event: Event | None = None) -> None:
        """Time parts on `device`; `make_event` makes events for its queue, by default CUDA's."""
        if make_event is None and device.type == "cuda":
            make_event = partial(torch.cuda.Event, enable_timing=True)
        self._make_event = make_event
        self._is_queued = make_event is None and device.type != "cpu"  # and cannot be timed
        self._pending: deque[tuple[str, Any, Any]] = deque()
        self._computed: Any = None  # when the block had computed everything: an event, or seconds
        self._seconds: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        """Forget everything so far."""
        self._pending.clear()
        self._seconds = dict.fromkeys((*HOST_PARTS, *DEVICE_PARTS, _WAIT), 0.0)

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Count the time of the block towards `part`."""
        self._computed = None
        if self._make_event is None or part in HOST_PARTS:
            start = time.monotonic()
            yield
            end_s = time.monotonic()
            self._seconds[part] += end_s - start
            if self._computed is not None:
                self._seconds[_WAIT] += end_s - self._computed
            return
        begin, end = self._make_event(), self._make_event()
        begin.record()
        yield
        end.record()
        self._pending.append((part, begin, end))
        if self._computed is not None:
            self._pending.append((_WAIT, self._computed, end))

    def computed(self) -> None:
        """Note that the block that is being timed has computed everything, and only waits now."""
        if self._make_event is None:
            self._computed = time.monotonic()
        else:
            self._computed = self._make_event()
            self._computed.record()

    def collect(self) -> None:
        """Add up the events that have passed, so that no more are kept than are queued."""
        while self._pending and self._pending[0][2].query():
            self._take()

    def seconds(self) -> dict[str, float | None]:
        """Return the sums; this waits for the device if it has not computed everything yet.

        The sum is None for the parts of a device that cannot be timed.
        """
        while self._pending:
            self._pending[0][2].synchronize()
            self._take()
        unknown = (*DEVICE_PARTS, _WAIT) if self._is_queued else ()
        return {part: None if part in unknown else sum_ for part, sum_ in self._seconds.items()}

    def _take(self) -> None:
        part, begin, end = self._pending.popleft()
        self._seconds[part] += begin.elapsed_time(end) / 1e3  # events measure milliseconds


class StepProgress:
    """Sums over the steps since the last report; rank 0 reports, and each rank its own times."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self._ranks = ranks
        self._peak = peak_flops_per_s(ranks.device, config.model.dtype)
        self._stopwatch = Stopwatch(ranks.device)
        self._total, self._total_s = NO_WORK, 0.0
        self.gpu_peak_bytes: int | None = None
        self.begin(None)

    def _reset(self) -> None:
        self._stopwatch.restart()
        # Of each step: (its number, this rank's loss sum, all labels).
        self._steps: list[tuple[int, torch.Tensor, float]] = []
        self._work = NO_WORK
        self._grad_norm: torch.Tensor | float = 0.0
        self._lr = 0.0
        self._since = time.monotonic()

    def begin(self, flops: ModelFlops | None) -> None:
        """Start the loop, with a model that needs `flops`; None if they are unknown."""
        self._flops = flops
        self._reset()
        self._begun = self._since

    def end(self) -> None:
        """End the loop. Called by all ranks."""
        self._total_s = time.monotonic() - self._begun
        device, own = self._ranks.device, 0
        if device.type == "cuda":
            own = torch.cuda.max_memory_allocated(device)
        self.gpu_peak_bytes = max(self._ranks.gather(own), default=0) or None

    def leave_out(self, seconds: float) -> None:
        """Leave out seconds in which the run was paused."""
        self._since += seconds
        self._begun += seconds

    def timer(self, part: str) -> AbstractContextManager[None]:
        """Signal progress; return a context that counts its time towards `part`."""
        self._ranks.pulse.tick(part)
        return self._stopwatch.timing(part)

    def watch_gradient(self, last: torch.Tensor) -> None:
        """Take the gradient of `last`, which arrives last, as the end of what backward computes."""
        if self._ranks.world_size > 1:
            last.register_hook(lambda _: self._stopwatch.computed())

    def add(
        self, step: int, loss_sum: torch.Tensor, work: Work, grad_norm: torch.Tensor, lr: float
    ) -> None:
        """Count a step (from 1): this rank's loss sum, the work of all ranks."""
        self._steps.append((step, loss_sum, work.num_labels))
        self._work, self._total = self._work.plus(work), self._total.plus(work)
        self._grad_norm, self._lr = grad_norm, lr
        self._stopwatch.collect()

    def report(self, step: int) -> list[tuple[int, float]]:
        """Write the metric of the steps since the last report; return each step with its loss.

        Called by all ranks. Steps without labels have no loss, and no metric tells one that is no
        number.
        """
        if not self._steps:
            return []
        # One copy from the device, and one collective, however many steps they are.
        sums = self._ranks.sum(torch.stack([loss_sum for _, loss_sum, _ in self._steps]).tolist())
        rows = zip(self._steps, sums, strict=True)
        losses = [(number, total / num) for (number, _, num), total in rows if num]
        loss = sum(sums) / max(1.0, self._work.num_labels)
        elapsed_s = time.monotonic() - self._since
        times = self._times()
        if self._ranks.world_size > 1:
            self._tell_own(step, times)
        if self._ranks.is_first and math.isfinite(loss):
            self._ranks.events.emit(
                "metric",
                "train",
                step=step,
                loss=loss,
                lr=self._lr,
                grad_norm=float(self._grad_norm),
                tokens_per_s=self._work.num_inputs / elapsed_s,
                mfu=self._utilisation(ModelFlops.of, self._work, elapsed_s),
                **{f"time_{part}_s": times[part] for part in (*HOST_PARTS, *DEVICE_PARTS)},
            )
        self._reset()
        return losses

    def _times(self) -> dict[str, float | None]:
        """Return the mean seconds a step of each part, on this rank."""
        return {
            part: None if sum_s is None else round(sum_s / len(self._steps), 6)
            for part, sum_s in self._stopwatch.seconds().items()
        }

    def _tell_own(self, step: int, times: dict[str, float | None]) -> None:
        """Write what this rank itself spends its time on, apart from waiting for others."""
        known = {part: seconds or 0.0 for part, seconds in times.items()}
        compute_s = sum(known[part] for part in DEVICE_PARTS) - known[_WAIT]
        self._ranks.events.emit(
            "metric",
            "train.rank",
            step=step,
            num_steps=len(self._steps),
            time_data_s=known["data"],
            time_compute_s=round(max(0.0, compute_s), 6),
            time_wait_s=round(known["comm"] + known[_WAIT], 6),
        )

    def _utilisation(
        self, count: Callable[[ModelFlops, Work], float], work: Work, elapsed_s: float
    ) -> float | None:
        """Return the share of all GPUs' peak that `count` gives; None if either is unknown."""
        if self._flops is None or self._peak is None or elapsed_s <= 0:
            return None
        all_ranks = self._peak * self._ranks.world_size
        return round(count(self._flops, work) / (elapsed_s * all_ranks), 4)

    @property
    def total_tokens_per_s(self) -> float | None:
        """Input tokens per second over the whole loop; None if no step was trained."""
        tokens = self._total.num_inputs
        return tokens / self._total_s if tokens and self._total_s > 0 else None

    @property
    def total_mfu(self) -> float | None:
        """MFU over the whole loop, including evaluations and checkpoints."""
        return self._total_utilisation(ModelFlops.of)

    @property
    def total_hfu(self) -> float | None:
        """The same with what was recomputed (HFU)."""
        return self._total_utilisation(ModelFlops.computed)

    def _total_utilisation(self, count: Callable[[ModelFlops, Work], float]) -> float | None:
        total = self._total
        return self._utilisation(count, total, self._total_s) if total.num_inputs else None
