"""The help texts that are shown without an environment, and the table of leftover variables."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import click

from launch.commands.cli import airlock
from launch.config.leftover_variables import RULES
from rundir.paths import ROOT

HELP = ROOT / "setup/help"
_WIDTH = 78  # click's default where the terminal is not known


def leftovers_table() -> str:
    """Return the table of variables that do harm, as Markdown."""
    rows = ["| variable | values | passed on | why |", "|---|---|---|---|"]
    for rule in RULES:
        names = ", ".join(f"`{name}`" for name in rule.names)
        always = "" if rule.can_keep else ", always"
        passed = "yes, with a warning" if rule.may_be_needed else "no"
        rows.append(f"| {names} | {rule.values}{always} | {passed} | {rule.why} |")
    return "\n".join(rows)


# What each start script presets, for its own help.
PRESETS = {
    "start.sh": "Without PROFILE or SCRIPT.py this is 32b, on all visible GPUs.",
    "start_single.sh": (
        "This is start.sh for one GPU: it presets 14b, 1 rank, RUN_IMPORT_TEST=1 and "
        "RUN_SINGLE_GPU_TEST=1. PROFILE, --num-gpus, NUM_GPUS and RUN_*=0 go before that."
    ),
    "start_4gpu.sh": (
        "This is start.sh for four GPUs: it presets 32b and 4 ranks. PROFILE, --num-gpus and "
        "NUM_GPUS go before that."
    ),
}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command of `./airlock` with its name."""
    context = _context(airlock, "airlock", None)
    for name in airlock.list_commands(context):
        if command := airlock.get_command(context, name):
            yield name, command


def help_texts() -> Iterator[tuple[Path, str]]:
    """Yield each file of setup/help with its text: of `./airlock`, a command or a script.

    environment.sh shows them, so that help needs no Python environment.
    """
    above = _context(airlock, "airlock", None)
    yield HELP / "airlock.txt", airlock.get_help(above) + "\n"
    for name, command in commands():
        yield HELP / f"{name}.txt", command.get_help(_context(command, name, above)) + "\n"
    run = dict(commands())["run"]
    for script, presets in PRESETS.items():
        own = copy.copy(run)
        own.help = _with_presets(run.help or "", presets)
        text = own.get_help(_context(own, f"./{script}", None))
        yield HELP / f"{Path(script).stem}.txt", text + "\n"


def _with_presets(text: str, presets: str) -> str:
    """Return the help of `run` for a start script: its first paragraph ends with them."""
    usual = "(tiny, 14b, 32b, …; 32b by default)"
    assert usual in text
    return text.replace(usual, "(tiny, 14b, 32b, …)").replace("\n\n", f" {presets}\n\n", 1)


def _context(command: click.Command, name: str, above: click.Context | None) -> click.Context:
    help_options = {"help_option_names": ["-h", "--help"]} if above is None else {}
    return command.make_context(
        name, [], above, resilient_parsing=True, terminal_width=_WIDTH, **help_options
    )
