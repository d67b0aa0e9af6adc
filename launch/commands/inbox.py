"""`./airlock inbox`: its words are handed through to the room `inbox`."""

from __future__ import annotations

import os
import sys

import click


@click.command(
    add_help_option=False,
    options_metavar="",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[FOLDER] [COMMAND] [OPTIONS]")
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
    # The same process: its terminal, its signals, and the pid that systemd knows stay.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "inbox", *words])  # noqa: S606
