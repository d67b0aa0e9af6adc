"""`python -m train`: one process without the launcher, and the same training bit for bit."""

from __future__ import annotations

import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from rundir.checkpoints import complete_checkpoints
from rundir.paths import ROOT, RunDir
from rundir.status import read_status
from tests.running import (
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    output_of,
    processes_of,
    run_folder,
    wait_for,
    wait_until_training,
)

AIRLOCK = shlex.quote(f"{ROOT}/airlock")
_NUM_STEPS = 8
EIGHT = (
    "tiny",
    *as_options(
        f"train.max_steps={_NUM_STEPS}",
        "train.log_every_steps=1",
        "train.global_batch_size=8",
        "train.eval_generate=false",
        "train.checkpoint_every_steps=3",
        "data.max_samples=32",
        "launch.threads_per_rank=1",
        "data.eval_path=",
    ),
)
ONE = (*EIGHT, "--set", "train.max_steps=1")


def in_gradients(body: str) -> tuple[str, str]:
    """Return a module, and what to run after its import so that `body` runs in each step."""
    return (
        "train.step.loop",
        f"""
import ctypes, time
inner = module.Trainer.gradients
def gradients(self, *args):
    {body}
    return inner(self, *args)
module.Trainer.gradients = gradients
""",
    )


# Until a stop is asked for, so that it arrives in the middle of the step.
_UNTIL_ASKED = in_gradients(
    """while self._step == 4 and not (self._run.control / "stop").exists(): time.sleep(0.01)"""
)
# A main thread that handles no signal waits in the C library, for a lock that it holds itself.
_STUCK = in_gradients("""
    lock = ctypes.create_string_buffer(256)
    while self._step == 2: ctypes.CDLL(None).pthread_mutex_lock(lock)
""")
_FREEZES = in_gradients("if self._step == 2: time.sleep(12)")
_FILLS_THE_DISK = in_gradients("""
    filler = os.open(self._run.path / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        while self._step == 1: os.write(filler, bytes(4096))
    except OSError: pass
""")
_RAISES = in_gradients("assert self._step != 1, 'something of its own'")
_KILLED_AS_IT_SAVES = """
import signal
inner = module.save_file
def save_file(tensors, path):
    inner(tensors, path)
    if "step_00000006" in str(path):
        os.kill(os.getpid(), signal.SIGKILL)
module.save_file = save_file
"""


def done(process: subprocess.Popen[str], environ: dict[str, str]) -> tuple[RunDir, str]:
    """Return the run, which has to end well, and its output."""
    out = output_of(process)
    return run_folder(environ), out


def curve(run: RunDir) -> dict[int, tuple[float, float]]:
    """Return step → loss and gradient norm."""
    events = events_of(run, "metric", "train")
    return {event["step"]: (event["loss"], event["grad_norm"]) for event in events}


def weights(run: RunDir) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(user_of_all: User) -> dict[str, object]:
    """Return the results of an uninterrupted run."""
    run, out = done(user_of_all.plain(*EIGHT), user_of_all.environ)
    return {
        "curve": curve(run),
        "weights": weights(run),
        "out": out,
        "status": read_status(run),
        "files": {path.name for path in run.path.iterdir()},
        "log": run.rank_log(0, 0).read_text(),
        "command": run.command.read_text(),
    }


def test_the_steps_are_bitwise_those_of_a_launched_run_with_one_rank(
    user: User, whole: dict[str, object]
) -> None:
    args = ("run", *EIGHT, "--num-gpus", "1", "--set", "launch.admit=open")
    run, _ = done(user.airlock(*args), user.environ)
    assert curve(run) == whole["curve"]
    assert sorted(curve(run)) == list(range(1, _NUM_STEPS + 1))
    assert weights(run) == whole["weights"]


