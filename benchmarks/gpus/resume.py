"""A run that is killed and resumed: are its losses and its memory those of one that is not?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.gpus.figures import nvml_peaks
from benchmarks.gpus.fork import differences
from benchmarks.gpus.memory import GpuMemory, used_bytes
from benchmarks.gpus.run import Done, FailedError, Figures, Place, follow
from benchmarks.gpus.training import Case, run_steps, write_rows
from rundir.checkpoints import complete_checkpoints, step_of

_EVERY = 3
_KILLED_AFTER, _TOTAL = 5, 8
_SHARE = 1 / 3  # of the time, for each of the three runs


def resumed(case: Case, place: Place, timeout_s: float) -> Iterator[Figures]:
    """Train 8 steps; train again, kill it after 5 (a checkpoint is every 3), and resume to 8.

    `repeated_…` compares the two until the kill: what differs there is no fault of the resumption.
    Raises FailedError, SkippedError.
    """
    case, each_s = case.on(place), timeout_s * _SHARE
    case = replace(case, settings=(*case.settings, f"train.checkpoint_every_steps={_EVERY}"))
    whole, figures = _watched(place, lambda: run_steps(case, place, _TOTAL, each_s))
    yield {f"whole_{key}": value for key, value in figures.items()}
    cut = replace(case, name=f"{case.name}-killed")
    before = used_bytes(place.gpu)
    killed = run_steps(cut, place, _KILLED_AFTER, each_s, ending="kill")
    yield {
        "killed_after_steps": max(killed.losses()),
        "nvml_before_bytes": before,
        "nvml_after_kill_bytes": used_bytes(place.gpu),
        **{f"repeated_{key}": value for key, value in differences(killed, whole).items()},
    }
    assert killed.run is not None, "it has reported steps"
    kept = complete_checkpoints(killed.run.checkpoints)
    if not kept:
        raise FailedError(f"no checkpoint was complete after {max(killed.losses())} steps")
    yield {"resumed_from_step": step_of(kept[-1])}
    arguments = [
        cut.profile,
        f"--resume={killed.run.run_id}",
        *cut.options(),
        f"--data={write_rows(cut, place)}",
        "--force",
    ]
    again, figures = _watched(
        place, lambda: follow(cut.name, arguments, place, timeout_s=each_s, stop_after=_TOTAL)
    )
    yield {f"resumed_{key}": value for key, value in figures.items()}
    yield differences(again, whole)


def _watched(place: Place, run: Callable[[], Done]) -> tuple[Done, Figures]:
    """Return the run, and its figures of memory."""
    with GpuMemory(place.gpu) as memory:
        done = run()
    (result,) = done.of("mark", "train.result")
    return done, {
        "gpu_peak_bytes": result["gpu_peak_bytes"],
        "first_step_s": done.first_step_s,
        **nvml_peaks(memory, done),
    }
