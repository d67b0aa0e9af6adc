"""A run of a rung's own: the configuration, the ranks and a folder as a real one has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config.job import Job, place_job, resolve_job
from launch.config.records import environment_of
from launch.config.request import Request
from launch.files.model_folder import check_model
from launch.files.preparation import have_model
from launch.process.signals import Signals
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.paths import RunDir
from rundir.scratch import scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """`env` is the environment that its ranks get."""

    job: Job
    folder: RunDir
    env: dict[str, str]

    @property
    def config(self) -> RunConfig:
        """As resolved; the number of ranks is known."""
        return self.job.config

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        return self.job.placement.num_ranks

    def model_folder(self) -> Path:
        """The model's files, made or fetched if need be. Raises UserError where they are no use."""
        check_model(self.config)
        return have_model(self.config, self.folder, self.env, Signals())


@contextmanager
def own_run(request: Request) -> Iterator[OwnRun]:
    """The folder is gone afterwards. Raises UserError when the ranks cannot be placed."""
    config, sources = resolve_job(request, os.environ)
    placement = place_job(request, config, sources, os.environ)
    config = replace(config, launch=replace(config.launch, num_ranks=placement.num_ranks))
    job = Job(config=config, sources=sources, placement=placement, resume_from=None)
    with scratch("check") as temporary:
        folder = RunDir(temporary)
        folder.events.mkdir()
        folder.config.write_text(config_text(config, sources), encoding="utf-8")
        env = environment_of(job, folder, os.environ).of_child(os.environ)
        yield OwnRun(job=job, folder=folder, env=env)
