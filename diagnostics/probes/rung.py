"""A decorator that makes a rung of the ladder a command, with the options common to all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from diagnostics.probes.result import Findings, end_after
from launch.checks.rungs import rung_called
from launch.config.options import options
from launch.config.request import Request
from rundir.errors import UserError


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
