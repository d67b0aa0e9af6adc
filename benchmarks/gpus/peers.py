"""The same LoRA training by Airlock, the Hugging Face Trainer and accelerate, in turns.

Same files of weights, adapters to begin from, samples in the same order, optimizer, bfloat16 and
gradient checkpointing. Samples are of mixed lengths: Airlock packs them, the others pad them.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gpus.files import folder_of, write_files
from benchmarks.gpus.memory import GpuMemory
from benchmarks.gpus.program import figures_of
from benchmarks.gpus.run import FailedError, Figures, OutOfTimeError, Place
from benchmarks.gpus.start import from_files
from benchmarks.gpus.training import Case, Steps, run_steps, write_rows
from benchmarks.trainings.same_training import Recipe, Work

OURS, PEERS = "airlock", ("trainer", "accelerate")
_MOST_ROUNDS = 3
_LEARNING_RATE, _WARMUP_STEPS = 1e-4, 2
_PEER_MICRO_BATCH = 2  # samples, padded to the longer one; more would not fit beside their logits


def compare(
    case: Case,
    place: Place,
    steps: Steps,
    timeout_s: float,
    *,
    most_rounds: int = _MOST_ROUNDS,
) -> Iterator[Figures]:
    """Train with each in turn, as often as there is time for; yield what is known after each.

    Raises SkippedError if the files do not fit the disk, FailedError when one fails.
    """
    ends = time.monotonic() + timeout_s
    yield from write_files(place, timeout_s)
    case = from_files(case, place)
    work = _work(case, place, steps)
    yield from figures_of(
        "benchmarks.gpus.adapter", [str(folder_of(place)), _adapter(work)], place, timeout_s
    )
    found: dict[str, list[Figures]] = {who: [] for who in (OURS, *PEERS)}
    round_s = 0.0
    for number in range(most_rounds):
        if number and ends - time.monotonic() < 1.2 * round_s:
            break
        begun = time.monotonic()
        for who, rounds in found.items():
            left_s = ends - time.monotonic()
            rounds.append(_one(who, case, place, work, steps, left_s))
            yield _summary(found)
        round_s = time.monotonic() - begun


def _work(case: Case, place: Place, steps: Steps) -> Work:
    """Write the samples of all steps in Airlock's order, and the peers' settings."""
    folder = place.folder / f"same-{case.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    recipe = Recipe(
        architecture={},
        data=write_rows(case, place),
        row_tokens=case.row_tokens,
        global_batch=case.num_rows,
        micro_batch=_PEER_MICRO_BATCH,
        learning_rate=_LEARNING_RATE,
        warmup_steps=_WARMUP_STEPS,
        steps=steps.total,
    )
    settings = {
        "device": place.device,
        "dtype": "bfloat16",
        "adapter": str(folder / "adapter"),
        "checkpointing": True,
    }
    return Work(folder, recipe, model=folder_of(place), settings=settings)


def _adapter(work: Work) -> str:
    return str(work.folder / "adapter")


def _one(who: str, case: Case, place: Place, work: Work, steps: Steps, timeout_s: float) -> Figures:
    """Train once; return seconds, tokens/s after the first steps, peaks, and each step's loss."""
    with GpuMemory(place.gpu) as memory:
        if who == OURS:
            ends, losses, peak = _ours(case, place, work, steps, timeout_s)
        else:
            ends, losses, peak = _theirs(who, place, work, timeout_s)
    if len(ends) < steps.total:
        raise FailedError(f"{who}: {len(ends)} of {steps.total} steps were trained")
    num_tokens = sum(work.step_tokens[steps.warm : steps.total])
    return {
        "tokens_per_s": num_tokens / (ends[steps.total - 1] - ends[steps.warm - 1]),
        "gpu_peak_bytes": peak,
        "nvml_peak_bytes": memory.peak_bytes,
        "losses": losses[: steps.total],
    }


Trained = tuple[list[float], list[float], int | None]


def _ours(case: Case, place: Place, work: Work, steps: Steps, timeout_s: float) -> Trained:
    recipe = work.recipe
    settings = (
        *case.settings,
        "model.dtype=bfloat16",
        "model.gradient_checkpointing=true",
        f"train.adapter={_adapter(work)}",
        "train.schedule=constant",
        f"train.learning_rate={recipe.learning_rate}",
        f"train.warmup_steps={recipe.warmup_steps}",
        "train.weight_decay=0",
        "train.seed=0",
        *place.settings,
    )
    done = run_steps(replace(case, settings=settings), place, steps.total, timeout_s)
    metrics = done.of("metric", "train")
    results = done.of("mark", "train.result")
    ends, losses = ([one[key] for one in metrics] for key in ("mono", "loss"))
    return ends, losses, results[-1]["gpu_peak_bytes"] if results else None


def _theirs(who: str, place: Place, work: Work, timeout_s: float) -> Trained:
    told, peak = work.folder / f"{who}.steps", work.folder / f"{who}.peak"
    told.unlink(missing_ok=True)
    env = {"ACCELERATE_USE_CPU": "true" if place.device == "cpu" else "false"}
    env |= {"OMP_NUM_THREADS": "1"} if place.device == "cpu" else {}
    arguments = [who, str(work.folder)]
    try:
        for _ in figures_of("benchmarks.trainings.peer_training", arguments, place, timeout_s, env):
            pass  # it tells of its steps in a file
    except OutOfTimeError as error:
        raise OutOfTimeError(f"{who}: {error}", error.done) from error
    except FailedError as error:
        raise FailedError(f"{who}: {error}") from error
    lines = [line.split() for line in told.read_text(encoding="ascii").splitlines()]
    ends, losses = ([float(one[i]) for one in lines] for i in (0, 1))
    return ends, losses, int(peak.read_text(encoding="ascii")) if peak.exists() else None


def _summary(found: dict[str, list[Figures]]) -> Figures:
    """Return medians over the rounds so far, and how the peers compare with ours."""
    made: Figures = {"num_rounds": min(len(rounds) for rounds in found.values())}
    for who, rounds in found.items():
        if rounds:
            speeds = [one["tokens_per_s"] for one in rounds]
            made[f"{who}_tokens_per_s"] = round(statistics.median(speeds), 1)
            for key in ("gpu_peak_bytes", "nvml_peak_bytes"):
                made[f"{who}_{key}"] = rounds[-1][key]
            made[f"{who}_last_loss"] = rounds[-1]["losses"][-1]
    for who in PEERS:
        pairs = list(zip(found[OURS], found[who], strict=False))
        if pairs:
            ratios = [ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in pairs]
            made[f"ours_to_{who}"] = round(statistics.median(ratios), 4)
            made[f"{who}_largest_loss_difference"] = max(
                abs(one - other)
                for ours, theirs in pairs
                for one, other in zip(ours["losses"], theirs["losses"], strict=True)
            )
    return made
