"""A snapshot of answers: a file for each step at which prompts were answered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rundir.atomic import write_text
from rundir.checkpoints import checkpoint_name
from rundir.events import finite
from rundir.paths import RunDir
from rundir.prepared import PreparedData, read_prepared

_Row = dict[str, Any]


class Snapshots:
    """The snapshots of one data set in a run; rank 0 writes them."""

    def __init__(self, run: RunDir, dataset: str, data: PreparedData) -> None:
        self._run, self._dataset = run, dataset
        self._base = read_prepared(run).model_path
        made_of = json.dumps(data.made_of, sort_keys=True)
        self._hash = hashlib.sha256(made_of.encode()).hexdigest()[:16] if data.made_of else ""

    def write(
        self,
        step: int,
        examples: Sequence[_Row],
        *,
        seconds: float,
        run_seconds: float | None = None,
        left_out_steps: Sequence[int] = (),
    ) -> _Row:
        """Write the snapshot of `step`, with all `examples` in full; return its summary.

        `seconds` is what the answers took, of the `run_seconds` since training began, where that
        is known. A reader sees the whole file or none. Raises OSError.
        """
        path = self._run.evolution(self._dataset, step)
        rows = sorted(examples, key=lambda row: int(row["example_id"]))
        correct, count = sum(row["exact_match"] for row in rows), max(1, len(rows))
        summary = {
            "avg_loss": sum(row["loss"] for row in rows) / count,
            "accuracy": correct / count,
            "similarity": sum(row["similarity"] for row in rows) / count,
            "total_examples": len(rows),
            "correct": correct,
            "incorrect": len(rows) - correct,
        }
        checkpoint = self._run.checkpoints / checkpoint_name(step)
        snapshot = {
            "v": 2,
            "snapshot_id": path.stem,
            "training_step": step,
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "dataset": {"name": self._dataset, "hash": self._hash},
            "model_version": {
                "run": self._run.run_id,
                "step": step,
                "checkpoint": checkpoint.name if checkpoint.is_dir() else None,
                "base": self._base,
            },
            "cost": {"seconds": seconds, "run_seconds": run_seconds},
            "left_out_steps": list(left_out_steps),
            "examples": rows,
            "summary": summary,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(finite(snapshot), ensure_ascii=False, allow_nan=False, indent=1)
        write_text(path, text + "\n", durable=False)
        return summary
