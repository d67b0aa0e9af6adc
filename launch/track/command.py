"""`airlock track RUN`: what a run beside which nothing tracked, or not to the end, has measured."""

from __future__ import annotations

from rich.console import Console

from launch.track.process import track_once
from launch.track.services import FILES, SERVICES, TITLES
from rundir.errors import UserError
from rundir.paths import find_run, runs_folder


def track(name: str, service: str | None, console: Console) -> None:
    """Write the TensorBoard files of the run called `name` anew, or send it to a service.

    Raises UserError when there is no such run or service, or it cannot be done.
    """
    try:
        run = find_run(name)
    except ValueError as error:
        raise UserError(str(error), do=f"ls {runs_folder()}") from error
    to = service or FILES
    if to not in TITLES:
        raise UserError(f"no tracker {to!r}", do=f"--to {' or --to '.join(SERVICES)}")
    track_once(run, to, lambda text: console.out(text, highlight=False))
    where = f": tensorboard --logdir {run.tensorboard}" if to == FILES else ""
    console.out(f"{run.run_id} is in {TITLES[to]}{where}", highlight=False)
