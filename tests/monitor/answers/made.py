"""Run folders with answers, for the tests of the monitor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from monitor.api.app import create_app
from monitor.api.server_settings import ServerSettings
from rundir.paths import RunDir

HOSTILE = (
    "<script>window.hit = 1</script>",
    '<img src=x onerror="window.hit = 1">',
    "</script><svg onload=window.hit=1>",
    "javascript:window.hit=1",
    "{{7*7}}${window.hit=1}",
    "\u202eright to left\u202c",
    "line 1\nline 2\ttab\x07bell",
)


def example(number: int, *, is_right: bool = False, **more: Any) -> dict[str, Any]:
    """Return an example as the trainer writes it."""
    output = more.get("model_output", "yes" if is_right else "no")
    return {
        "example_id": number,
        "step": 0,
        "input": f"prompt {number}",
        "expected_output": "yes",
        "model_output": output,
        "loss": 0.5,
        "exact_match": is_right,
        "output_length": len(output),
        "similarity": 1.0 if is_right else 0.25,
        **more,
    }


def snapshot(step: int, examples: Sequence[dict[str, Any]], data_hash: str = "h") -> dict[str, Any]:
    """Return a snapshot as the trainer writes it."""
    correct = sum(bool(one["exact_match"]) for one in examples)
    return {
        "v": 2,
        "snapshot_id": f"step_{step:08d}",
        "training_step": step,
        "timestamp": "2026-11-23T12:00:00+00:00",
        "dataset": {"name": "d", "hash": data_hash},
        "model_version": {"run": "r", "step": step, "checkpoint": None, "base": "b"},
        "cost": {"seconds": 1.0, "run_seconds": 9.0},
        "left_out_steps": [],
        "examples": list(examples),
        "summary": {
            "avg_loss": 0.5,
            "accuracy": correct / max(1, len(examples)),
            "similarity": 0.5,
            "total_examples": len(examples),
            "correct": correct,
            "incorrect": len(examples) - correct,
        },
    }


def new_run(folder: Path, run_id: str = "20261123-120000-tiny-0a0a") -> RunDir:
    """Return a run folder without answers."""
    run = RunDir(folder / run_id)
    run.path.mkdir(parents=True)
    run.config.write_text('profile = "tiny"\n')
    return run


def put(run: RunDir, step: int, content: Any, dataset: str = "d") -> Path:
    """Write a snapshot: text or bytes as they are, all else as JSON."""
    path = run.evolution(dataset, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
    return path


def client(folder: Path, **settings: Any) -> TestClient:
    """Return what asks a server over the runs in `folder`; an exception in it is status 500."""
    app = create_app(ServerSettings(runs_folder=folder, **settings))
    return TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)


def with_ways(folder: Path) -> RunDir:
    """Return a run of four steps in which prompt 0 is learned, 1 forgotten, 2 never, 3 unstable."""
    run = new_run(folder)
    ways = ("0001", "0110", "0000", "1011")
    for place, step in enumerate((0, 10, 50, 100)):
        rows = [example(n, is_right=way[place] == "1") for n, way in enumerate(ways)]
        put(run, step, snapshot(step, rows))
    return run
