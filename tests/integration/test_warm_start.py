"""The warm start: ranks are forks of one process that has imported and built, if that is safe."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from rundir.checkpoints import complete_checkpoints
from rundir.events import read_events
from rundir.paths import RunDir
from tests.running import (
    COLD,
    ENDLESS,
    IN_ZYGOTE,
    SHORT,
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    here,
    how_started,
    limit_s,
    rank_pids,
    wait_for,
    zygote_pid,
)


def trained(run: RunDir) -> tuple[list[float], bytes]:
    """Return the losses, and the exact weights of the last checkpoint."""
    weights = complete_checkpoints(run.checkpoints)[-1] / "model.safetensors"
    return [event["loss"] for event in events_of(run, "metric", "train")], weights.read_bytes()


@pytest.mark.parametrize(
    ("threads", "method"),
    [
        (2, "full"),
        pytest.param(1, "full", marks=pytest.mark.long),
        pytest.param(4, "full", marks=pytest.mark.long),
        pytest.param(2, "lora", marks=pytest.mark.long),
    ],
)
def test_training_after_a_warm_start_is_bitwise_that_after_a_cold_one(
    user: User, threads: int, method: str
) -> None:
    found = {}
    body = """
import torch
meet = module.meet
def meet_and_tell(*args):
    with open("threads", "a") as file:
        file.write(f"{torch.get_num_threads()} ")
    return meet(*args)
module.meet = meet_and_tell
"""
    env = user.hooked("ranks.group", body)
    env |= {"AIRLOCK_LAUNCH_THREADS_PER_RANK": str(threads), "OMP_WAIT_POLICY": "passive"}
    steps = as_options("train.max_steps=8", f"train.method={method}")
    for start in ("warm", "imports", "cold"):
        user.output_of(*SHORT, *steps, "--set", f"launch.start={start}", env=env)
        run = user.run()
        assert how_started(run) == (start, None)
        found[start] = trained(run)
        assert len(found[start][0]) == 8
    assert found["warm"] == found["cold"]
    assert found["imports"] == found["cold"]
    assert (user.folder / "threads").read_text().split() == [str(threads)] * 6


@pytest.mark.long
def test_a_parallel_region_in_the_zygote_is_seen_and_the_run_starts_cold(user: User) -> None:
    body = f"""{IN_ZYGOTE}
if in_zygote:
    import torch
    torch.set_num_threads(4)
    torch.ones(1 << 22).exp_()
    torch.set_num_threads(1)
"""
    env = user.hooked("train.worker", body)
    out = user.output_of(*SHORT, env=env)
    start, reason = how_started(user.run())
    assert start == "cold"
    assert reason is not None
    assert " threads (python): a fork would " in reason
    assert f"airlock: starting cold: {reason}" in out
    assert_nothing_left(user.run())


def test_a_rank_that_is_told_not_to_trust_the_zygote_fails_and_says_so(user: User) -> None:
    # As when multiprocessing has started another zygote, and that one is unsafe to fork.
    body = "module.WarmStart.why_not = lambda self: self._wait() and None"
    user.hooked("launch.start.agent.warm_start", body)
    unfit = f"{IN_ZYGOTE}\nif in_zygote:\n    raise ImportError('only here')"
    env = user.hooked("train.worker", unfit)
    out = user.output_of(*SHORT, env=env, code=10)
    assert "the zygote must not be forked: ImportError: only here" in out


def score(pid: int) -> int:
    """Return what the OOM killer adds to a process's score; the highest score is killed first."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def assert_kept_apart(process: subprocess.Popen[str], run: RunDir) -> None:
    """Fail unless each rank has its own session, and so its CPU share, and is killed first."""
    pids = list(rank_pids(run).values())
    assert [os.getsid(pid) for pid in pids] == pids
    assert all(score(pid) >= score(process.pid) + 500 for pid in pids)


