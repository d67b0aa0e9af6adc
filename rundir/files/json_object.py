"""An object in a file of JSON, which may be missing or half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; {} if there is none, or it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
