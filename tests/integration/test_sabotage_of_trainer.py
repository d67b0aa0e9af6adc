"""Our own trainer really broken on purpose: the doctor and the report name each failure."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.broken import (
    ADDRESS_SPACE,
    FORK_AFTER_CUDA,
    LONG,
    SCRIPT,
    SIGKILL,
    SIGSTOP,
    Named,
    ToItsEnd,
)
from tests.conftest import mounted
from tests.running import (
    ENDLESS,
    User,
    wait_until_training,
)

# What the script does to itself is done to our own trainer, in the middle of a step.
_BROKEN = f"""
import pathlib, runpy
one_step = module.Trainer._one_step
def broken(trainer):
    if trainer._step == 2 and os.environ["RANK"] == "1":
        runpy.run_path({SCRIPT!r})["FAILURES"][os.environ["FAILURE"]](pathlib.Path())
    return one_step(trainer)
module.Trainer._one_step = broken
"""
IN_TRAINER = {  # sleep and gil-deadlock: test_hangs.py
    "sigkill": SIGKILL,
    "low-address-space": ADDRESS_SPACE,
    "fork-after-cuda": FORK_AFTER_CUDA,
    "sigstop": replace(SIGSTOP, code=12),
    "uneven-data": Named(
        "collective-mismatch",
        "called barrier",
        "look for a branch",
        "in uneven_data",
        code=12,
    ),
}


@LONG
@pytest.mark.parametrize("failure", IN_TRAINER)
def test_what_breaks_our_own_trainer_is_named(
    user: User, to_its_end: ToItsEnd, failure: str
) -> None:
    env = user.hooked("train.step.loop", _BROKEN) | {"FAILURE": failure}
    end = to_its_end(*ENDLESS[1:], "--set", "launch.hang_timeout_s=8", env=env)
    end.assert_named(IN_TRAINER[failure])


@LONG
@pytest.mark.parametrize("left_bytes", [0, 2 << 20])
def test_a_disk_that_is_full_when_our_own_trainer_saves_is_named(
    user: User, to_its_end: ToItsEnd, left_bytes: int
) -> None:
    def fill(_: subprocess.Popen[str]) -> None:
        wait_until_training(user.run())
        with (disk / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while shutil.disk_usage(disk).free > left_bytes:
                file.write(b"0" * 4096)

    saves = ("--set", "train.checkpoint_every_steps=40")
    with mounted(user.folder / "runs", "64m") as disk:
        end = to_its_end(*ENDLESS[1:], *saves, meanwhile=fill)
        end.assert_named(Named("disk-full", "No space left on the device", "df -h", rank=0))


def test_a_shard_that_is_not_whole_is_refused_and_named(user: User, shared_cache: Path) -> None:
    user.typed("plan", "tiny")  # makes the model, in case no test has needed it yet
    model = shutil.copytree(next((shared_cache / "models").glob("tiny-*")), user.folder / "model")
    shard = model / "model.safetensors"
    os.truncate(shard, shard.stat().st_size // 2)
    code, _, err = user.finish("run", "tiny", "--set", f"model.path={model}")
    assert (code, f"rm {shard}" in err) == (4, True), err
    (user.folder / "run.log").write_text(err)
    told = json.loads(user.typed("doctor", "--json", "run.log")[1])
    assert (told["cause"], told["evidence"][0]["line"]) == ("weights-file-damaged", 1)
