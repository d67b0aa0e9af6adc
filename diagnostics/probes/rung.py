"""What makes a rung of the ladder: its command, with the options of all, and a run of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from diagnostics.probes.result import Findings, end_after
from launch.checks.rungs import rung_called
from launch.config.job import Job, place_job, resolve_job
from launch.config.options import options
from launch.config.records import environment_of
from launch.config.request import Request
from launch.files.model_folder import check_model
from launch.files.preparation import have_model
from machine.processes.signals import Signals
from rundir.atomic import scratch
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.paths import RunDir


def rung(name: str, *, ends: bool = True) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function `check(findings, request, timeout_s, …)` the command of that rung.

    With `ends`, the whole process exits with its stacks after `timeout_s`; otherwise the function
    enforces the timeout itself, as one that waits for children must. A UserError ends the command
    with its exit code.
    """
    of_ladder = rung_called(name)
    longest = "End with stacks after this." if ends else "Longest for each part."

    def decorate(check: Callable[..., None]) -> click.Command:
        def command(
            profile: str,
            settings: tuple[str, ...],
            data: str | None,
            num_gpus: int | None,
            timeout_s: float,
            as_json: bool,
            **more: Any,
        ) -> None:
            if ends:
                end_after(timeout_s)
            request = Request(profile=profile, settings=settings, data=data, num_gpus=num_gpus)
            findings = Findings(name, as_json=as_json)
            try:
                check(findings, request, timeout_s, **more)
            except UserError as error:
                click.echo(f"airlock: {error}", err=True)
                sys.exit(int(error.code))
            findings.finish()

        made = click.command(name, help=check.__doc__)(command)
        timeout = click.option(
            "--timeout-s", default=of_ladder.timeout_s, show_default=True, help=longest
        )
        return options("profile", "data", "set", "num_gpus", "json")(timeout(made))

    return decorate


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
