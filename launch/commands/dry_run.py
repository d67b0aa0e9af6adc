"""`--dry-run`: what a run would be; nothing is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from launch.checks.checks_first import as_typed
from launch.checks.preflight import find, line_of
from launch.config.environment_text import environment_lines, left_out_lines
from launch.config.first_tests import FIRST_TESTS
from launch.config.job import Job, examine, together
from launch.config.records import banner, environment_of, torchrun_line_of
from launch.config.request import Request
from launch.files.data_file import NoDataError
from launch.files.model_folder import model_folder
from launch.plan.demo_that_fits import demo_that_fits
from launch.plan.of_run import show_plan_of
from launch.run.launched import address_limit
from machine.memory.address_space import weight_files
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, runs_folder


def show(request: Request, console: Console, environ: Mapping[str, str]) -> ExitCode:
    """Print the configuration, environment and torchrun line of a run, and start nothing.

    Raises UserError at the end with all that keeps the run from being started.
    """
    job, errors = examine(request, environ)
    job = demo_that_fits(job, request, environ)
    folder = RunDir(runs_folder() / "RUN_ID")
    environment = environment_of(job, folder, environ)
    what, files = "", None
    if job.config.script is None:
        what = ", once the data are prepared"
        model = model_folder(job.config)
        files = [] if model is None else weight_files(model)  # none until fetched or made
    if limit := address_limit(job, files, environment.of_child(environ)):
        environment = environment.with_variable(limit)
    findings = [line_of(finding) for finding in find(job, environ)]
    console.out("\n".join([banner(job, folder), "", "this machine:", *findings, ""]))
    code = show_plan_of(job, console, environ)
    lines = [
        "",
        config_text(job.config, job.sources),
        *_first_tests(job, environ, errors),
        "cores of the ranks (NUMA):",
        *job.bindings.lines(),
        "",
        "environment of the ranks:",
        *environment_lines(environment),
        *left_out_lines(environment, job.config.launch.keep_env),
        "",
        f"the equivalent torchrun command{what}:",
        torchrun_line_of(job, folder, environment),
    ]
    console.out("\n".join(lines))
    if errors:
        console.out("")
        console.file.flush()  # what is wrong comes last
        raise together(as_typed(errors, request.profile, environ))
    return code


def _first_tests(
    job: Job, environ: Mapping[str, str], errors: Sequence[UserError]
) -> Iterator[str]:
    """Yield lines about the tests that a run of a profile begins with."""
    if job.config.script is not None:
        return
    yield "before the ranks are started:"
    lacks_data = any(isinstance(failed, NoDataError) for failed in errors)
    for test in FIRST_TESTS:
        try:
            yield f"  {test.line(environ, by_default=lacks_data)}"
        except UserError as error:
            yield f"  {test.title}: {error.args[0]}"
    yield ""