def test_a_plain_run_shows_what_a_run_shows_and_leaves_what_a_run_leaves(
    whole: dict[str, object],
) -> None:
    out, status = str(whole["out"]), whole["status"]
    assert "1 rank on c" in out
    assert "[Rank 0] MEM:POST-MODEL rss=" in out
    assert f"step {_NUM_STEPS}/{_NUM_STEPS}  loss " in out
    assert "tokens/s  eta " in out
    assert f"checkpoint after step {_NUM_STEPS} saved" in out
    assert "tiny: done in " in out
    assert "Loading weights" not in out
    wanted = {
        "config.toml",
        "command.txt",
        "owner.json",
        "environment.json",
        "prepared.json",
        "status.json",
        "events",
        "logs",
        "control",
        "checkpoints",
        "incidents",
        "model",
        "tensorboard",
    }
    assert wanted <= whole["files"]  # type: ignore[operator]
    assert isinstance(status, dict)
    assert (status["phase"], status["exit_code"], status["step"]) == ("done", 0, _NUM_STEPS)
    assert "[Rank 0] MEM:START" in str(whole["log"])
    typed = f"{AIRLOCK} run --plain tiny --set train.max_steps=8"
    assert str(whole["command"]).startswith(typed)


@pytest.mark.long
def test_what_kill_9_leaves_in_a_save_is_passed_over_and_after_ctrl_c_the_command_named_goes_on(
    user: User, whole: dict[str, object]
) -> None:
    env = user.hooked("train.step.checkpoint", _KILLED_AS_IT_SAVES)
    with ended(user.plain(*EIGHT, env=env)) as process:
        code, _, _ = finish(process)
    assert code == -signal.SIGKILL
    killed = user.run()
    assert read_status(killed)["exit_code"] is None
    assert list(killed.checkpoints.glob(".step_*"))  # half written
    assert_nothing_left(killed)  # its tracker takes a moment to end

    (user.folder / "sitecustomize.py").unlink()
    env = user.hooked(*_UNTIL_ASKED)
    with ended(user.plain("tiny", "--resume", killed.run_id, env=env)) as process:
        wait_for(lambda: user.run() != killed, why="no second run")
        resumed = user.run()
        wait_for(lambda: 4 in curve(resumed), why="the fourth step was not trained")
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code == 20, out + err
    assert min(curve(resumed)) == 4
    assert "stopping: the run saves a checkpoint; Ctrl-C again ends at once" in out
    assert read_status(resumed)["phase"] == "interrupted"
    step = max(curve(resumed))
    assert 4 < step < _NUM_STEPS
    assert f"the checkpoint after step {step} is saved" in out
    program, arguments = out.partition("  → ")[2].strip().split(" tiny ")
    assert program == f"{AIRLOCK} run --plain"

    last, _ = done(user.plain("tiny", *shlex.split(arguments)), user.environ)
    assert min(curve(last)) == step + 1
    assert curve(killed) | curve(resumed) | curve(last) == whole["curve"]
    assert weights(last) == whole["weights"]


@pytest.mark.long
def test_a_second_ctrl_c_ends_a_process_that_cannot_answer_and_no_port_of_it_is_open(
    user: User,
) -> None:
    env = user.hooked(*_STUCK)
    with ended(user.plain(*EIGHT, env=env)) as process:
        run = user.run()
        wait_for(lambda: len(curve(run)) == 2, why="the second step was not trained")
        assert not psutil.Process(process.pid).net_connections()
        process.send_signal(signal.SIGINT)
        wait_for((run.control / "stop").exists, why="the stop was not passed on")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 21
    assert "nothing was saved" in out
    assert read_status(run)["phase"] == "interrupted"


@pytest.mark.long
def test_a_training_that_freezes_says_where_it_stands_and_goes_on(user: User) -> None:
    env = user.hooked(*_FREEZES)
    out = output_of(user.plain(*EIGHT, "--set", "launch.hang_timeout_s=3", env=env))
    told = [line for line in out.splitlines() if "stands still" in line]
    assert len(told) == 1, out
    assert "after step 2, at " in told[0]
    assert "sitecustomize.py" in told[0]
    assert "doctor --pid" in out
    assert "the training moves again, after " in out
    log = user.run().rank_log(0, 0).read_text()
    assert told[0] in log
    assert "most recent call first" in log


