"""Runs, checkpoints and cache entries as they lie there long after."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

from rundir.checkpoints import MARKER, checkpoint_name, note_evaluation
from rundir.owner import Owner
from rundir.paths import RunDir
from rundir.seal import seal
from rundir.status import Status, write_status
from tests.launch.run_folders import trained_run

DAY_S = 86400.0
KIB = 1024


def run_of(
    runs: Path, run_id: str, *, days: float, exit_code: int | None = 0, profile: str = "tiny"
) -> RunDir:
    """Make a run that ended so many days ago; a done one has a model and two checkpoints."""
    run = trained_run(runs / run_id)
    ended_t = time.time() - days * DAY_S
    phase = {0: "done", None: "training"}.get(exit_code, "failed")
    status = Status(run_id=run_id, profile=profile, phase=phase, exit_code=exit_code)
    write_status(run, replace(status, updated_t=ended_t))
    owner = Owner(host="here", pid=1, started_t=ended_t, command="./start.sh tiny")
    run.owner.write_text(json.dumps(asdict(owner)))
    for step, loss in ((2, 1.0), (4, 2.0)):
        checkpoint = run.checkpoints / checkpoint_name(step)
        checkpoint.mkdir(parents=True)
        (checkpoint / "weights").write_bytes(os.urandom(100 * KIB))
        note_evaluation(checkpoint, loss)
        (checkpoint / MARKER).touch()
    if exit_code == 0:
        run.model.mkdir()
        (run.model / "model.safetensors").write_bytes(os.urandom(100 * KIB))
    for file in (run.status, run.owner):
        os.utime(file, (ended_t, ended_t))
    return run


def entry_of(cache: Path, name: str, *, days: float) -> Path:
    """Make prepared data that were last used so many days ago."""
    folder = cache / "data" / name
    folder.mkdir(parents=True)
    (folder / "samples.arrow").write_bytes(bytes(100 * KIB))
    seal(folder)
    used_t = time.time() - days * DAY_S
    os.utime(folder, (used_t, used_t))
    return folder
