"""The rows of each step, by their positions: a pure function of the step, also after a resume.

Positions count rows through all epochs: position p is in epoch `p // num_rows`. A checkpoint keeps
where it stands (`Position`), and with which seeds epochs were drawn. So a resumed run may have
another batch size, at once, and another seed, from the next epoch on: each row still comes once an
epoch. Where train.epochs end the run, its last step has only the rows that are left.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rundir.checkpoints import step_of
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir


class FromEpoch(Protocol):
    """Something that holds from an epoch on."""

    @property
    def from_epoch(self) -> int:
        """The first epoch, counted from 0."""


Holding = TypeVar("Holding", bound=FromEpoch)


def of_epoch(some: Sequence[Holding], epoch: int) -> Holding:
    """Return the last of `some`, whose epochs ascend from 0, that holds in `epoch`."""
    return next(item for item in reversed(some) if item.from_epoch <= epoch)


@dataclass(frozen=True, slots=True)
class Draw:
    """The settings that decide the order of rows, from an epoch (counted from 0) on."""

    from_epoch: int = 0
    seed: int = 0
    shuffle_mib: int = 0  # 0: the data are not streamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The place in the data that a checkpoint stands at, and how the run came there."""

    epoch: int  # from 0
    rows_used: int  # of that epoch
    batch_size: int
    draws: tuple[Draw, ...]

    @property
    def next_epoch(self) -> int:
        """The first epoch of which no row is used."""
        return self.epoch + (self.rows_used > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The rows of a run's steps, from `first_step` at position `first_row` on.

    `end` is the position at which train.epochs end the run; without, `max_steps` does.
    """

    num_rows: int  # in an epoch
    batch_size: int
    draws: tuple[Draw, ...] = (Draw(),)
    first_step: int = 0
    first_row: int = 0
    end: int | None = None
    max_steps: int = 0

    @property
    def num_steps(self) -> int:
        """The steps of the run, those before `first_step` included."""
        if self.end is None:
            return self.max_steps
        left = max(0, self.end - self.first_row)
        return self.first_step + math.ceil(left / self.batch_size)

    @property
    def last_row(self) -> int:
        """The position at which the run ends."""
        return self._row(self.num_steps)

    def rows(self, step: int) -> range:
        """Return the positions of the rows of `step` (from 0); none after the run's end."""
        return range(self._row(step), self._row(step + 1))

    def position(self, step: int) -> Position:
        """Return the place in the data after `step` steps."""
        epoch, rows_used = divmod(self._row(step), self.num_rows)
        return Position(
            epoch=epoch, rows_used=rows_used, batch_size=self.batch_size, draws=self.draws
        )

    def seed(self, epoch: int) -> int:
        """Return the seed with which an epoch is drawn."""
        return of_epoch(self.draws, epoch).seed

    def _row(self, step: int) -> int:
        row = self.first_row + (step - self.first_step) * self.batch_size
        return row if self.end is None else max(self.first_row, min(row, self.end))


def course_of(config: RunConfig, num_rows: int, resume_from: str | None = None) -> Course:
    """Return the course of a run whose epochs have `num_rows` rows, from a checkpoint on if given.

    Raises UserError for a checkpoint that does not say where it stands.
    """
    train, at = config.train, None
    draw = Draw(0, train.seed, config.data.shuffle_mib if config.data.streaming else 0)
    if resume_from is not None:
        at = position_of(Path(resume_from), num_rows)
    return Course(
        num_rows=num_rows,
        batch_size=train.global_batch_size,
        draws=(draw,) if at is None else _drawn_on(at, draw),
        first_step=0 if resume_from is None else step_of(Path(resume_from)),
        # With other data, which only --force resumes with, an epoch may have fewer rows.
        first_row=0 if at is None else at.epoch * num_rows + min(at.rows_used, num_rows),
        end=max(1, round(train.epochs * num_rows)) if train.max_steps <= 0 else None,
        max_steps=train.max_steps,
    )


def _drawn_on(at: Position, draw: Draw) -> tuple[Draw, ...]:
    """Return how epochs were drawn so far, and are by `draw` from the next one on."""
    kept = tuple(draw_ for draw_ in at.draws if draw_.from_epoch < max(1, at.next_epoch))
    if (kept[-1].seed, kept[-1].shuffle_mib) == (draw.seed, draw.shuffle_mib):
        return kept
    if at.next_epoch == 0:
        return (draw,)
    return (*kept, Draw(at.next_epoch, draw.seed, draw.shuffle_mib))


def position_of(checkpoint: Path, num_rows: int) -> Position:
    """Return where a checkpoint stands; in one of an earlier version, all steps had one size.

    Raises UserError if its files do not say.
    """
    file = checkpoint / "state.json"
    try:
        notes = json.loads(file.read_text(encoding="utf-8")).get("notes", {})
        if "position" in notes:
            return _from_json(notes["position"])
        file = RunDir(checkpoint.parent.parent).config
        before = read_config(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} does not say which rows the checkpoint {checkpoint.name} was trained on: "
            f"{error!r}",
            do=f"mv {checkpoint} /tmp   # --resume then goes on from the checkpoint before it",
            code=ExitCode.DATA,
        ) from error
    begun = replace(course_of(before, num_rows), end=None)
    return begun.position(step_of(checkpoint))


def _from_json(table: dict[str, Any]) -> Position:
    draws = tuple(Draw(**draw) for draw in table["draws"])
    return Position(**table | {"draws": draws})
