"""The command line of reports: `./airlock report RUN -o FILE.html`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from monitor.http.json_api import ApiError
from monitor.runs.run_list import Runs
from rundir.atomic import write_text
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, runs_folder


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", default="latest", metavar="[RUN]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; by default RUN.html here.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there already.")
def main(run: str, output: Path | None, force: bool) -> None:
    """Write the pages of RUN (the latest by default) as one HTML file, to send to a colleague.

    It opens without a server and without a network; secrets are masked, at most 8 MB.
    """
    try:
        path, size_bytes = write_report(run, output, replaces=force)
    except UserError as error:
        click.echo(f"{error}", err=True)
        raise SystemExit(ExitCode.USAGE) from None
    click.echo(f"{path}   {size_bytes / 1e6:.1f} MB; it opens in any browser, without a server")


def write_report(run: str, output: Path | None, *, replaces: bool) -> tuple[Path, int]:
    """Write the report; return its path and its size. Raises UserError."""
    from monitor.report.write import report_html

    found_run = _find(run)
    path = output or Path(f"{found_run.run_id}.html")
    if path.exists() and not replaces:
        raise UserError(
            f"{path} is there already",
            do=f"./airlock report {shlex.quote(run)} -o {shlex.quote(str(path))} --force",
        )
    html = report_html(found_run)
    try:
        write_text(path.absolute(), html)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}",
            do=f"./airlock report {shlex.quote(run)} -o ~/{found_run.run_id}.html",
        ) from error
    return path, len(html.encode())


def _find(run: str) -> RunDir:
    """Return the run with that id, or of that folder. Raises UserError."""
    given = Path(run)
    if "/" in run and (given / "config.toml").is_file():
        return RunDir(given.resolve())
    try:
        return Runs(runs_folder()).find(run.strip("/"))
    except ApiError as error:
        raise UserError(error.text, do="./airlock ps   # runs of this machine") from error
