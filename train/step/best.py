"""The checkpoint whose weights are exported: the one with the lowest held-out loss, or the last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rundir.checkpoints import (
    best_of,
    checkpoint_name,
    complete_checkpoints,
    held_out_loss,
    step_of,
)
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.paths import RunDir
from rundir.prepared import Prepared, read_prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The weights to export; `checkpoint` is None for those that the model has already.

    The other fields are those of the mark `export.choice`.
    """

    step: int
    loss: float | None
    of_run: str
    last_step: int
    last_loss: float | None
    is_best: bool
    num_evaluated: int
    checkpoint: Path | None = None


def choose(config: RunConfig, run: RunDir, last_step: int) -> Choice:
    """Return which weights to export after `last_step` steps.

    A run that goes on from another chooses among that one's checkpoints as well, if both were
    evaluated on the same data: what is wanted is the best of the whole training.
    """
    last = run.checkpoints / checkpoint_name(last_step)
    last_loss = held_out_loss(last)
    checkpoints = [path for run_ in _lineage(config, run) for path in complete_checkpoints(run_)]
    evaluated = [path for path in checkpoints if held_out_loss(path) is not None]
    lowest = best_of(evaluated)
    best = lowest if config.train.export == "best" else None
    return Choice(
        step=last_step if best is None else step_of(best),
        loss=last_loss if best is None else held_out_loss(best),
        of_run=run.run_id if best is None else best.parent.parent.name,
        last_step=last_step,
        last_loss=last_loss,
        is_best=lowest is not None and (best or last) == lowest,
        num_evaluated=len(evaluated),
        checkpoint=None if best == last else best,
    )


def _lineage(config: RunConfig, run: RunDir) -> Iterator[Path]:
    """Yield the checkpoint folders of the run and of those it goes on from, as far as they last."""
    prepared, seen = read_prepared(run), {run.path}
    yield run.checkpoints
    evaluation, resume_from = prepared.evaluation, prepared.resume_from
    while resume_from is not None:
        before = RunDir(Path(resume_from).parent.parent)
        runs = _prepared_alike(before, config)
        if runs is None or runs.evaluation != evaluation or before.path in seen:
            return
        seen.add(before.path)
        yield before.checkpoints
        resume_from = runs.resume_from


def _prepared_alike(run: RunDir, config: RunConfig) -> Prepared | None:
    """Return what a run was prepared with; None if it is gone or evaluated other samples."""
    try:
        limit = read_config(run.config).data.max_eval_samples
        return read_prepared(run) if limit == config.data.max_eval_samples else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
