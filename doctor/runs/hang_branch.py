"""The branch of a script in which a line stands, if only some ranks take it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_OF_SOME_RANKS = re.compile(r"rank|is_(local_)?main|is_master|is_(world_process_)?zero", re.I)


def branch_of_some_ranks(file: str, line: int) -> str:
    """Return the innermost condition on the rank around a line, as `if rank == 0`; "" if none."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    branch = ""
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.If) and _OF_SOME_RANKS.search(test := ast.unparse(node.test)):
            if _holds(node.body, line):
                branch = f"if {test}"
            elif _holds(node.orelse, line):
                branch = f"the else of if {test}"
    return branch


def _holds(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or 0)
