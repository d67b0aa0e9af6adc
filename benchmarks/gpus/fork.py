"""A comparison of ranks forked from a zygote with ranks that start alone, training on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpus.run import Done, FailedError, Figures, Place, follow

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
) -> Iterator[Figures]:
    """Train `tiny` with launch.start=warm and cold, in turn, and compare every loss.

    Raises FailedError when one fails, for example with "CUDA initialised before the fork".
    """
    starts = ("warm", "cold")
    runs = {}
    for start in starts:
        runs[start] = _train(start, name, settings, place, timeout_s / 2)
        yield {f"{start}_first_step_s": runs[start].first_step_s}
    yield {
        **differences(runs["warm"], runs["cold"]),
        "zygote_touched_cuda": runs["warm"].of("mark", "zygote.ready")[-1]["cuda_touched"],
    }


def differences(one: Done, other: Done) -> Figures:
    """Compare the losses of the steps that both have reported."""
    ours, theirs = one.losses(), other.losses()
    steps = sorted(ours.keys() & theirs.keys())
    if not steps:
        raise FailedError("the runs have no step in common")
    apart = [abs(ours[step] - theirs[step]) for step in steps]
    return {
        "num_steps": len(steps),
        "num_different": sum(difference > 0 for difference in apart),
        "largest_difference": max(apart),
        "last_loss": ours[steps[-1]],
    }


def check_start(done: Done, start: str) -> None:
    """Raise FailedError unless the run started in the way that was asked for."""
    mark = done.of("mark", "start")[0]
    if mark["start"] != start:
        raise FailedError(f"it was to start {start}, and started {mark['start']}: {mark['reason']}")


def _train(start: str, name: str, settings: Sequence[str], place: Place, timeout_s: float) -> Done:
    told = [*_SETTINGS, *settings, f"launch.start={start}", *place.settings]
    arguments = ["tiny", "--num-gpus=1", *(f"--set={one}" for one in told)]
    done = follow(f"{name}-{start}", arguments, place, timeout_s=timeout_s)
    check_start(done, start)
    return done
