"""How long a run may make no progress before it counts as hung: the one rule, for every detector.

The launcher's watch over ranks, the waits of ranks for each other, a plain run's own watch and the
doctor ask here, for trainings and scripts, on CPU and on GPUs alike.
"""

from __future__ import annotations

LEAST_S, STEPS = 300.0, 20  # a step may take this long, or this many usual steps
SLOW = 6  # factor where nothing shows whether work goes on: compiling, a large file, no rank waits


def allowed_s(timeout_s: float, *, step_s: float = 0.0, is_slow: bool = False) -> float:
    """Return the number of seconds without progress after which a run counts as hung.

    `timeout_s` is `launch.hang_timeout_s`, a number of seconds if above 0; `step_s` is the usual
    duration of a step, 0.0 while it is unknown; `is_slow` says that the run is in its first step,
    or outside of steps, or that no rank shows that it waits for another.
    """
    limit_s = timeout_s if timeout_s > 0 else max(LEAST_S, STEPS * step_s)
    return limit_s * (SLOW if is_slow else 1)
