"""Checks before a training: those that RUN_* ask for, and all of them where no data are named."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NoReturn

from rich.console import Console

from launch.checks.preflight import find, line_of
from launch.checks.run_rung import run_rung
from launch.checks.rungs import rung_called
from launch.config.first_tests import FIRST_TESTS
from launch.config.job import Job, together
from launch.config.records import banner, environment_of
from launch.config.request import PLAN, Request
from launch.files.data_file import NoDataError, data_commands
from launch.plan.fit import Fit
from launch.plan.planning import plan_of_job
from launch.plan.show import verdict_lines
from machine.processes.signals import Signals
from machine.typed import again, console_program
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, runs_folder


def run_first_tests(
    job: Job,
    console: Console,
    env: Mapping[str, str],
    signals: Signals,
    *,
    by_default: bool = False,
) -> Iterator[UserError]:
    """Run the tests that the environment asks for, each below a heading; yield each failure.

    Raises Interrupted if a stop was requested.
    """
    for test in FIRST_TESTS:
        is_asked = test.is_asked(env, by_default=by_default)
        if is_asked or by_default:
            _say(console, f"\n{test.line(env, by_default=by_default)}")
        if not is_asked:
            continue
        rung, show = rung_called(test.rung), partial(_say, console)
        options = ["--profile", job.profile or job.config.profile, *_typed_settings(job)]
        done = run_rung(rung, options, env, signals, show=show)
        if not done.ok:
            yield UserError(
                f"the {test.title} ({rung.module}) failed with exit code {done.code}",
                do=f"{again(job.config.profile, {test.variable: '0'})}   # starts without it; "
                "better: mend what it says",
                code=ExitCode.PREFLIGHT,
            )


def check_without_data(
    request: Request,
    job: Job,
    errors: Sequence[UserError],
    console: Console,
    environ: Mapping[str, str],
) -> NoReturn:
    """Run all checks of a request that names no data, and say what to type to train.

    `errors` are those of the request, its lack of data among them. Raises UserError with them, or
    with the tests that have failed first; and Interrupted.
    """
    signals = Signals.listening()
    env = environment_of(job, RunDir(runs_folder() / "RUN_ID"), environ).of_child(environ)
    del env["AIRLOCK_RUN_DIR"]  # there is no run
    _say(console, banner(job))
    _say(console, "no training data are named: this checks machine, packages and plan, no more")
    for finding in find(job, environ):
        if finding.level != "ok":
            _say(console, line_of(finding))
    failed = list(run_first_tests(job, console, env, signals, by_default=True))
    _say(console, "\nplan: does it fit?")
    _say_plan(request, job, console, environ, signals)
    _say(console, "")
    raise together([*failed, *as_typed(errors, request.profile, environ)])


def lacks_only_data(errors: Sequence[UserError]) -> bool:
    """Return whether no data are named, and nothing else that was typed is wrong."""
    others = [error for error in errors if not isinstance(error, NoDataError)]
    return len(others) < len(errors) and all(other.code is not ExitCode.USAGE for other in others)


def as_typed(
    errors: Sequence[UserError], profile: str, environ: Mapping[str, str]
) -> list[UserError]:
    """Return the errors, the lack of data last and with commands that begin as this one did."""
    typed = again(profile, {}, environ).replace(" --dry-run", "")
    others = [error for error in errors if not isinstance(error, NoDataError)]
    lacking = [error for error in errors if isinstance(error, NoDataError)]
    return others + [
        UserError(str(missing.args[0]), do=data_commands(typed)) for missing in lacking
    ]


def with_checks_here(errors: Sequence[UserError], request: Request) -> list[UserError]:
    """Return the errors of a request for GPUs that are not here, with the checks that need none."""
    first, *others = errors
    if request.script is not None or first.code is not ExitCode.PREFLIGHT:
        return list(errors)
    settings = [f"--set={setting}" for setting in request.settings]
    words = shlex.join(["check", "imports", "--profile", request.profile, *settings])
    console = console_program()
    do = (
        f"{first.do}\n  → {console} {words}   # the import test, which needs no GPU; nor do "
        f"`{console} check basic` and `{console} check environment`"
    )
    return [UserError(str(first.args[0]), do=do, code=first.code), *others]


def _say_plan(
    request: Request,
    job: Job,
    console: Console,
    environ: Mapping[str, str],
    signals: Signals,
) -> None:
    try:
        plan = plan_of_job(job, environ, signals)
    except (UserError, OSError) as error:
        _say(console, f"airlock: no plan: {error.args[0]}")
        return
    _say(console, "\n".join(verdict_lines(plan)))
    more = "" if plan.verdict is Fit.FITS else ", and what would fit instead"
    command = request.command(PLAN, {}, num_gpus=job.placement.num_ranks)
    _say(console, f"  → {command}   # the whole plan{more}")


def _typed_settings(job: Job) -> Iterator[str]:
    """Yield the command line's settings as options; a test resolves the rest as the run does."""
    for key, source in job.sources.items():
        section, _, name = key.partition(".")
        is_value = section in ("model", "data", "train", "launch", "limits")
        if source.startswith("option --") and is_value:
            yield f"--set={key}={getattr(getattr(job.config, section), name)}"


def _say(console: Console, text: str) -> None:
    console.out(text)
    console.file.flush()  # before a child writes to the same place
