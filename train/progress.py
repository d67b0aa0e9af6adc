"""What the loop measures between two reports, and the `train` metric made from it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rundir.events import EventWriter
from train.ranks import Ranks

_HOST_PARTS = ("data", "comm")  # waiting parts, whose time on the host is their real time
_DEVICE_PARTS = ("forward", "backward", "optimizer")  # on a GPU these only queue work


class Progress:
    """Sums over the steps since the last report; rank 0 reports."""

    def __init__(self, events: EventWriter, *, enabled: bool) -> None:
        self._events = events
        self._enabled = enabled
        self._total_tokens = 0.0
        self._begun = self._ended = time.monotonic()
        self._reset()

    def _reset(self) -> None:
        self._parts = dict.fromkeys((*_HOST_PARTS, *_DEVICE_PARTS), 0.0)
        self._loss_sum: torch.Tensor | float = 0.0
        self._num_labels = self._num_inputs = 0.0
        self._num_steps = 0
        self._grad_norm: torch.Tensor | float = 0.0
        self._lr = 0.0
        self._since = time.monotonic()

    def begin(self) -> None:
        """The loop starts now."""
        self._begun = time.monotonic()
        self._reset()

    def end(self) -> None:
        """The loop is over."""
        self._ended = time.monotonic()

    @contextmanager
    def timer(self, part: str) -> Iterator[None]:
        """Count the time of the block to `part`."""
        start = time.monotonic()
        yield
        self._parts[part] += time.monotonic() - start

    def add(
        self,
        loss_sum: torch.Tensor,
        num_labels: float,
        num_inputs: float,
        grad_norm: torch.Tensor,
        lr: float,
    ) -> None:
        """Count one step: this rank's loss sum, the label and input tokens of all ranks."""
        self._loss_sum += loss_sum
        self._num_labels += num_labels
        self._num_inputs += num_inputs
        self._total_tokens += num_inputs
        self._num_steps += 1
        self._grad_norm, self._lr = grad_norm, lr

    def report(self, ranks: Ranks, step: int) -> None:
        """Write the metric of the steps since the last report. Called by all ranks.

        Raises FloatingPointError when the loss is no longer a number: nothing after it is worth
        computing, and a checkpoint of it would overwrite a good one.
        """
        if self._num_steps == 0:
            return
        (loss_sum,) = ranks.sum([float(self._loss_sum)])
        loss = loss_sum / max(1.0, self._num_labels)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {step}; a lower train.learning_rate "
                f"(now {self._lr:g}) or data without empty answers may help"
            )
        elapsed_s = time.monotonic() - self._since
        if self._enabled:
            on_device = ranks.device.type != "cpu"
            self._events.emit(
                "metric", "train", step=step, loss=loss, lr=self._lr,
                grad_norm=float(self._grad_norm), tokens_per_s=self._num_inputs / elapsed_s,
                **{f"time_{part}_s": self._mean(part) for part in _HOST_PARTS},
                **{f"time_{part}_s": None if on_device else self._mean(part)
                   for part in _DEVICE_PARTS},
            )  # fmt: skip
        self._reset()

    def _mean(self, part: str) -> float:
        return round(self._parts[part] / self._num_steps, 6)

    @property
    def total_tokens_per_s(self) -> float | None:
        """Input tokens per second over the whole loop; None when no step was trained."""
        elapsed_s = self._ended - self._begun
        return self._total_tokens / elapsed_s if self._total_tokens and elapsed_s > 0 else None
