"""All checks together: bounded in time, never fatal themselves, and reported at once."""

from __future__ import annotations

import contextlib
import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.checks import preflight as checks
from launch.checks.context import Context, error, fine, warning
from launch.config.job import Job
from rundir.finding import Finding
from tests.launch.checks.conftest import Machine, context, in_namespace
from tests.running import Start, Typed, User, as_options, output_of


def job() -> Job:
    here = context()
    return Job(config=here.config, sources=here.sources, placement=here.placement, resume_from=None)


def sleeps(_context: Context) -> list[Finding]:
    time.sleep(60)
    return []


def breaks(_context: Context) -> list[Finding]:
    raise ZeroDivisionError("of its own")


def test_a_check_that_hangs_or_breaks_is_a_warning_and_the_others_are_told() -> None:
    def knows(_context: Context) -> list[Finding]:
        return [fine("third", "seen")]

    started = time.monotonic()
    found = checks.find(
        job(),
        {},
        {"first": sleeps, "second": breaks, "third": knows},
    )
    assert time.monotonic() - started < 30  # not the 60 of the one that hangs
    assert [one.level for one in found] == ["warning", "warning", "ok"]
    assert found[0].warning == "has not answered within 2 s"
    assert found[1].warning == "could not be checked: ZeroDivisionError('of its own')"


def test_a_mount_whose_server_is_gone_costs_a_warning(machine: Machine, tmp_path: Path) -> None:
    # statvfs of such a mount blocks for ever; a pipe without a writer does the same to open().
    os.mkfifo(tmp_path / "latest")
    status = tmp_path / "runs" / "latest" / "status.json"
    status.parent.mkdir(parents=True)
    os.mkfifo(status)
    found = machine.rows()  # a thread that never ends does not keep the process
    assert found["clock"][0]["warning"] == "has not answered within 2 s"
    assert found["disk"][0]["warning"] == ""


def test_every_level_is_one_line() -> None:
    assert checks.line_of(fine("clock", "12:00")) == "ok       clock: 12:00"
    assert checks.line_of(warning("clock", "late", "wait")) == "warning  clock: late  → wait"
    assert checks.line_of(error("clock", "gone", "buy")) == "error    clock: gone  → buy"


def run_in(first: str, environ: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run `airlock run tiny` on a machine to which `first` has been done."""
    command = f'{first}\nexec "{sys.executable}" -P -m launch run tiny {" ".join(args)}'
    return subprocess.run(
        in_namespace(command), env=environ, capture_output=True, text=True, check=False, timeout=200
    )


def test_a_run_ends_with_4_before_anything_is_made_and_names_all_errors(user: User) -> None:
    (user.folder / "runs").mkdir()
    small = f"mount -t tmpfs -o size=20m none '{user.folder}/runs'; mkdir '{user.folder}/runs/kept'"
    done = run_in(f"{small}; trap 'ls {user.folder}/runs' EXIT", user.environ)
    assert done.returncode == 4
    assert done.stderr.startswith("airlock: this machine is not ready for the run\n  disk: 20 MiB")
    assert "\n  localhost: no connection to " in done.stderr
    assert "\n    → ip link set lo up" in done.stderr
    assert done.stderr.endswith("  → --force continues all the same\n")
    assert "Traceback" not in done.stderr
    assert not (user.folder / "runs" / "latest").exists()


@pytest.mark.long
def test_force_goes_on_with_a_line_for_each_error(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    small = f"ip link set lo up; mount -t tmpfs -o size=2m none '{tmp_path}/runs'"
    quick = ("--force", "--set", "data.path=/nowhere")
    done = run_in(small, environ, *quick)
    assert done.returncode == 5  # the data: those are checked first
    few = as_options("data.eval_path=", "train.global_batch_size=8")
    done = run_in(small, environ, "--force", "--set", "train.max_steps=1", *few)
    assert "airlock: error: disk: 2 MiB are free" in done.stdout
    assert "\nrun " in done.stdout  # it has begun


@pytest.mark.long
def test_a_run_on_a_machine_in_order_says_nothing_of_it(
    airlock: Start,
) -> None:
    args = as_options("train.max_steps=1", "data.eval_path=", "train.global_batch_size=8")
    out = output_of(airlock("run", "tiny", *args))
    before = out[: out.index("airlock: tiny, 2 ranks on ")].splitlines()
    # Leftovers of others on this machine are reported, and rightly so.
    assert [line for line in before if not line.startswith("airlock: warning: leftovers:")] == []


def converse(terminal: int, about: str, answer: str, wanted: str) -> str:
    """Give `answer` to questions about `about` and no to others, until `wanted` is shown.

    Runs of other tests may die meanwhile and lead to more questions, before it or after.
    """
    shown, num_answered = "", 0
    while wanted not in shown:
        shown += os.read(terminal, 4096).decode()
        *asked, _ = shown.split("End them? [y/N]: ")
        for question in asked[num_answered:]:
            os.write(terminal, f"{answer if about in question else 'n'}\n".encode())
        num_answered = len(asked)
    return shown


@pytest.mark.parametrize(("answer", "ends"), [("y", True), ("n", False)])
@pytest.mark.runs
def test_on_a_terminal_it_offers_to_end_what_a_dead_run_has_left(
    user: User, answer: str, ends: bool
) -> None:
    name = f"20260101-000000-tiny-{secrets.token_hex(4)}"  # its folder has been removed
    command = [sys.executable, "-P", "-m", "launch", "run", "tiny", "--set", "train.max_steps=1"]
    ours, theirs = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, ours)
        env = {"AIRLOCK_RUN_DIR": str(user.folder / "runs" / name)}
        left = stack.enter_context(subprocess.Popen(["sleep", "600"], env=env))
        stack.callback(left.kill)
        process = stack.enter_context(
            subprocess.Popen(command, env=user.environ, stdin=theirs, stdout=theirs, stderr=theirs)
        )
        stack.callback(process.kill)
        os.close(theirs)
        wanted = "ended 1 process left over" if ends else f"leftovers: run {name}"
        shown = converse(ours, name, answer, wanted)
        assert f"run {name} is dead and has left 1 process here. End them?" in shown
        assert (left.wait(20) == -signal.SIGTERM) if ends else (left.poll() is None)


def test_the_checks_alone_print_what_they_saw_or_one_object(typed: Typed) -> None:
    out = typed.output_of("preflight", "tiny")
    assert "ok       localhost: 127.0.0.1 answers" in out
    err = typed.error_of("preflight", "nonsense")
    assert "no profile 'nonsense'" in err
