"""`airlock doctor [RUN | FILE | FOLDER | -]... [--json]`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from diagnostics.doctor.diagnosis import diagnose
from diagnostics.doctor.rules import RuleError
from rundir.errors import UserError


def doctor(names: Sequence[str], console: Console, *, as_json: bool) -> None:
    """Print the verdict on what `names` stand for; none is the latest run. Raises UserError."""
    try:
        verdict = diagnose(names)
    except RuleError as error:
        raise UserError(str(error), do="mend that rule: docs/doctor.md") from error
    text = json.dumps(verdict.as_json()) if as_json else "\n".join(verdict.lines())
    console.out(text, highlight=False)
