"""The recorded run of eight ranks of `airlock monitor --demo`, and an earlier one like it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rundir.paths import ROOT, RunDir

DATASET = "heldout"
EARLIER = "20261124-100000-tour-0d3a"


def recorded(runs: Path) -> RunDir:
    """Copy the run into `runs` and return it; an earlier one was stopped after 100 steps."""
    shutil.copytree(ROOT / "examples/recorded", runs, dirs_exist_ok=True)
    newest = RunDir(max(runs.glob("*-tour-*")))
    newest.incidents.mkdir(exist_ok=True)  # it had none, and Git keeps no empty folder
    earlier = RunDir(runs / EARLIER)
    shutil.copytree(newest.path, earlier.path)
    for step in (150, 200, 250, 300):
        earlier.evolution(DATASET, step).unlink()
    status = json.loads(newest.status.read_text())
    ended = {"run_id": EARLIER, "phase": "interrupted", "exit_code": 20, "step": 100}
    earlier.status.write_text(json.dumps(status | ended))
    config = newest.config.read_text()
    assert "learning_rate = 0.02" in config
    earlier.config.write_text(config.replace("learning_rate = 0.02", "learning_rate = 0.01"))
    (runs / "latest").symlink_to(newest.run_id)
    return newest
