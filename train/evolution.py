"""Snapshots of the model's answers, one file for each step they were taken at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rundir.atomic import write_text

MAX_EXAMPLES = 500  # in a file: enough to look through


def write_snapshot(path: Path, step: int, timestamp: str, examples: list[dict[str, Any]]) -> None:
    """Write the snapshot of `step`, its summary over all `examples`. Raises OSError."""
    correct = sum(example["exact_match"] for example in examples)
    snapshot = {
        "v": 1,
        "snapshot_id": path.stem,
        "training_step": step,
        "timestamp": timestamp,
        "examples": examples[:MAX_EXAMPLES],
        "summary": {
            "total_examples": len(examples),
            "correct": correct,
            "incorrect": len(examples) - correct,
            "accuracy": correct / max(1, len(examples)),
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(snapshot, ensure_ascii=False, indent=1) + "\n", durable=False)
