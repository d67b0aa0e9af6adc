"""`./airlock serve` and `./airlock monitor`: their words are handed through to `monitor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from launch.config.extra_packages import FOR_PAGES, FOR_SERVING, require_packages
from machine.processes.output import end_with

_WORDS = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]")
_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command(add_help_option=False, options_metavar="", context_settings=_SETTINGS)
@_WORDS
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
    _become("serve", words, FOR_SERVING)


@click.command(add_help_option=False, options_metavar="", context_settings=_SETTINGS)
@_WORDS
def monitor(words: tuple[str, ...]) -> None:
    """Show run folders as live pages in a browser, and as the API of `airlock serve`.

    \b
      ./airlock monitor                   prints the address to open
      ./airlock monitor --run latest      begins with that run
      ./airlock monitor --demo            two small runs made for this

    Takes the options of `airlock serve`, and needs the extra `monitor`; docs/serve.md.
    """
    _become("monitor", words, FOR_PAGES)


def _become(name: str, words: Sequence[str], needed: dict[str, str]) -> None:
    """Turn this process into the server: its terminal, its signals and its pid stay."""

    def go(*_: object) -> None:
        require_packages(name, needed)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "monitor", name, *words])  # noqa: S606

    end_with(go)
