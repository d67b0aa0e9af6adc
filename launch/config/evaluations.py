"""Checks of the settings of evaluation that only make sense together."""

from __future__ import annotations

from machine.typed import again
from rundir.config import RunConfig
from rundir.errors import UserError


def check_evaluations(config: RunConfig) -> None:
    """Raise UserError if a run is to stop early by a held-out loss that nothing would measure."""
    train, data = config.train, config.data
    if not train.early_stop_evaluations:
        return
    what = f"train.early_stop_evaluations = {train.early_stop_evaluations}"
    start = again(config.profile)
    if not train.evaluate:
        raise UserError(
            f"{what}, and train.evaluate = false: nothing is evaluated",
            do=f"{start} --set train.evaluate=true",
        )
    if not train.eval_every_steps:
        raise UserError(
            f"{what}, and train.eval_every_steps = 0: it is evaluated before and after alone",
            do=f"{start} --set train.eval_every_steps=50   # say",
        )
    if not data.eval_path and not data.held_out_share:
        raise UserError(
            f"{what}, and there are no held-out data: data.eval_path is empty, data.eval_fraction "
            f"{data.eval_fraction:g}",
            do=f"{start} --set data.eval_fraction=0.05   # or data.eval_path=FILE",
        )
