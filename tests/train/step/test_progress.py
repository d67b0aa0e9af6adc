"""The parts of a step are timed where they are computed; MFU is a share of all GPUs together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ranks.group import Ranks
from rundir.config import RunConfig
from train.batches.batch import Work
from train.step.mfu import ModelFlops
from train.step.progress import DEVICE_PARTS, StepProgress, Stopwatch

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FLOPS = ModelFlops(per_label=5.0, per_input=100.0, per_squared_length=2.0)
WORK = Work(num_labels=20, num_inputs=40, squared_lengths=800)


class Queue:
    """A device that executes its queue when told to: a GPU cannot be had here."""

    def __init__(self) -> None:
        self.now_ms, self._jobs = 0.0, list[Callable[[], None]]()

    def add(self, took_ms: float) -> None:
        self._jobs.append(lambda: setattr(self, "now_ms", self.now_ms + took_ms))

    def mark(self, event: QueuedEvent) -> None:
        self._jobs.append(lambda: setattr(event, "at_ms", self.now_ms))

    def compute(self) -> None:
        while self._jobs:
            self._jobs.pop(0)()


class QueuedEvent:
    """A stand-in for torch.cuda.Event."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self.at_ms, self.num_waits = queue, None, 0

    def record(self) -> None:
        self._queue.mark(self)

    def query(self) -> bool:
        return self.at_ms is not None

    def synchronize(self) -> None:
        self._queue.compute()

    def elapsed_time(self, end: Any) -> Any:
        return end.at_ms - self.at_ms


def test_on_a_cpu_all_parts_are_timed_by_the_clock() -> None:
    watch = Stopwatch(CPU)
    for part in ("data", "forward", "forward"):
        with watch.timing(part):
            time.sleep(0.01)
    found = watch.seconds()
    assert found["data"] is not None
    assert found["data"] >= 0.01
    assert found["forward"] is not None
    assert found["forward"] >= 0.02
    assert found["backward"] == 0
    watch.restart()
    assert set(watch.seconds().values()) == {0.0}


def test_on_a_device_with_a_queue_its_own_time_counts_whenever_it_computes() -> None:
    queue = Queue()
    watch = Stopwatch(CUDA, make_event=lambda: QueuedEvent(queue))
    for took_ms in (30.0, 50.0):
        with watch.timing("forward"):
            queue.add(took_ms)
        queue.add(7.0)  # of no part
        with watch.timing("backward"):
            queue.add(2 * took_ms)
    watch.collect()  # nothing has passed, and nothing waits
    assert queue.now_ms == 0
    found = watch.seconds()
    assert found["forward"] == pytest.approx(0.08)
    assert found["backward"] == pytest.approx(0.16)
    for _ in range(3):  # what has passed is taken in step by step
        with watch.timing("optimizer"):
            queue.add(10.0)
        queue.compute()
        watch.collect()
        assert not watch._pending
    assert watch.seconds()["optimizer"] == pytest.approx(0.03)


def test_of_a_device_that_cannot_be_timed_nothing_is_said() -> None:
    watch = Stopwatch(torch.device("mps"))
    with watch.timing("forward"):
        pass
    found = watch.seconds()
    assert all(found[part] is None for part in DEVICE_PARTS)
    assert found["data"] == 0


@pytest.mark.parametrize("world_size", [1, 4])
def test_mfu_is_a_share_of_all_gpus_together_and_unknown_without_a_peak_or_a_count(
    world_size: int,
) -> None:
    ranks = Ranks(rank=0, world_size=world_size, device=CPU, control=None)
    progress = StepProgress(RunConfig(profile="test"), ranks)
    progress.begin(FLOPS)
    assert progress._utilisation(ModelFlops.of, WORK, 10.0) is None
    progress._peak = 1000.0  # as on a GPU
    assert FLOPS.of(WORK) == 20 * 5 + 40 * 100 + 800 * 2
    mfu = progress._utilisation(ModelFlops.of, WORK, 10.0)
    assert mfu == pytest.approx(5700 / (10 * 1000 * world_size), abs=1e-4)
    progress.begin(None)
    assert progress._utilisation(ModelFlops.of, WORK, 10.0) is None


@pytest.mark.gpu
def test_a_real_gpu_is_timed_while_the_host_goes_on() -> None:
    one = torch.randn((4096, 4096), device=CUDA)
    torch.mm(one, one)
    torch.cuda.synchronize()
    watch, begun = Stopwatch(CUDA), time.monotonic()
    with watch.timing("forward"):
        for _ in range(100):
            torch.mm(one, one)
    queued_s = time.monotonic() - begun
    found = watch.seconds()["forward"]
    took_s = time.monotonic() - begun
    assert found is not None
    assert queued_s < found <= took_s
