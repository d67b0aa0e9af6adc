"""`python -m launch.write_docs`: write the tables of docs/ and the help that code makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launch.cli import airlock
from launch.host.leftover_variables import RULES
from rundir.docs import Tables, write

HELP = Path(__file__).with_name("setup") / "help"
_WIDTH = 78  # click's own, where the terminal is not known


def leftovers_table() -> str:
    """What is not passed on to the ranks, as Markdown."""
    rows = ["| variable | values | why |", "|---|---|---|"]
    for rule in RULES:
        names = ", ".join(f"`{name}`" for name in rule.names)
        always = "" if rule.can_keep else ", always"
        rows.append(f"| {names} | {rule.values}{always} | {rule.why} |")
    return "\n".join(rows)


def help_texts() -> Iterator[tuple[Path, str]]:
    """Each file of launch/setup/help with its text: what `./airlock --help` and the commands' say.

    environment.sh shows them, so that who asks for help need not have an environment first.
    """
    above = None
    for name, command in (("airlock", airlock), *airlock.commands.items()):
        context = command.make_context(
            name, [], above, resilient_parsing=True, terminal_width=_WIDTH
        )
        above = above or context
        yield HELP / f"{name}.txt", command.get_help(context) + "\n"


TABLES: Tables = {"docs/configuration.md": {"leftovers": leftovers_table}}


if __name__ == "__main__":
    write(TABLES)
    for file, text in help_texts():
        file.write_text(text, encoding="utf-8")
