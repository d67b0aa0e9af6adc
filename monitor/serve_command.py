"""The command line of the server: `./airlock serve` and `./airlock monitor`."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from monitor.api.http_server import bound, serve
from monitor.api.server_settings import LOOPBACK, ServerSettings, token_of
from monitor.http.json_api import NotFoundError
from monitor.runs.run_list import Runs
from rundir.errors import UserError
from rundir.paths import ROOT, runs_folder, shown

PORT = 8080
_RECORDED = ROOT / "examples/recorded"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--run", default="", metavar="RUN", help="Show this run first: its id, or latest.")
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder of runs; by default AIRLOCK_RUNS_DIR, or runs/ in the clone.",
)
@click.option(
    "--inbox",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="AIRLOCK_INBOX_DIR",
    help="Serve this inbox as well; its runs, if no other folder is named.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"The port; by default {PORT}, or the next free one. 0: any free one.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which the server is reached, as that of a proxy. May be repeated.",
)
@click.option(
    "--private",
    "is_private",
    is_flag=True,
    help="Reading needs the token as well: on a machine that others use. So it is with --host.",
)
@click.option("--until-end-of", "parent", type=int, metavar="PID", hidden=True)  # beside a run
@click.option(
    "--demo", is_flag=True, help="Show a recorded run of eight ranks, before any of yours."
)
@click.pass_obj
def command(  # noqa: PLR0913 - one for each option
    with_pages: bool,
    /,
    *,
    run: str,
    runs_dir: Path | None,
    inbox: Path | None,
    host: str,
    port: int | None,
    allow_hosts: tuple[str, ...],
    is_private: bool,
    demo: bool,
    parent: int | None,
) -> None:
    """Answer questions about runs over HTTP, until Ctrl-C. docs/serve.md tells the rest."""
    token, kept_in = token_of(os.environ)
    with _folder(runs_dir, inbox, demo=demo) as folder:
        if run:
            _check(folder, run)
        with bound(host, PORT if port is None else port, is_named=port is not None) as listening:
            settings = ServerSettings(
                runs_folder=folder,
                host=host,
                port=listening.getsockname()[1],
                allow_hosts=tuple(name.lower() for name in allow_hosts),
                token=token,
                is_private=is_private,
                inbox=None if inbox is None else inbox.absolute(),
                with_pages=with_pages,
                run=run,
                parent=parent,
            )
            lines = _lines(settings, kept_in)
            serve(settings, listening, lambda: click.echo("\n".join(lines)))
    click.echo("airlock: the server has ended; runs go on")


@contextlib.contextmanager
def _folder(runs_dir: Path | None, inbox: Path | None, *, demo: bool) -> Iterator[Path]:
    """Yield the folder of runs that is served."""
    if demo:
        # A copy: notes and requests to a run are written into its folder.
        with TemporaryDirectory(prefix="airlock-demo-") as copy:
            shutil.copytree(_RECORDED, copy, dirs_exist_ok=True)
            yield Path(copy)
        return
    own = None if inbox is None else inbox.absolute() / "runs"
    is_named = runs_dir is not None or "AIRLOCK_RUNS_DIR" in os.environ
    if runs_dir is not None:
        yield runs_dir.absolute()
    elif own is not None and not is_named:
        yield own
    else:
        yield runs_folder()


def _check(folder: Path, run: str) -> None:
    try:
        Runs(folder).find(run)
    except NotFoundError as error:
        raise UserError(error.text, do=f"ls {shlex.quote(str(folder))}") from error


def _lines(settings: ServerSettings, kept_in: str) -> list[str]:
    """Return what is said at the start: what is served, where, and the token."""
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    if settings.host in ("0.0.0.0", "::"):  # noqa: S104 - a comparison
        name = "localhost"
    base = f"http://{name}:{settings.port}"
    what = "airlock monitor" if settings.with_pages else "airlock serve"
    lines = [f"{what}: runs in {shown(settings.runs_folder)}"]
    if settings.with_pages:
        page = f"run?run={settings.run}" if settings.run else ""
        lines.append(f"  open {base}/{page}#token={settings.token}")
    else:
        path = f"api/runs/{settings.run}/status" if settings.run else "api/runs"
        header = f" -H 'Authorization: Bearer {settings.token}'"
        with_token = header if settings.reading_needs_token else ""
        lines.append(f"  curl{with_token} {base}/{path}")
        lines.append(f"  all paths: {base}/api/openapi.json")
    needs = "reading and controls need" if settings.reading_needs_token else "controls need"
    lines.append(f"  {needs} the token {settings.token}   (kept in {kept_in})")
    if settings.with_pages and settings.host in LOOPBACK:
        where = f"-L {settings.port}:localhost:{settings.port} {socket.gethostname()}"
        lines.append(f"  from another computer: ssh {where}, and the same address there")
    if settings.host not in LOOPBACK:
        lines.append(
            "  others can reach this, and read along, as HTTP is not encrypted; safer: without "
            f"--host, and ssh -L {settings.port}:localhost:{settings.port} THIS_MACHINE"
        )
    return lines


def main(words: Sequence[str]) -> None:
    """Run `serve` or `monitor`, the first of `words`, and exit."""
    name = words[0] if words else "serve"
    try:
        command.main(
            list(words[1:]),
            prog_name=f"airlock {name}",
            obj=name == "monitor",
            standalone_mode=False,
        )
    except click.UsageError as error:
        message = error.format_message().rstrip(".")
        text = UserError(message[:1].lower() + message[1:], do=f"./airlock {name} --help")
        click.echo(f"airlock: {text}", err=True)
        sys.exit(int(text.code))
    except UserError as error:
        click.echo(f"airlock: {error}", err=True)
        sys.exit(int(error.code))
    except (click.Abort, KeyboardInterrupt):  # before the server had begun
        sys.exit(130)