@pytest.mark.long
def test_cold_ranks_have_sessions_of_their_own_and_would_be_killed_before_the_launcher(
    user: User,
) -> None:
    with user.training(*ENDLESS, *COLD) as (process, run):
        assert_kept_apart(process, run)
        process.kill()
    assert_nothing_left(run)


@pytest.mark.sample
def test_ranks_are_forks_of_the_zygote_and_share_what_it_has(user: User) -> None:
    with user.training(*ENDLESS) as (process, run):
        zygote = psutil.Process(zygote_pid(run))
        pids = set(rank_pids(run).values())
        assert {child.pid for child in zygote.children()} == pids
        agent = zygote.parent()
        assert agent is not None
        assert zygote.cmdline() == agent.cmdline()  # a fork of it, with torch imported once
        assert_kept_apart(process, run)
        ready = events_of(run, "mark", "zygote.ready")[0]
        assert (ready["unfit"], ready["num_threads"], ready["cuda_touched"]) == (None, 1, False)
        process.kill()
    assert_nothing_left(run)


# How much of the mapped weights this rank has written to, once DistributedDataParallel has them.
_WRITTEN_TO = """
wrap = module.wrap
def wrap_and_tell(*args, **options):
    wrapped, dirty, is_weights = wrap(*args, **options), 0, False
    for line in open("/proc/self/smaps"):
        name = line.split()[0]
        if not name.endswith(":"):
            is_weights = "safetensors" in line
        elif is_weights and name == "Private_Dirty:":
            dirty += int(line.split()[1])
    with open(f"dirty{os.environ['RANK']}", "w") as file:
        file.write(str(dirty))
    return wrapped
module.wrap = wrap_and_tell
"""


# What each rank finds in its environment and libraries, and that it ends as a program does.
_ABOUT = """
import atexit, json, numpy, torch
meet = module.meet
def tell(*args):
    rank = os.environ["RANK"]
    atexit.register(lambda: open(f"atexit{rank}", "w").close())
    about = {name: os.environ.get(name) for name in (
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "HF_DEACTIVATE_ASYNC_LOAD",
        "JE_ARROW_MALLOC_CONF")}
    about["random"] = numpy.random.random()
    about["threads"] = torch.get_num_threads()
    with open(f"about{rank}", "w") as file:
        json.dump(about, file)
    return meet(*args)
module.meet = tell
"""


def assert_put_right(folder: Path) -> None:
    """Fail unless what a fork gets wrong is put right in every rank."""
    zero, one = (json.loads((folder / f"about{rank}").read_text()) for rank in (0, 1))
    assert zero.pop("random") != one.pop("random")
    assert zero == one
    assert zero == {
        "OMP_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "HF_DEACTIVATE_ASYNC_LOAD": "0",
        "JE_ARROW_MALLOC_CONF": None,
        "threads": 3,
    }
    assert all((folder / f"atexit{rank}").exists() for rank in (0, 1))


@pytest.mark.parametrize("start", ["warm", pytest.param("imports", marks=pytest.mark.long)])
def test_forked_ranks_are_as_started_ones_and_go_on_sharing_frozen_weights_in_ddp(
    user: User, start: str
) -> None:
    user.hooked("ranks.group", _ABOUT)
    env = user.hooked("train.worker", _WRITTEN_TO)
    env |= {"AIRLOCK_LAUNCH_THREADS_PER_RANK": "3", "HF_DEACTIVATE_ASYNC_LOAD": "0"}
    # What the last two do is checked here in passing.
    options = as_options(
        "train.method=lora",
        f"launch.start={start}",
        "train.merge_adapters=false",
        "train.evaluate=false",
    )
    out = user.output_of(*SHORT, *options, env=env)
    run = user.run()
    assert how_started(run) == (start, None)
    assert_put_right(user.folder)
    assert "not measured: train.evaluate is false" in out
    assert "eval" not in {one["name"] for one in read_events(run.events)}
    assert (run.adapter / "adapter_model.safetensors").is_file()
    assert not run.model.exists()
    assert re.search(rf"^  adapter +.*{run.run_id}/adapter$", out, re.MULTILINE)
    written_to = [int((user.folder / f"dirty{rank}").read_text()) for rank in (0, 1)]
    if start == "warm":
        assert written_to == [0, 0]
    else:  # what each rank has loaded itself is compared, not sent; loading wrote to a few pages
        assert max(written_to) < 100  # kB, of 3,200


