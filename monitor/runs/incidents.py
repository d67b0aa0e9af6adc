"""What failed or hung attempts of a run have left: the verdict, what to do, the files."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import names_inside, text_inside
from rundir.masking import Mask
from rundir.paths import RunDir

_FOLDER = re.compile(r"incident-attempt(\d{1,9})")
_MOST = 100
_MOST_FILES = 1000


def incidents_of(run: RunDir, mask: Mask) -> list[dict[str, Any]]:
    """Return the incidents, by attempt: the title of the verdict, its whole text, what to do."""
    incidents: list[dict[str, Any]] = []
    for name in names_inside(run, "incidents"):
        if attempt := _FOLDER.fullmatch(name):
            text = ""
            with suppress(NotFoundError):
                text = mask.text(text_inside(run, "incidents", name, "verdict.md"))
            incidents.append(
                {
                    "attempt": int(attempt[1]),
                    "verdict": _title(text),
                    "text": text,
                    "do": _to_do(text),
                    "files": _files(run, name),
                }
            )
    return sorted(incidents, key=lambda incident: incident["attempt"])[:_MOST]


def _title(text: str) -> str:
    """Return what has failed, in bold there; else the heading."""
    bold = re.search(r"^\*\*(.+)\*\*$", text, re.MULTILINE)
    if bold:
        return bold[1]
    return text.partition("\n")[0].lstrip("# ")


def _to_do(text: str) -> str:
    """Return what the doctor proposes: the line with the arrow."""
    arrow = re.search(r"^→ (.+)$", text, re.MULTILINE)
    return arrow[1] if arrow else ""


def _files(run: RunDir, name: str) -> list[str]:
    """Return the files of an incident, two levels deep, below the run folder."""
    files = []
    for inner in names_inside(run, "incidents", name):
        below = names_inside(run, "incidents", name, inner)
        path = f"incidents/{name}/{inner}"
        files += [f"{path}/{file}" for file in below] or [path]
    return files[:_MOST_FILES]
