"""A rung's own run: configuration, ranks and run folder, set up as for a real one."""

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
from machine.processes.signals import Signals
from rundir.atomic import scratch
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.paths import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """A run that a rung sets up; `env` is the environment that its ranks get."""

    job: Job
    folder: RunDir
    env: dict[str, str]

    @property
    def config(self) -> RunConfig:
        """The resolved configuration, with the number of ranks filled in."""
        return self.job.config

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.job.placement.num_ranks

    def model_folder(self) -> Path:
        """Create or fetch the model's files if necessary. Raises UserError if they are unusable."""
        check_model(self.config)
        return have_model(self.config, self.folder, self.env, Signals())


@contextmanager
def own_run(request: Request) -> Iterator[OwnRun]:
    """Set up a run in a temporary folder. Raises UserError when the ranks cannot be placed."""
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
