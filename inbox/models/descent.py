"""models/descent.jsonl: from what each model came, on what it was trained, and how it scored.

A line for each model that was considered, oldest first, for people and programs to read.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from rundir.atomic import write_text

Line = dict[str, Any]
VERSION = 1


class Descent:
    """The lines of one file; a line is added once, whole, and never changed."""

    def __init__(self, path: Path) -> None:
        """The file is made with the first line."""
        self._path = path

    def of(self, job_id: str) -> Line | None:
        """Return the last line of a job's model, or None; one that could not be scored has two."""
        return next((line for line in reversed(self.lines()) if line["job"] == job_id), None)

    def lines(self) -> list[Line]:
        """Return all lines that can be read."""
        entries = []
        for text in self._text().splitlines():
            with contextlib.suppress(ValueError):  # edited by hand
                line = json.loads(text)
                if isinstance(line, dict) and isinstance(line.get("job"), str):
                    entries.append(line)
        return entries

    def add(self, line: Line) -> None:
        """Add a line, durably. Raises OSError (a full disk), and then adds nothing.

        The file is replaced, not appended to: a half-written line would read as no decision.
        """
        for left in self._path.parent.glob(f".{self._path.name}.*"):  # by one that was killed
            left.unlink(missing_ok=True)
        text = self._text()
        between = "" if not text or text.endswith("\n") else "\n"
        write_text(self._path, f"{text}{between}{json.dumps({'v': VERSION, **line})}\n")

    def _text(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return ""