@pytest.mark.gpu
def test_a_warm_start_on_a_gpu_trains_as_a_cold_one_does(user: User) -> None:
    found = {}
    for start in ("warm", "cold"):
        for method in ("full", "lora"):
            options = as_options(f"launch.start={start}", f"train.method={method}")
            user.output_of(*SHORT, *options, env={"NUM_GPUS": "1"})
            run = user.run()
            assert how_started(run) == (start, None)
            found[start, method] = [event["loss"] for event in events_of(run, "metric", "train")]
            marks = events_of(run, "mark", "mem.post_model", rank=0)
            assert marks[0]["gpu_used_bytes"] > 0
    for method in ("full", "lora"):
        assert found["warm", method] == pytest.approx(found["cold", method], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "deed",
    [
        "import torch; torch.cuda.init()",
        "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)",  # which torch does not see
    ],
)
def test_cuda_in_the_zygote_is_seen_whoever_initialised_it(user: User, deed: str) -> None:
    body = f"{IN_ZYGOTE}\nif in_zygote:\n    {deed}"
    env = user.hooked("train.worker", body)
    user.output_of(*SHORT, env=env | {"NUM_GPUS": "1"})
    start, reason = how_started(user.run())
    assert start == "cold"
    assert reason is not None
    assert "CUDA" in reason


@pytest.mark.sample
def test_a_cold_start_has_no_zygote_and_its_command_is_kept_with_variables_and_the_limits(
    user: User,
) -> None:
    env = {"NUM_GPUS": "2", "AIRLOCK_LIMITS_RLIMIT_AS_GIB": "24", "AIRLOCK_SCRIPT": "./start.sh"}
    user.output_of(*SHORT, *COLD, env=env)
    run = user.run()
    assert how_started(run) == ("cold", None)
    assert not run.event_file("zygote").exists()
    limits = events_of(run, "mark", "limits")
    assert [event["rlimit_as_bytes"] for event in limits] == [24 * 2**30] * 2
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert {event["rlimit_nofile"] for event in limits} == {hard}
    first, *_, line = run.command.read_text().splitlines()
    # It was typed where no ./start.sh lies, and has to work when it is pasted.
    typed = f"NUM_GPUS=2 AIRLOCK_LIMITS_RLIMIT_AS_GIB=24 {here('start.sh')} tiny --set "
    assert first.startswith(typed)
    given = [word for word in shlex.split(line) if word.startswith("AIRLOCK_RLIMIT_AS")]
    assert len(given) == 1, line


@pytest.mark.long
def test_the_zygote_waits_at_the_gate_for_as_long_as_it_takes(user: User) -> None:
    gate = Path(user.environ["AIRLOCK_GATE_DIR"]) / "gate.lock"
    holder = subprocess.Popen(["flock", str(gate), "sleep", "1000"], start_new_session=True)
    try:
        wait_for(gate.exists, why="nobody took the lock")
        own_s = limit_s(6)
        limit = as_options(f"launch.zygote_timeout_s={own_s}", "launch.admit=auto")
        with ended(user.airlock(*SHORT, *limit)) as process:
            run = user.run()
            wait_for(lambda: events_of(run, "start", "lock.wait"), why="it did not wait")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(own_s + 3)  # longer than the limit for its own work
            os.killpg(holder.pid, signal.SIGKILL)
            code, out, err = finish(process)
    finally:
        if holder.poll() is None:
            os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    assert code == 0, err
    assert "[Zygote] LOCK: waiting for exclusive access..." in out
    assert how_started(run) == ("warm", None)
