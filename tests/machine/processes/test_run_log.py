"""The log of a run: plain whole lines, secrets masked, and never a reason to end anything."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from machine.processes import children
from machine.processes.line_console import LineConsole
from machine.processes.run_log import RunLog, plain
from machine.processes.signals import Signals
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from tests.conftest import ROOT
from tests.forked import run_module
from tests.rundir.test_full_disk import SmallDisk


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    made.run_log.parent.mkdir()
    return made


def test_a_line_is_plain_and_of_one_that_is_rewritten_the_last_state_counts() -> None:
    coloured = "\x1b[1;32mgreen\x1b[0m text \x1b]8;;http://x\x07link\x1b]8;;\x07"
    assert plain(coloured) == "green text link"
    assert plain("\r10 %\x1b[K\r20 %\x1b[K\r") == "20 %"
    assert plain("\x1b[2K\x1b[1A") == ""


def test_what_is_said_before_there_is_a_run_comes_first_and_a_line_comes_whole(run: RunDir) -> None:
    console = LineConsole(io.StringIO())
    console.out("a warning", "of preflight")
    console.keep_in(run)
    console.out("the banner\nthe run", highlight=False)
    console.out("half a ", end="")
    assert run.run_log.read_text() == "a warning of preflight\nthe banner\nthe run\n"
    console.out("line")
    console.keep("not printed\n")
    assert run.run_log.read_text().endswith("the run\nhalf a line\nnot printed\n")
    assert "not printed" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_secrets_are_masked_and_a_private_key_line_by_line(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "SECRET-in-the-environment")
    log = RunLog(run)
    log.write("it is SECRET-in-the-environment\ntoken hf_0123456789SECRET\n")
    for line in ("-----BEGIN RSA PRIVATE KEY-----", "SECRET", "-----END RSA PRIVATE KEY-----"):
        log.write(f"{line}\n")
    log.write("after it\n")
    text = run.run_log.read_text()
    assert "SECRET" not in text
    assert text.endswith("after it\n")


def test_a_full_disk_loses_lines_and_says_how_many_once_there_is_room(small_disk: Path) -> None:
    run, disk = RunDir(small_disk), SmallDisk(small_disk)
    run.run_log.parent.mkdir()
    log = RunLog(run)
    log.write("first\n")
    RunLog(RunDir(small_disk / "gone")).write("a line\n")  # without a folder nothing fails
    disk.fill()
    for number in range(3):
        log.write(f"{number} {'x' * 5000}\n")  # more than is left in the file's last block
    disk.free()
    log.write("last\n")
    lines = run.run_log.read_text().splitlines()
    assert lines[0] == "first"
    assert lines[-2:] == ["(3 lines are lost: they could not be written)", "last"]


def test_an_error_of_a_child_of_any_length_is_raised_and_printed_by_nobody_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, sys\n"
        "from rundir.errors import UserError\n"
        "if sys.argv[1:] == ['dumb']: os._exit(5)\n"
        "if sys.argv[1:] == ['long']:\n"
        "    raise UserError('\\N{COLLISION SYMBOL}' * 100_000, do='\\N{FIRE}' * 100_000)\n"
        "raise UserError('it is wrong', do='mend it')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    env.pop("AIRLOCK_RUN_DIR", None)

    def error_of(*args: str) -> UserError:
        with pytest.raises(UserError) as raised:
            children.run_well("it failed", "fails", *args, env=env, signals=Signals())
        return raised.value

    own = error_of()
    assert (own.args[0], own.do, own.code) == ("it is wrong", "mend it", 2)
    none = error_of("dumb")
    assert (none.args[0], none.code) == ("it failed", ExitCode.DATA)
    long = error_of("long")
    assert (set(long.args[0]), set(long.do)) == ({"\N{COLLISION SYMBOL}"}, {"\N{FIRE}"})
    assert "wrong" not in "".join(capfd.readouterr())


def test_a_child_s_output_and_its_error_are_kept(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import sys\n"
        "from rundir.errors import UserError\n"
        "print('from the child')\n"
        "sys.stderr.write('\\r10 %\\r90 %')\n"
        "sys.stderr.write('\\rall\\n')\n"
        "raise UserError('it is wrong', do='mend it')\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    child = ("machine.processes.child", str(os.getpid()), f"--copy-to={run.path}", "fails")
    done = run_module(*child, env=env)
    assert done.returncode == 2, done.stderr
    lines = run.run_log.read_text().splitlines()
    assert sorted(lines) == ["  → mend it", "airlock: it is wrong", "all", "from the child"]
    assert "from the child" in done.stdout
    assert "it is wrong" in done.stderr
