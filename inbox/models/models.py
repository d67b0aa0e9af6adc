"""The models of an inbox: each is kept and scored, and the last good one is `current`.

    models/current          a link to the last good model, replaced in one step
    models/descent.jsonl    a line for each model: what it came from, its data, its scores
    models/JOB/             the model of each job, an ordinary Hugging Face folder
    models/sets/            the held-out rows of each set (inbox/models/held_out.py)

Written in this order, so that a kill at any point leaves what was, and the same call ends the work:
the model, the set, the line of descent, the link.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from inbox.models.descent import Descent, Line
from inbox.models.held_out import HeldOutSets
from inbox.models.held_out_scores import Scorer
from inbox.models.judging import Candidate, Judge
from rundir.atomic import new_folder, owned, remove_abandoned, sync
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.paths import RunDir
from rundir.prepared import read_prepared

_SHARED_BYTES = 1 << 20  # larger files are shared with the run, as another name of the same bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """What became of the model of a job."""

    is_current: bool  # it is `models/current` now
    reason: str  # a sentence for the verdict
    scores: dict[str, dict[str, float]]  # set: {"before", "base", "after", "exact_match"}


class Models:
    """The folder `models` of an inbox; one process at a time uses it."""

    def __init__(self, folder: Path, *, forgetting: float, scorer: Scorer) -> None:
        """`forgetting`: the share by which a held-out loss may rise (judging.py)."""
        self._folder, self._forgetting, self._scorer = folder.resolve(), forgetting, scorer
        self._descent = Descent(self._folder / "descent.jsonl")
        self._sets = HeldOutSets(self._folder / "sets")

    @property
    def current(self) -> Path:
        """The link to the last good model; absent until there is one."""
        return self._folder / "current"

    def start_from(self, *, fresh: bool) -> str | None:
        """Return the model.path of the next training, or None for the base of its profile.

        Raises UserError if `current` leads nowhere.
        """
        model = None if fresh else pointed_at(self.current)
        return None if model is None else str(model)

    def consider(self, *, job_id: str, name: str, content_hash: str, run: Path) -> ModelOutcome:
        """Keep the model of a training that has ended well; make it current if it is good.

        Called again with the same `job_id`, after a kill, it ends in the same state: what was
        decided stays decided. Raises OSError (a full disk), StoppedError if an evaluation was
        stopped, and UserError if `current` leads nowhere.
        """
        line = self._descent.of(job_id)
        if line is None or not line["is_decided"]:
            line = self._considered(job_id, name, content_hash, RunDir(run))
            self._descent.add(line)
        made_current = [entry["job"] for entry in self._descent.lines() if entry["is_current"]]
        is_last = made_current[-1:] == [job_id]
        if is_last:
            point_at(self.current, self._folder / job_id)
        return ModelOutcome(is_current=is_last, reason=line["reason"], scores=line["scores"])

    def _considered(self, job_id: str, name: str, content_hash: str, run: RunDir) -> Line:
        """Keep the model and its set; return the line of descent."""
        config, model = read_config(run.config), self._folder / job_id
        self._folder.mkdir(parents=True, exist_ok=True)
        if run.model.is_dir():
            keep(run.model, model)
        candidate = Candidate(
            job_id=job_id,
            name=name,
            content_hash=content_hash,
            run=run.path,
            start=config.model.path or read_prepared(run).model_path,
            model=model,
            own=self._sets.add(run, config, name),
        )
        judge = Judge(
            forgetting=self._forgetting,
            descent=self._descent,
            sets=self._sets,
            scorer=self._scorer,
            current=pointed_at(self.current),
        )
        if model.is_dir():
            return judge.judge(candidate)
        reason = (
            "the run has exported no whole model, only adapters, from which no run can go on: "
            "--set train.merge_adapters=true exports both"
        )
        return judge.line(candidate, [], is_current=False, reason=reason)


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
