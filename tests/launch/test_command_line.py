"""Words that the command line does not know are answered with a command that works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli
from rundir.config_file import read_config
from rundir.paths import ROOT
from tests.launch.run_folders import trained_run
from tests.running import Start, finish, here

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
    "train.py --lr 1": "./start.sh train.py --lr 1",
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
}


@pytest.mark.parametrize("typed", ANSWERS)
def test_an_unknown_word_is_answered_with_the_nearest_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    monkeypatch.setenv("AIRLOCK_SCRIPT", "./airlock")
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="2"):
        cli.airlock(typed.split())
    seen = capsys.readouterr()
    first, do = seen.err.splitlines()
    assert not seen.out
    assert first.startswith("airlock: ")
    assert do.removeprefix("  → ").partition("   #")[0] == ANSWERS[typed]


def test_logs_are_where_the_ranks_write_them(airlock: Start) -> None:
    code, _, err = finish(airlock("logs"))
    assert code == 2
    assert "→ tail -F runs/latest/logs/attempt*/rank*.log " in err


def test_without_a_command_there_is_the_help(airlock: Start) -> None:
    _, out, err = finish(airlock())
    assert "Commands:" in out + err


def test_a_run_is_resumed_without_its_name_and_profile(
    airlock: Start, environ: dict[str, str]
) -> None:
    runs = Path(environ["AIRLOCK_RUNS_DIR"])
    run = trained_run(runs / RUN)
    (runs / "latest").symlink_to(RUN)
    run.command.write_text("NUM_GPUS=1 ./start.sh tiny --data 'my data.jsonl'\n")
    for args in (("--resume",), ("--resume", "--dry-run"), ("--resume", "latest")):
        code, _, err = finish(airlock("run", *args))
        assert code == 2
        assert f"run {RUN} has no whole checkpoint" in err, "it is found, and so is its profile"
        assert "→ NUM_GPUS=1 " in err
        assert f"{here('start.sh')} tiny --data 'my data.jsonl'   # starts it anew" in err
    assert read_config(run.config).profile == "tiny"
    shutil.rmtree(run.path)
    code, _, err = finish(airlock("run", "--resume", "latest", "tiny"))
    assert code == 2
    assert "no run 'latest'" in err


@pytest.mark.parametrize("module", ["launch", "inbox", "monitor", "monitor.report"])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_word(
    module: str, environ: dict[str, str], tmp_path: Path
) -> None:
    ctrl_c = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "click.py").write_text(ctrl_c)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    told = subprocess.run(
        [sys.executable, "-P", "-m", module],
        env=environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout, told.stderr) == (-signal.SIGINT, "", "")
