"""`airlock doctor [RUN | FILE | FOLDER | -]... [--json]`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from diagnostics.doctor.logs.diagnosis import diagnose
from diagnostics.doctor.logs.rules import RuleError
from diagnostics.doctor.logs.verdict import Verdict
from diagnostics.doctor.runs.hang_verdict import of_hang
from diagnostics.doctor.runs.run_folder import find_folder, of_run
from rundir.errors import UserError
from rundir.paths import runs_folder


def doctor(names: Sequence[str], console: Console, *, as_json: bool) -> None:
    """Print the verdict on `names`, or on the latest run if there are none. Raises UserError."""
    try:
        verdict = _verdict(names)
    except RuleError as error:
        raise UserError(str(error), do="fix that rule: docs/doctor.md") from error
    text = json.dumps(verdict.as_json()) if as_json else "\n".join(verdict.lines())
    console.out(text, highlight=False)


def _verdict(names: Sequence[str]) -> Verdict:
    if len(names) == 1 and (verdict := of_hang(Path(names[0]))) is not None:
        return verdict  # of an incident folder, wherever it was unpacked
    run = find_folder(names[0] if names else "latest") if len(names) <= 1 else None
    if run is not None:
        return of_run(run)
    if not names:
        raise UserError(
            f"there is no run in {runs_folder()}", do="airlock doctor RUN, FILE, FOLDER or -"
        )
    return diagnose(names)
