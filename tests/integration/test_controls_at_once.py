"""Controls from two terminals at once, and ranks or a launcher killed while a control is done."""

from __future__ import annotations

import os
import signal

import pytest

from rundir.checkpoints import complete_checkpoints, step_of
from rundir.config_file import read_config
from rundir.paths import RunDir
from tests.holding import (
    PATIENT_S,
    STEPS,
    WHOLE,
    Holds,
    Typed,
    curve,
    next_run,
    phase_of,
    undisturbed_run,
)
from tests.running import (
    Start,
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    output_of,
    rank_pids,
    run_folder,
    wait_for,
)


def goes_on(airlock: Start, environ: dict[str, str], run: RunDir, *args: str) -> RunDir:
    """Resume a run that has ended or died, to its end; return the run that goes on."""
    again = ("run", "tiny", "--resume", run.run_id, *args)
    output_of(airlock(*again), timeout_s=PATIENT_S)
    return run_folder(environ)


def assert_as_undisturbed(run: RunDir, resumed: RunDir, undisturbed: RunDir) -> None:
    """Fail unless both runs together have bitwise the steps of the one that nobody disturbed."""
    first = events_of(resumed, "mark", "train.plan")[0]["first_step"]
    assert first > 0
    before = [point for point in curve(run) if point[0] <= first]
    after = curve(resumed)
    assert [point[0] for point in after] == list(range(first + 1, STEPS + 1))
    assert before + after == curve(undisturbed)


@pytest.fixture
def undisturbed(airlock: Start, environ: dict[str, str]) -> RunDir:
    return undisturbed_run(airlock, environ)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_same_and_different_controls_from_two_terminals_at_once(
    user: User, undisturbed: RunDir
) -> None:
    holds = Holds(user.folder, user.environ, "first step", "training")
    with ended(user.airlock(*WHOLE, env=holds.env)) as process:
        run = next_run(user.environ, undisturbed)
        typed = Typed(user.airlock, run)
        holds.until("first step", run)
        one, other = "train.keep_checkpoints=31", "train.keep_checkpoints=32"
        pairs = [typed.begin(*words) for words in [("pause",)] * 2 + [("save",)] * 2]
        pairs += [typed.begin("set", "R", one), typed.begin("set", "R", other)]
        wait_for(lambda: len(list(run.control.iterdir())) == 5, why="not all is asked for")
        holds.go("first step")
        for number, (process_, said) in enumerate(
            zip(pairs, ("paused", "paused", "saved", "saved", "=", "="), strict=True)
        ):
            code, text = typed.end(process_, "twice", str(number))
            assert code == 0, text
            assert said in text.replace("train.keep_checkpoints is ", "=")
        assert read_config(run.config).train.keep_checkpoints in (31, 32)
        resumes = [typed.begin("resume"), typed.begin("resume")]
        for number, process_ in enumerate(resumes):
            code, text = typed.end(process_, "twice", f"resume {number}")
            assert code == 0, text
            assert "goes on after step" in text or "is not paused" in text
        holds.until("training", run)
        pause, stop = typed.begin("pause"), typed.begin("stop")
        wait_for((run.control / "stop").exists, why="not asked to stop")
        wait_for((run.control / "pause").exists, why="not asked to pause")
        holds.go("training")
        code, _, err = finish(process, timeout_s=PATIENT_S)
        assert typed.end(stop, "twice", "stop")[0] == 0
        paused, text = typed.end(pause, "twice", "pause beside stop")
        print(typed.table())  # noqa: T201 - shown with -s
        assert (paused, "is stopping" in text or "is over: interrupted" in text) == (2, True), text
    assert code == 20, err
    assert_nothing_left(run)
    assert_as_undisturbed(run, goes_on(user.airlock, user.environ, run), undisturbed)


# What is asked for; where rank 0 or 1 is then held, and killed; or the launcher is.
_KILLS = {
    "the launcher, while it saves": ("save", "launcher", 0),
    "rank 1, while it evaluates": ("evaluate", "rank", 1),
    "rank 0, while it is paused": ("pause", "rank", 0),
}
_WHERE = {
    "save": ("train.step.checkpoint", "save", "args[1] > 2"),
    "evaluate": (
        "train.evaluation.evaluator",
        "Evaluator._losses",
        "args[0]._ranks.pulse._step > 2",
    ),
}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", _KILLS)
def test_what_is_killed_while_a_control_is_done_leaves_nothing_and_goes_on_with_the_same_losses(
    user: User, undisturbed: RunDir, how: str
) -> None:
    control, victim, rank = _KILLS[how]
    holds = Holds(user.folder, user.environ, rank=rank)
    if control in _WHERE:
        holds.hold("here", *_WHERE[control])
    settings = as_options("train.checkpoint_every_steps=2", "train.eval_every_steps=0")
    with ended(user.airlock(*WHOLE, *settings, env=holds.env)) as process:
        run = next_run(user.environ, undisturbed)
        typed = Typed(user.airlock, run)
        wait_for(lambda: curve(run)[2:], why="no third step", timeout_s=PATIENT_S)
        asked = typed.begin(control)
        holds.until("here" if control in _WHERE else "paused", run)
        pid = process.pid if victim == "launcher" else rank_pids(run)[rank]
        os.kill(pid, signal.SIGKILL)
        code, out, err = finish(process, timeout_s=PATIENT_S)
        assert code == (-signal.SIGKILL if victim == "launcher" else 10), out + err
        assert_nothing_left(run)
        code, text = typed.end(asked, how, control)
        expected = "is dead" if victim == "launcher" else "is over: failed"
        if control == "pause":
            assert (code, "paused after step" in text) == (0, True), text
        else:
            assert (code, expected in text) == (2, True), text
        code, text = typed("pause", how)
        assert (code, expected in text) == (2, True), text
        print(typed.table())  # noqa: T201 - shown with -s
    saved = [step_of(path) for path in complete_checkpoints(run.checkpoints)]
    assert saved
    assert_as_undisturbed(run, goes_on(user.airlock, user.environ, run), undisturbed)


@pytest.mark.timeout(900)
def test_ranks_that_are_killed_while_paused_and_started_again_pause_again(user: User) -> None:
    with ended(user.airlock(*WHOLE, "--max-restarts", "1")) as process:
        run = user.run()
        wait_for(run.status.exists, why="no status")
        typed = Typed(user.airlock, run)
        code, text = typed("pause", "training")
        assert code == 0, text
        wait_for(lambda: phase_of(run) == "paused", why="not paused", timeout_s=PATIENT_S)
        os.kill(rank_pids(run)[1], signal.SIGKILL)
        wait_for(lambda: events_of(run, "mark", "restart"), why="no restart", timeout_s=PATIENT_S)
        code, text = typed("pause", "started again")
        assert code == 0, text
        wait_for(lambda: phase_of(run) == "paused", why="not paused again", timeout_s=PATIENT_S)
        assert typed("resume", "started again")[0] == 0
        code, _, err = finish(process, timeout_s=PATIENT_S)
    assert code == 0, err
    assert {point[0] for point in curve(run)} == set(range(1, STEPS + 1))
    assert_nothing_left(run)
