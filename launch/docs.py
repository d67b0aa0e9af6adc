"""`python -m launch.docs`: write the tables of docs/ that the launcher's code makes."""

from __future__ import annotations

from launch.leftovers import RULES
from rundir.docs import Tables, write


def leftovers_table() -> str:
    """What is not passed on to the ranks, as Markdown."""
    rows = ["| variable | values | why |", "|---|---|---|"]
    for rule in RULES:
        names = ", ".join(f"`{name}`" for name in rule.names)
        always = "" if rule.can_keep else ", always"
        rows.append(f"| {names} | {rule.values}{always} | {rule.why} |")
    return "\n".join(rows)


TABLES: Tables = {"docs/configuration.md": {"leftovers": leftovers_table}}


if __name__ == "__main__":
    write(TABLES)
