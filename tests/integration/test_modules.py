"""A module of a package, as `torchrun -m` runs it, and standard input for one rank."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import Typed, User
from tests.scripts import WARM, script

_TRAIN = """
import os, sys
import torch
from torch.utils.data import DataLoader
from .data import Squares
from . import __name__ as package
if __name__ == "__main__":
    print("in", package, __spec__.name, __package__, sys.argv[1:], sys.path[0] == os.getcwd())
    assert sys.argv[0] == __file__ and os.path.isabs(__file__)
    for method in ("fork", "spawn"):
        print(method, [int(n) for n in DataLoader(Squares(), num_workers=1,
                                                  multiprocessing_context=method)])
"""
_DATA = """
class Squares:
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return index * index
"""


def package(folder: Path) -> None:
    """Write a package with the name of one of ours, whose modules import each other relatively."""
    script(folder, "", "train/__init__.py")
    script(folder, _DATA, "train/data.py")
    script(folder, _TRAIN, "train/sft.py")
    script(folder, "from . import sft\nprint('the package itself')\n", "train/__main__.py")


@WARM
def test_a_module_finds_itself_as_under_torchrun(user: User, start: str) -> None:
    package(user.folder)
    options = ("--num-gpus", "2", "--set", f"launch.start={start}")
    out = user.output_of("run", *options, "-m", "train.sft", "-m", "--lr", "1")
    assert out.count("in train train.sft train ['-m', '--lr', '1'] True\n") == 2
    for method in ("fork", "spawn"):
        assert out.count(f"{method} [0, 1, 4]\n") == 2
    assert "airlock: train.sft, 2 ranks" in out


def test_a_dry_run_of_a_module_shows_torchruns_own_option(typed: Typed, tmp_path: Path) -> None:
    package(tmp_path)
    out = typed.output_of("run", "--dry-run", "--num-gpus=2", "-m", "train.sft", "--lr=1")
    line = "torchrun --standalone --nproc-per-node=2 -m train.sft --lr=1"
    assert out.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-m"], "./start.sh -m PACKAGE.MODULE"),
        (["-m", "train.nothing"], "there is no module train.nothing in "),
        (["-m", "train/sft.py", "--lr", "1"], "./start.sh train/sft.py"),
        (["-m", "train.sft.py"], "./start.sh -m train.sft"),
        (["-m", "train-it"], "names no module"),
        (["-m", "train.bad"], "line 1: invalid syntax"),
    ],
)
def test_what_is_no_module_is_said_before_anything_starts(
    user: User, args: list[str], said: str
) -> None:
    package(user.folder)
    script(user.folder, "if x y:", "train/bad.py")
    err = user.typed.error_of("run", *args)
    assert said in err
    assert "Traceback" not in err
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()


@WARM
def test_the_first_rank_alone_reads_standard_input(user: User, start: str) -> None:
    text = """
    import os, subprocess, sys
    import torch
    rank = os.environ["RANK"]
    print("rank", rank, "reads", repr(sys.stdin.readline()), flush=True)
    print("rank", rank, "input", repr(input()) if rank == "0" else repr(os.read(0, 99)), flush=True)
    """
    path = script(user.folder, text)
    options = ("--num-gpus", "2", "--set", f"launch.start={start}")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "launch", "run", *options, path],
        input="first ü\nsecond\n",
        env=user.environ,
        cwd=user.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "rank 0 reads 'first ü\\n'",
        "rank 0 input 'second'",
        "rank 1 reads ''",
        "rank 1 input b''",
    ):
        assert said in done.stdout


def test_a_package_runs_its_main_also_where_standard_input_is_closed(user: User) -> None:
    package(user.folder)
    typed = [sys.executable, "-P", "-m", "launch", "run", "--num-gpus", "2", "-m", "train"]
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(typed)} <&-"],
        env=user.environ | {"PATH": os.environ["PATH"]},
        cwd=user.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the package itself\n") == 2