def test_a_stop_before_training_ends_at_once_and_says_that_nothing_was_saved(user: User) -> None:
    with ended(user.plain(*EIGHT)) as process:
        run = user.run()
        wait_for(lambda: events_of(run, "start", "import"), why="nothing is imported")
        process.send_signal(signal.SIGTERM)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 21
    assert "nothing was saved" in out
    assert not processes_of(run)


@pytest.mark.long
def test_airlock_stop_has_a_plain_run_save_and_end(user: User) -> None:
    with ended(user.plain(*EIGHT, "--set", "train.max_steps=1000000")) as process:
        run = user.run()
        wait_until_training(run)
        line = f"{run.run_id}  training, launcher {process.pid}, 1 process"
        wait_for(lambda: line in user.typed("ps")[1], why="ps never said that it trains")
        assert user.typed("stop", run.run_id)[0] == 0
        assert finish(process)[0] == 20
    assert complete_checkpoints(run.checkpoints)


@pytest.mark.long
def test_two_plain_runs_at_once_make_the_same_model_and_do_not_meet(user: User) -> None:
    env = {"AIRLOCK_CACHE_DIR": str(user.folder / "cache")}  # nothing is made yet
    with ended(user.plain(*ONE, env=env)) as one, ended(user.plain(*ONE, env=env)) as other:
        results = [finish(process) for process in (one, other)]
    assert [code for code, _, _ in results] == [0, 0], results
    runs = [RunDir(path) for path in Path(user.environ["AIRLOCK_RUNS_DIR"]).glob("2*")]
    assert len(runs) == 2
    assert weights(runs[0]) == weights(runs[1])
    assert len(list((user.folder / "cache" / "models").iterdir())) == 1


def test_an_exception_is_told_with_its_traceback_on_the_screen_and_in_the_log(user: User) -> None:
    env = user.hooked(*_RAISES)
    out = output_of(user.plain(*EIGHT, env=env), code=10)
    assert "airlock: the run failed: rank 0 raised AssertionError: something of its own" in out
    assert out.rstrip().endswith("AssertionError: something of its own")
    run = user.run()
    assert "AssertionError: something of its own" in run.rank_log(0, 0).read_text()
    assert read_status(run)["phase"] == "failed"


@pytest.mark.long
def test_a_disk_that_is_full_is_said_though_no_event_of_it_can_be_written(
    user: User, small_disk: Path
) -> None:
    env = user.hooked(*_FILLS_THE_DISK)
    env |= {"AIRLOCK_RUNS_DIR": str(small_disk)}
    with ended(user.plain(*EIGHT, env=env)) as process:
        code, out, err = finish(process)
    assert code == 10
    assert "airlock: the run failed: rank 0 raised OSError: [Errno 28] No space left" in out
    assert "the checkpoint after step 3 takes" in out
    assert "airlock: events are being lost" in err
    assert not list(run_folder(user.environ | env).checkpoints.iterdir())


CASES = {
    "no profile": ((), {}, 2, ["the name of a profile", "run --plain tiny"]),
    "an unknown profile": (("tyni",), {}, 2, ["'tyni'", "tiny"]),
    "a wrong type": (("tiny", "--set", "train.max_steps=few"), {}, 2, ["'few'", "whole"]),
    "a run that is not there": (("tiny", "--resume", "none"), {}, 2, ["'none'"]),
    "data that are not there": (("tiny", "--data", "no.jsonl"), {}, 5, ["no.jsonl"]),
    "started by torchrun": (
        ("tiny", "--data", "my.jsonl"),
        {"RANK": "3", "WORLD_SIZE": "8", "AIRLOCK_SCRIPT": f"{ROOT}/airlock"},
        2,
        ["WORLD_SIZE=8", f"{AIRLOCK} run tiny --num-gpus 8 --data my.jsonl"],
    ),
    "a world of an odd size": (("tiny",), {"WORLD_SIZE": "few"}, 2, ["WORLD_SIZE=few"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_ends_before_there_is_a_run_folder(user: User, case: str) -> None:
    args, env, expected, parts = CASES[case]
    err = user.typed.error_of("run", "--plain", *args, code=expected, env=env)
    assert all(part in err for part in parts), err
    assert "Traceback" not in err
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()
