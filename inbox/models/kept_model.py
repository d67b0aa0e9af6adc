"""The folder of models: one for each job, and the link `current` to the last good one."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from pathlib import Path

from rundir.atomic import new_folder, owned, remove_abandoned, sync
from rundir.errors import UserError

_SHARED_BYTES = 1 << 20  # larger files are shared with the run, as another name of the same bytes


def keep(exported: Path, model: Path) -> None:
    """Put the model that a run has exported at `model`, whole or not at all; once.

    Weights are linked, which takes no space and survives the removal of the run, and copied where
    the disk is another. Raises OSError (a full disk).
    """
    remove_abandoned(model.parent, model.name)
    if model.is_dir():
        return
    with new_folder(model) as temporary:
        try:
            shutil.copytree(exported, temporary, copy_function=_shared, dirs_exist_ok=True)
        except shutil.Error as error:  # one for each file
            _, _, first = error.args[0][0]
            raise OSError(f"{model} cannot be written: {first}") from error


def _shared(source: str, to: str) -> None:
    if Path(source).stat().st_size >= _SHARED_BYTES:
        with contextlib.suppress(OSError):  # another disk, or one without links
            Path(to).hardlink_to(source)
            return
    shutil.copy2(source, to)


def point_at(link: Path, model: Path) -> None:
    """Have the link `link` lead to `model`, in one step: it is never gone, and never dangling."""
    for path in link.parent.glob(f".{link.name}.*@*.link"):  # of a killed inbox
        path.unlink(missing_ok=True)
    new = link.parent / f"{owned(link.name)}link"
    new.symlink_to(model.name)
    new.replace(link)
    sync(link.parent)


def pointed_at(link: Path) -> Path | None:
    """Return the model that `link` leads to; None if there is no link.

    Raises UserError if it leads nowhere: to go on from the base would lose what was learnt.
    """
    if not os.path.lexists(link):
        return None
    model = link.resolve()
    if not (model / "config.json").is_file():
        here, folder = shlex.quote(str(link)), shlex.quote(str(link.parent))
        raise UserError(
            f"{link} leads to {model}, which is no model, or gone",
            do=f"ln -sfn MODEL {here}   # one of: ls {folder}; to begin anew: rm {here}",
        )
    return model
