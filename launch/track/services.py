"""W&B and trackio, where they are installed and asked for."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from launch.track.event_reader import Tracker
from launch.track.tensorboard import TensorBoard
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.paths import RunDir

FILES = "tensorboard"
SERVICES = {"wandb": "W&B", "trackio": "trackio"}  # package → what people call it
TITLES = {FILES: "TensorBoard", **SERVICES}
LAST_WORDS = "ends: "  # so begins the line of a process that says why it fails
_PROJECT = "airlock"
_STEP = "train/global_step"  # W&B's own steps only count calls

Say = Callable[[str], None]


def services_in(report_to: str) -> list[str]:
    """The services that `train.report_to` names. Raises UserError for one that is not known."""
    names = [name.strip() for name in report_to.split(",") if name.strip()]
    for name in names:
        if name not in TITLES:
            raise UserError(
                f"train.report_to names {name!r}",
                do=f"{' or '.join(SERVICES)}; TensorBoard's files are written in any case",
            )
    return [name for name in dict.fromkeys(names) if name != FILES]


def make_tracker(name: str, run: RunDir, say: Say, *, is_beside: bool = False) -> Tracker:
    """The tracker called `name`, for `run`. Raises whatever its library raises.

    `is_beside`: the run goes on, so that W&B unreached is to keep what it gets for later.
    """
    if name == FILES:
        return TensorBoard(run.tensorboard)
    config = dataclasses.asdict(read_config(run.config))
    if name == "wandb":
        return Wandb(run, config, say, offline_instead=is_beside)
    return Trackio(run, config, say)


class Wandb:
    """A run of W&B with the id of ours, which it goes on with if there is one already.

    WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_DIR and the like mean what they always do.
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
            # What it would record of this process and its folder says nothing of the training.
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )
        why = ""
        try:
            self._run = begin()
        except wandb.Error as error:  # no key, no network, no right to the project
            if not offline_instead:
                raise
            wandb.teardown()  # its process takes the id for one in use
            why, self._run = f"{error}: ", begin(mode="offline")
        if self._run.offline:
            say(f"{why}offline; `wandb sync {Path(self._run.dir).parent}` uploads it later")
        elif self._run.url:
            say(str(self._run.url))
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP, step_sync=True)

    def repeat_from(self, step: int) -> None:
        """Nothing: it forgets nothing, and charts show both."""

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:
        """As one row of its history."""
        self._run.log({**figures, _STEP: step, "_timestamp": t})

    def flush(self) -> None:
        """Nothing: it uploads by itself."""

    def close(self) -> None:
        """Wait until it is uploaded."""
        self._run.finish()


class Trackio:
    """A run of trackio with the id of ours for its name, which it goes on with if there is one.

    TRACKIO_DIR, TRACKIO_SPACE_ID and the like mean what they always do.
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
            auto_log_gpu=False,  # of the host and its GPUs the run's own events tell
            auto_log_cpu=False,
        )
        say(f"run {run.run_id} of the project {project}")

    def repeat_from(self, step: int) -> None:
        """Nothing: it forgets nothing, and charts show both."""

    def add(self, step: int, t: float, figures: dict[str, float]) -> None:  # noqa: ARG002 - it has no times but its own
        """As one row; what is no number is left out, since its database has none."""
        finite = {name: figure for name, figure in figures.items() if math.isfinite(figure)}
        if finite:
            self._trackio.log(finite, step=step)

    def flush(self) -> None:
        """Nothing: it writes by itself."""

    def close(self) -> None:
        """Wait until it is written."""
        self._trackio.finish()
