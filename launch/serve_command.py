"""`./airlock serve` and `./airlock monitor`: their words are handed through to `monitor`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import click

from launch.config.extra_packages import is_installed
from launch.process.output import end_with
from rundir.errors import UserError
from rundir.exit_codes import ExitCode

# What the extra `monitor` brings: the module, and what pip calls it.
_FOR_SERVING = {"starlette": "starlette>=0.49", "uvicorn": "uvicorn>=0.35"}
FOR_PAGES = {**_FOR_SERVING, "uplot": "uplot-python>=1.1"}

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
    _become("serve", words, _FOR_SERVING)


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
        require(name, needed)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "monitor", name, *words])  # noqa: S606

    end_with(go)


def require(name: str, needed: dict[str, str]) -> None:
    """Raise UserError if packages are missing, with the command that installs them."""
    missing = [package for module, package in needed.items() if not is_installed(module)]
    if missing:
        many = len(missing) > 1
        raise UserError(
            f"airlock {name} needs the package{'s' * many} {' and '.join(missing)}, which "
            f"{'are' if many else 'is'} not installed",
            do=shlex.join([sys.executable, "-m", "pip", "install", *missing]),
            code=ExitCode.PREFLIGHT,
        )
