"""`python -m launch.write_docs`: write the generated tables of docs/ and the help texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launch.cli import airlock
from launch.host.leftover_variables import RULES
from rundir.docs import Tables, write

HELP = Path(__file__).with_name("setup") / "help"
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


def help_texts() -> Iterator[tuple[Path, str]]:
    """Yield each file of launch/setup/help with its text, the help of `./airlock` or a command.

    environment.sh shows them, so that help needs no Python environment.
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
