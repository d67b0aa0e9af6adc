"""Requests to the daemon: files in FOLDER/control, so that anyone can make and see them.

`pause` stands as long as its file is there; a file may say why. The others are done once, and then
their file is gone. Without a daemon they wait for the next one, except `stop`.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from inbox.layout import Layout, entries
from rundir.atomic import write_text

ONCE = ("stop", "skip", "retry", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRequest:
    """One file of the control folder."""

    kind: str  # one of ONCE
    path: Path
    job: str = ""  # an id; "" for the job that trains
    priority: str = ""


def ask(layout: Layout, kind: str, *, job: str = "", priority: str = "") -> Path:
    """Make a request, and return its file, which is gone once that is done. Raises OSError."""
    assert kind in ONCE, kind
    path = layout.control / f"{kind}.{secrets.token_hex(4)}"
    write_text(path, json.dumps({"job": job, "priority": priority}) + "\n")
    return path


def pending(layout: Layout) -> list[InboxRequest]:
    """Return the requests to be done once; a file made by hand, such as `stop`, may be empty."""
    requests = []
    for entry in entries(layout.control):
        kind, path = entry.name.partition(".")[0], Path(entry.path)
        if kind not in ONCE:
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8") or "{}")
            words = {key: str(content.get(key, "")) for key in ("job", "priority")}
        except (OSError, ValueError, AttributeError):
            words = {}
        requests.append(InboxRequest(kind=kind, path=path, **words))
    return requests


def pause(layout: Layout, why: str) -> None:
    """Have no further training started. Raises OSError."""
    write_text(layout.control / "pause", why + "\n")


def resume(layout: Layout) -> bool:
    """Have trainings started again; return False if they were not paused. Raises OSError."""
    try:
        (layout.control / "pause").unlink()
    except FileNotFoundError:
        return False
    return True


def paused(layout: Layout) -> str | None:
    """Return why no training is started; None if it is."""
    try:
        text = (layout.control / "pause").read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError:
        text = ""
    return text or "paused on request"
