"""Run folders as a run leaves them, written by hand: for what only reads them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.resolve import resolve
from rundir.config_file import config_text
from rundir.events import EventWriter
from rundir.paths import ROOT, RunDir
from rundir.prepared import Prepared, PreparedData, write_prepared
from rundir.versions import write_made_with

CHOICE: dict[str, Any] = {
    "step": 2,
    "loss": 1.25,
    "last_step": 4,
    "last_loss": 1.5,
    "is_best": True,
    "num_evaluated": 2,
}
_OWNS = """
import sys, time
from pathlib import Path
from rundir import owner
from rundir.paths import RunDir
owner.take(RunDir(Path(sys.argv[1])), "./start.sh tiny")
print("owned", flush=True)
time.sleep(600)
"""


def trained_run(path: Path, *settings: str, base: Path | None = None) -> RunDir:
    """Make the folder of a run of `tiny` that was trained four steps and evaluated twice.

    `settings` are those of --set; `base` is the local folder of its base.
    """
    run = RunDir(path)
    for folder in (run.events, run.data):
        folder.mkdir(parents=True)
    config, sources = resolve("tiny", settings, {})
    run.config.write_text(config_text(replace(config, profile="tiny"), sources))
    run.command.write_text("./start.sh tiny\n")
    write_made_with(run)
    data = PreparedData(
        path="gone",
        num_samples=90,
        num_too_long=0,
        longest=9,
        end_token_id=1,
        made_of={"files": "0123abcd"},
    )
    model = str(base or path / "base")
    held_out = replace(data, num_samples=10)
    write_prepared(
        run, Prepared(model_path=model, train=data, evaluation=held_out, resume_from=None)
    )
    events = EventWriter(run.event_file("rank0"), rank=0)
    for step in range(1, 5):
        metric = dict.fromkeys(("lr", "grad_norm", "tokens_per_s", "time_data_s", "time_comm_s"), 1)
        more = dict.fromkeys(("mfu", "time_forward_s", "time_backward_s", "time_optimizer_s"))
        events.emit("metric", "train", step=step, loss=3.0 / step, **metric, **more)
    for step, loss in ((0, 5.0), (2, 1.25), (4, 1.5)):
        events.emit("metric", "eval", step=step, loss=loss, exact_match=None)
    events.emit("mark", "export.choice", of_run=run.run_id, **CHOICE)
    events.close()
    return run


@contextlib.contextmanager
def owned(run: RunDir) -> Iterator[subprocess.Popen[str]]:
    """Let a process own `run`, as its launcher does; it is killed afterwards."""
    with subprocess.Popen(
        [sys.executable, "-c", _OWNS, str(run.path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owned\n"
        try:
            yield process
        finally:
            process.kill()
