"""`./airlock report`: its words are handed through to `monitor.report`."""

from __future__ import annotations

import os
import sys

import click

from launch.config.extra_packages import FOR_PAGES, require_packages
from machine.processes.output import end_with


@click.command(
    add_help_option=False,
    options_metavar="",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[RUN] [-o FILE.html]")
def report(words: tuple[str, ...]) -> None:
    """Write the pages of RUN (the latest by default) as one HTML file, to send to a colleague.

    \b
      ./airlock report                        RUN.html here, of the latest run
      ./airlock report RUN -o FILE.html       of that run, to that file
      --force                                 replace a file that is there already

    The file has all figures, answers and settings of the run, at most 8 MB, secrets masked. It
    opens without a server and without a network. Needs the extra `monitor`.
    """

    def go(*_: object) -> None:
        require_packages("report", FOR_PAGES)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "monitor.report", *words])  # noqa: S606

    end_with(go)
