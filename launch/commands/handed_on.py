"""Commands whose words are handed on to another program: `serve`, `monitor`, `report`, `inbox`.

This process becomes that program: its terminal, its signals and the pid that systemd knows stay.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import click

from launch.config.extra_packages import FOR_PAGES, FOR_SERVING, require_packages
from machine.processes.output import end_with

_Words = Callable[[tuple[str, ...]], None]


def _handed_on(metavar: str) -> Callable[[_Words], click.Command]:
    """Return a decorator for a command that reads no option itself, --help included."""

    def decorate(command: _Words) -> click.Command:
        words = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar=metavar)
        settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}
        as_command = click.command(
            add_help_option=False, options_metavar="", context_settings=settings
        )
        return as_command(words(command))

    return decorate


@_handed_on("[OPTIONS]")
def serve(words: tuple[str, ...]) -> None:
    """Serve run folders as a JSON API, with Prometheus' metrics; training is not touched.

    \b
      ./airlock serve                     http://127.0.0.1:8080, or the next free port
      ./airlock serve --demo              two small runs made for this
      --run RUN        the run to begin with        --runs-dir FOLDER  of other runs
      --inbox FOLDER   an inbox as well             --port PORT        this one, or none
      --host ADDRESS   to be reached from elsewhere, with the token only
      --allow-host NAME   a name that it is reached by, as that of a proxy
      --private        reading needs the token, too: where others use the machine

    Needs the extra `monitor`; docs/serve.md tells the rest.
    """
    _become(["monitor", "serve", *words], "serve", FOR_SERVING)


@_handed_on("[OPTIONS]")
def monitor(words: tuple[str, ...]) -> None:
    """Show run folders as live pages in a browser, and as the API of `airlock serve`.

    \b
      ./airlock monitor                   prints the address to open
      ./airlock monitor --run latest      begins with that run
      ./airlock monitor --demo            two small runs made for this

    Takes the options of `airlock serve`, and needs the extra `monitor`; docs/serve.md.
    """
    _become(["monitor", "monitor", *words], "monitor", FOR_PAGES)


@_handed_on("[RUN] [-o FILE.html]")
def report(words: tuple[str, ...]) -> None:
    """Write the pages of RUN (the latest by default) as one HTML file, to send to a colleague.

    \b
      ./airlock report                        RUN.html here, of the latest run
      ./airlock report RUN -o FILE.html       of that run, to that file
      --force                                 replace a file that is there already

    The file has all figures, answers and settings of the run, at most 8 MB, secrets masked. It
    opens without a server and without a network. Needs the extra `monitor`.
    """
    _become(["monitor.report", *words], "report", FOR_PAGES)


@_handed_on("[FOLDER] [COMMAND] [OPTIONS]")
def inbox(words: tuple[str, ...]) -> None:
    """Train whatever is dropped into FOLDER/inbox, one after the other, by ./start.sh.

    \b
      ./airlock inbox FOLDER --profile 14b     serve FOLDER, made if need be
      ./airlock inbox FOLDER status            what it does now; --json
      ./airlock inbox FOLDER list              what was dropped, and what became of it
      ./airlock inbox FOLDER add FILE...       queue copies; --priority high|normal|low
      ./airlock inbox FOLDER pause | resume    no further trainings; and again
      ./airlock inbox FOLDER stop              end it; the training saves, and goes on next time
      ./airlock inbox FOLDER skip [JOB]        set a job aside
      ./airlock inbox FOLDER retry JOB         queue one again that was set aside
      ./airlock inbox FOLDER priority JOB low  train it earlier or later

    Inside FOLDER, or with AIRLOCK_INBOX_DIR, it need not be named. The options of serving:
    ./airlock inbox FOLDER serve --help, and docs/inbox.md.
    """
    _become(["inbox", *words], "inbox", {})


def _become(module: Sequence[str], command: str, needed: Mapping[str, str]) -> None:
    """Turn this process into `python -m MODULE…`; say what to install if packages are missing."""

    def start(*_: object) -> None:
        require_packages(command, needed)
        os.execv(sys.executable, [sys.executable, "-P", "-m", *module])  # noqa: S606

    end_with(start)
