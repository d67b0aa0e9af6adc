"""Attaching to runs whose folders tell all: one that is over, dead, unknown, or one of several."""

from __future__ import annotations

import time
from pathlib import Path

from rundir import owner
from rundir.paths import RunDir
from rundir.status import Status, write_status
from tests.launch.run_folders import owned, trained_run
from tests.running import User, ended, finish, wait_for


def folder(environ: dict[str, str], phase: str, code: int | None, lines: int = 3) -> RunDir:
    runs = Path(environ["AIRLOCK_RUNS_DIR"])
    run = trained_run(runs / "20261120-221500-tiny-3f2a")
    run.run_log.parent.mkdir()
    run.run_log.write_text("".join(f"line {number}\n" for number in range(lines)))
    status = Status(run_id=run.run_id, profile="tiny", phase=phase, exit_code=code)
    status.started_t = time.time()
    write_status(run, status)
    return run


def test_of_a_run_that_is_over_the_end_is_shown_and_its_exit_code_returned(user: User) -> None:
    run = folder(user.environ, "failed", 11, lines=100)
    out = user.output_of("attach", run.run_id, code=11)
    assert out.splitlines() == [f"line {number}" for number in range(40, 100)]


def test_a_reader_that_has_had_enough_leaves_the_view_and_others_are_told_of_a_dead_launcher(
    user: User,
) -> None:
    run = folder(user.environ, "training", None)
    with (
        owned(run) as launcher,
        ended(user.airlock("attach", run.run_id)) as process,
        ended(user.airlock("attach", run.run_id)) as other,
    ):
        output, others = process.stdout, other.stdout
        assert output is not None
        assert others is not None
        for lines in (output, others):
            wait_for(lambda lines=lines: "attached" in lines.readline(), why="not attached")  # type: ignore[misc]
        others.close()
        with run.run_log.open("a") as log:
            log.write("step 5/9  loss 1.0\n")
        assert output.readline() == "step 5/9  loss 1.0\n"
        other.stdout = None  # closed already
        assert other.wait(60) == 0
        launcher.kill()
        code, _, err = finish(process)
    assert code == 10
    assert "its launcher has ended without a word" in err
    assert f"doctor {run.run_id}" in err
    assert owner.owner_of(run) is not None


def test_a_run_without_a_log_or_a_status_can_be_attached_to(user: User) -> None:
    run = folder(user.environ, "training", None)
    run.run_log.unlink()
    run.status.unlink()
    with owned(run), ended(user.airlock("attach", run.run_id)) as process:
        assert process.stdout is not None
        assert "has no lines" in process.stdout.readline()
        assert "attached to" in process.stdout.readline()
        process.terminate()
        code, out, err = finish(process)
    assert code == 0, err
    assert f"left {run.run_id}, which goes on" in out
