"""A comparison of ranks forked from a zygote with ranks that start alone, training on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpus.run import Done, FailedError, Place, follow
from benchmarks.gpus.training import Figures

_SETTINGS = (
    "train.max_steps=8",
    "train.log_every_steps=1",
    "train.global_batch_size=8",
    "train.warmup_steps=2",
    "data.eval_path=",
    "train.eval_generate=false",
)


def compare_starts(
    place: Place, timeout_s: float, *, name: str, settings: Sequence[str] = ()
) -> Figures:
    """Train `tiny` with launch.start=warm and cold, in turn, and compare every loss.

    Raises FailedError when one fails, for example with "CUDA initialised before the fork".
    """
    starts = ("warm", "cold")
    runs = {start: _train(start, name, settings, place, timeout_s / 2) for start in starts}
    warm, cold = ([one["loss"] for one in runs[start].of("metric", "train")] for start in starts)
    differences = [abs(one - other) for one, other in zip(warm, cold, strict=True)]
    return {
        "num_steps": len(warm),
        "num_different": sum(difference > 0 for difference in differences),
        "largest_difference": max(differences),
        "last_loss": warm[-1],
        "zygote_touched_cuda": runs["warm"].of("mark", "zygote.ready")[-1]["cuda_touched"],
        **{f"{start}_first_step_s": _first_step_s(done) for start, done in runs.items()},
    }


def _train(start: str, name: str, settings: Sequence[str], place: Place, timeout_s: float) -> Done:
    told = [*_SETTINGS, *settings, f"launch.start={start}"]
    arguments = ["tiny", "--num-gpus=1", *(f"--set={one}" for one in told)]
    done = follow(f"{name}-{start}", arguments, place, timeout_s=timeout_s)
    mark = done.of("mark", "start")[0]
    if mark["start"] != start:
        raise FailedError(f"it was to start {start}, and started {mark['start']}: {mark['reason']}")
    return done


def _first_step_s(done: Done) -> float:
    return round(float(done.of("metric", "train")[0]["mono"]) - done.started, 1)
