"""A run has one owner: nobody goes on from it while it is alive."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from rundir.checkpoints import complete_checkpoints
from rundir.paths import RunDir
from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import ENDLESS, Start, finish, run_folder, training, wait_for

_ROTATING = ("--set", "train.checkpoint_every_steps=2", "--set", "train.keep_checkpoints=1")


def test_a_live_run_is_not_gone_on_from_and_what_is_advised_works_when_pasted(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    with training(airlock(*ENDLESS, *_ROTATING), environ) as (process, run):
        wait_for(lambda: complete_checkpoints(run.checkpoints), why="no checkpoint")
        typed = environ | {"AIRLOCK_SCRIPT": str(ROOT / "start.sh")}
        resumed = ("run", "tiny", "--resume", run.run_id, "--set", "train.max_steps=1")
        code, out, err = finish(airlock(*resumed, env=typed))
        assert code == 4, out + err
        assert f"run {run.run_id} is still going on" in err
        assert f"process {process.pid} on " in err
        pasted = subprocess.run(
            ["bash", "-c", err.split("→ ")[1]],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.wait(30) == 20
    assert f"run {run.run_id} has trained" in pasted.stderr, pasted.stdout + pasted.stderr
    assert read_status(run)["phase"] == "interrupted"


def test_a_run_whose_launcher_was_killed_has_no_owner(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS, *_ROTATING), environ) as (process, run):
        wait_for(lambda: complete_checkpoints(run.checkpoints), why="no checkpoint")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        step = int(complete_checkpoints(run.checkpoints)[-1].name.removeprefix("step_"))
        settings = ("--set", f"train.max_steps={step + 4}")
        wait_for(lambda: _is_free(airlock, run), why="processes of the dead run are left")
        code, out, err = finish(airlock("run", "tiny", "--resume", run.run_id, *settings))
    assert code == 0, out + err
    assert run_folder(environ).path != run.path


def _is_free(airlock: Start, run: RunDir) -> bool:
    listed = finish(airlock("ps"))[1]
    return run.run_id not in listed
