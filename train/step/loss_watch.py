"""The rule that tells a bad loss: one that is no number, or that has jumped.

A step's rise r is its loss L less m, the median of the `NEAR` losses before it. The noise s is
1.4826 / √2 · median |d - median d|, of the changes d from one loss to the next in the last `WINDOW`
steps: the standard deviation of the losses, were they normal (Rousseeuw and Croux 1993); medians,
so that what is sought does not hide itself (Leys et al. 2013), and changes, which a falling curve
hardly shows in (von Neumann et al. 1941). With r' and s' the same of ln L, and k = 1 + 2 / √n for n
changes, as s itself is uncertain by about s / √n, a loss has jumped if

    r > 10 · k · s,        r' > min(6 · k · s', ln 20),
    r > max(0.5, m / 2),   r > 1.5 · (largest rise before)

The first is for losses that are spread evenly about their median, as those of large batches; the
second for those with a long tail, as of batches of a sample or two; the third for losses that
hardly vary; the last for data with rare samples of another kind. Nothing is told of a loss that
fewer than `FEWEST` rises precede. A loss of fewer rows than those before it is noisier by the root
of their ratio: for it all rises and changes count for so much more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

NEAR, WINDOW, FEWEST = 16, 128, 24  # losses, rises, rises
_FEWEST_NEAR = 8  # losses that a rise is above
_SIGMA_OF_MAD = 1.4826  # 1 / Φ⁻¹(3/4)
_MOST_SIGMAS, _MOST_LOG_SIGMAS = 10.0, 6.0
_LEAST_JUMP, _LEAST_SHARE = 0.5, 0.5  # nats; of the median
_MOST_TIMES = 1.5  # the largest rise so far
_ALWAYS_HIGH = math.log(20)  # twenty times the usual loss
_LEAST_LOSS = 1e-6  # whose logarithm is taken


@dataclass(frozen=True, slots=True)
class BadLoss:
    """The loss of one step, and what it was compared with: None for one that is no number."""

    step: int  # from 1
    loss: float
    usual: float | None = None  # the median
    limit: float | None = None
    what: str = "loss"  # or gradient

    @property
    def is_number(self) -> bool:
        """True for a jump."""
        return math.isfinite(self.loss)

    def __str__(self) -> str:
        if not self.is_number:
            return f"the {self.what} is {self.loss} at step {self.step}"
        return (
            f"the loss has jumped to {self.loss:.4f} at step {self.step}: {self.usual:.4f} is "
            f"usual, and {self.limit:.4f} the limit"
        )


class LossWatch:
    """The last losses, the same on every rank, as they are sums over all of them."""

    def __init__(self) -> None:
        self._near: deque[float] = deque(maxlen=NEAR)
        self._rises: deque[float] = deque(maxlen=WINDOW)
        self._changes: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # also of the logarithms
        self._is_high = False  # the loss before has jumped: a jump lasts some steps

    def judge(self, step: int, loss: float, noise: float = 1.0) -> BadLoss | None:
        """Return whether the loss of `step` (from 1) is bad; nothing is remembered.

        `noise` is that of this loss, as a multiple of that of the losses before it.
        """
        if not math.isfinite(loss):
            return BadLoss(step, loss)
        if len(self._rises) < FEWEST:
            return None
        usual, limit = median(self._near), self._limit(noise)
        return BadLoss(step, loss, usual, limit) if loss > limit else None

    def is_new(self, loss: BadLoss) -> bool:
        """Return whether a bad loss is the first of its kind: those after it say nothing new."""
        return not loss.is_number or not self._is_high

    def remember(self, loss: float, *, is_bad: bool = False) -> None:
        """Take a loss in, for those after it to be compared with; a jump is no usual rise."""
        self._is_high = is_bad
        if not math.isfinite(loss):
            return
        if len(self._near) >= _FEWEST_NEAR and not is_bad:
            before = self._near[-1]
            self._rises.append(loss - median(self._near))
            self._changes.append((loss - before, _log(loss) - _log(before)))
        self._near.append(loss)

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, for JSON: floats keep all their digits there."""
        return {
            "near": list(self._near),
            "rises": list(self._rises),
            "changes": [list(change) for change in self._changes],
            "is_high": self._is_high,
        }

    def restore(self, state: dict[str, Any], noise: float = 1.0) -> None:
        """Go on where `state` was taken; losses have `noise` times the noise of those before it."""
        self._near = deque(state.get("near", ()), maxlen=NEAR)
        self._rises = deque((noise * step for step in state.get("rises", ())), maxlen=WINDOW)
        changes = ((noise * step, noise * log) for step, log in state.get("changes", ()))
        self._changes = deque(changes, maxlen=WINDOW)
        self._is_high = bool(state.get("is_high", False))

    def _limit(self, noise: float) -> float:
        """Return the loss above which the next one has jumped."""
        wider = noise * (1 + 2 / math.sqrt(len(self._changes)))
        usual = median(self._near)
        sigma = _noise([change for change, _ in self._changes])
        log_sigma = _noise([change for _, change in self._changes])
        log_rise = min(_MOST_LOG_SIGMAS * wider * log_sigma, _ALWAYS_HIGH)
        return max(
            usual + _MOST_SIGMAS * wider * sigma,
            usual * math.exp(log_rise),
            usual + max(_LEAST_JUMP, _LEAST_SHARE * abs(usual)),
            usual + _MOST_TIMES * noise * max(self._rises),
        )


def _noise(changes: Sequence[float]) -> float:
    """Return the standard deviation of what has these changes from one to the next."""
    middle = median(changes)
    return _SIGMA_OF_MAD / math.sqrt(2) * median(abs(change - middle) for change in changes)


def _log(loss: float) -> float:
    return math.log(max(loss, _LEAST_LOSS))
