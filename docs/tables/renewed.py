"""The tables of docs/ that are made from code.

They stand between two marks in their files, so that the prose around them is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.tables.contract import events_table, exit_codes_table, settings_table, starts_table
from docs.tables.endpoints import endpoints_table
from docs.tables.help_texts import leftovers_table
from rundir.paths import ROOT

_BEGIN, _END = "<!-- table: {} -->", "<!-- end of table -->"
Tables = Mapping[str, Mapping[str, Callable[[], str]]]  # file → table name → function that makes it

TABLES: Tables = {
    "docs/configuration.md": {"settings": settings_table, "leftovers": leftovers_table},
    "docs/how-the-start-works.md": {"starts": starts_table},
    "docs/run-folder.md": {"events": events_table, "exit codes": exit_codes_table},
    "docs/serve.md": {"endpoints": endpoints_table},
}


def renewed(path: Path, tables: Tables = TABLES) -> str:
    """Return the text of a file of `tables` with its tables generated again.

    Raises ValueError when a table's marks are missing.
    """
    text = path.read_text(encoding="utf-8")
    for name, make in tables[str(path.relative_to(ROOT))].items():
        begin = _BEGIN.format(name)
        head, begin_marker, rest = text.partition(begin)
        _, ended, tail = rest.partition(_END)
        if not begin_marker or not ended:
            raise ValueError(f"{path} has no place for the table {name!r}")
        text = f"{head}{begin}\n\n{make()}\n\n{_END}{tail}"
    return text


def write(tables: Tables) -> None:
    """Generate the tables of every file of `tables` again."""
    for file in tables:
        (ROOT / file).write_text(renewed(ROOT / file, tables), encoding="utf-8")
