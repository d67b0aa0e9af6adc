"""Our own trainer on a full disk or with half a shard: the doctor and the report name it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.broken import LONG, Named, ToItsEnd
from tests.conftest import mounted
from tests.running import (
    ENDLESS,
    User,
    wait_until_training,
)


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
