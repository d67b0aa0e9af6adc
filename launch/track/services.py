"""W&B and trackio, if they are installed and requested."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from launch.track.figures import FigureTracker
from launch.track.tensorboard import TensorBoard
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.paths import RunDir

FILES = "tensorboard"
SERVICES = {"wandb": "W&B", "trackio": "trackio"}  # package → the name that people use
TITLES = {FILES: "TensorBoard", **SERVICES}
LAST_WORDS = "ends: "  # prefix of the line in which a process says why it fails
_PROJECT = "airlock"
_STEP = "train/global_step"  # W&B's own steps only count calls

Say = Callable[[str], None]


def services_in(report_to: str) -> list[str]:
    """Return the services that `train.report_to` names. Raises UserError for an unknown one."""
    names = [name.strip() for name in report_to.split(",") if name.strip()]
    for name in names:
        if name not in TITLES:
            raise UserError(
                f"train.report_to names {name!r}",
                do=f"{' or '.join(SERVICES)}; TensorBoard's files are written in any case",
            )
    return [name for name in dict.fromkeys(names) if name != FILES]


def make_tracker(name: str, run: RunDir, say: Say, *, is_beside: bool = False) -> FigureTracker:
    """Return the tracker called `name`, for `run`. Raises whatever its library raises.

    `is_beside`: the run is in progress, so that W&B, if unreachable, has to keep the data for
    later.
    """
    if name == FILES:
        return TensorBoard(run.tensorboard)
    config = dataclasses.asdict(read_config(run.config))
    if name == "wandb":
        return Wandb(run, config, say, offline_instead=is_beside)
    return Trackio(run, config, say)


class Wandb(FigureTracker):
    """A run of W&B with the id of ours; one that exists already is continued.

    WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_DIR and the like have their usual meaning.
    """

    def __init__(
        self, run: RunDir, config: dict[str, Any], say: Say, *, offline_instead: bool
    ) -> None:
        import wandb

        begin = partial(
            wandb.init,
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            id=run.run_id,
            name=os.environ.get("WANDB_NAME") or run.run_id,
            config=config,
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or run.path,
            # Data about this process and its folder would say nothing about the training.
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )
        why = ""
        try:
            self._run = begin()
        except wandb.Error as error:  # no key, no network, no right to the project
            if not offline_instead:
                raise
            wandb.teardown()  # its process considers the id in use
            why, self._run = f"{error}: ", begin(mode="offline")
        if self._run.offline:
            say(f"{why}offline; `wandb sync {Path(self._run.dir).parent}` uploads it later")
        elif self._run.url:
            say(str(self._run.url))
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP, step_sync=True)

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:
        """Log the figures as one row of the history."""
        self._run.log({**figures, _STEP: step, "_timestamp": t})

    def close(self) -> None:
        """Wait until everything is uploaded."""
        self._run.finish()


class Trackio(FigureTracker):
    """A run of trackio with the id of ours as its name; one that exists already is continued.

    TRACKIO_DIR, TRACKIO_SPACE_ID and the like have their usual meaning.
    """

    def __init__(self, run: RunDir, config: dict[str, Any], say: Say) -> None:
        import trackio

        self._trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT") or _PROJECT
        trackio.init(
            project=project,
            name=run.run_id,
            config=config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,  # the run's own events report on the host and its GPUs
            auto_log_cpu=False,
        )
        say(f"run {run.run_id} of the project {project}")

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:  # noqa: ARG002
        """Log the figures as one row, without `t`: trackio has no times but its own.

        Figures that are not finite are left out, since its database has no such numbers.
        """
        finite = {name: figure for name, figure in figures.items() if math.isfinite(figure)}
        if finite:
            self._trackio.log(finite, step=step)

    def close(self) -> None:
        """Wait until everything is written."""
        self._trackio.finish()
