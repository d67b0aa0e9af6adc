"""Words that the command line does not know are answered with a command that works."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rundir.config_file import read_config
from rundir.paths import ROOT
from tests.launch.run_folders import trained_run
from tests.running import Typed, User, here

RUN = "20261120-221500-tiny-3f2a"
ANSWERS = {
    "status": "./airlock ps",
    "list": "./airlock ps",
    "kill": "./airlock stop latest",
    "kill RUN": "./airlock stop RUN",
    "stpo RUN": "./airlock stop RUN",
    "help": "./airlock --help",
    "help stop": "./airlock stop --help",
    "train": "./start.sh",
    "train tiny --demo": "./start.sh tiny --demo",
    "32b": "./start.sh 32b",
    "my.toml --force": "./start.sh my.toml --force",
    "chat RUN hello": "./airlock try RUN hello",
    "diagnose": "./airlock doctor latest",
    "test": "./airlock check",
    "xyzzy": "./airlock --help",
    "--version": "./airlock --help",
    "check importz --all": "./airlock check imports --all",
    "try": "./airlock try latest",
    "track --to wandb": "./airlock track latest --to wandb",
    "check --nope": "./airlock check --help",
    "stop a b": "./airlock stop --help",
    "pause": "./airlock pause latest",
    "logs": "tail -F {runs}/latest/logs/attempt*/rank*.log",
    "export": "ls {runs}/latest/model",
    "export my-run": "ls {runs}/my-run/model",
    "data --set data.max_samples=9": "./airlock data --set data.max_samples=9 FILE.jsonl",
    "attach nothing": "./airlock ps",
}


@pytest.mark.parametrize("line", ANSWERS)
def test_an_unknown_word_is_answered_with_the_nearest_command(user: User, line: str) -> None:
    code, out, err = user.typed(*line.split(), env={"AIRLOCK_SCRIPT": "./airlock"}, cwd=ROOT)
    first, do, *more = err.replace(user.environ["AIRLOCK_RUNS_DIR"], "{runs}").splitlines()
    assert (code, out) == (2, "")
    assert first.startswith("airlock: ")
    assert do.removeprefix("  → ").partition("   #")[0] == ANSWERS[line]
    assert len(more) == line.startswith("export"), "a model can be uploaded, too"


@pytest.mark.long
def test_the_run_of_another_clone_is_named_by_its_path(user: User) -> None:
    other = trained_run(user.folder / "other clone/runs" / RUN)
    own = trained_run(Path(user.environ["AIRLOCK_RUNS_DIR"]) / RUN)
    for run, called in ((other, shlex.quote(str(other.path))), (own, RUN)):
        left = subprocess.Popen(["sleep", "60"], env={"AIRLOCK_RUN_DIR": str(run.path)})
        try:
            _, out, _ = user.typed("ps")
            assert f"{called}  " in [line[: len(called) + 2] for line in out.splitlines()]
            assert f"stop {called}" in user.typed("stop")[2]
            user.typed("stop", *shlex.split(called))
            left.wait(20)
        finally:
            left.kill()
            left.wait()


def test_without_a_command_there_is_the_help(typed: Typed) -> None:
    assert "Commands:" in "".join(typed()[1:])


def test_a_run_is_resumed_without_its_name_and_profile(user: User) -> None:
    runs = Path(user.environ["AIRLOCK_RUNS_DIR"])
    run = trained_run(runs / RUN)
    (runs / "latest").symlink_to(RUN)
    run.command.write_text("NUM_GPUS=1 ./start.sh tiny --data 'my data.jsonl'\n")
    for args in (("--resume",), ("--resume", "--dry-run"), ("--resume", "latest")):
        err = user.typed.error_of("run", *args)
        assert f"run {RUN} has no whole checkpoint" in err, "it is found, and so is its profile"
        assert "→ NUM_GPUS=1 " in err
        assert f"{here('start.sh')} tiny --data 'my data.jsonl'   # starts it anew" in err
    assert read_config(run.config).profile == "tiny"
    shutil.rmtree(run.path)
    err = user.typed.error_of("run", "--resume", "latest", "tiny")
    assert "no run 'latest'" in err


@pytest.mark.parametrize("module", ["launch", "inbox", "monitor", "monitor.report"])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_word(user: User, module: str) -> None:
    ctrl_c = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (user.folder / "click.py").write_text(ctrl_c)
    path = os.pathsep.join([str(user.folder), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-P", "-m", module],
        env=user.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
