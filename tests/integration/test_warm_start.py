"""The warm start: ranks are forks of one process that has imported and built, if that is safe."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from rundir.checkpoints import complete_checkpoints
from rundir.paths import RunDir
from tests.running import (
    COLD,
    ENDLESS,
    IN_ZYGOTE,
    SHORT,
    Start,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    here,
    hooked,
    how_started,
    limit_s,
    rank_pids,
    run_folder,
    training,
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
    airlock: Start, environ: dict[str, str], tmp_path: Path, threads: int, method: str
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
    env = hooked(environ, tmp_path, "ranks.group", body)
    env |= {"AIRLOCK_LAUNCH_THREADS_PER_RANK": str(threads), "OMP_WAIT_POLICY": "passive"}
    steps = ("--set", "train.max_steps=20", "--set", f"train.method={method}")
    for start in ("warm", "imports", "cold"):
        code, out, err = finish(airlock(*SHORT, *steps, "--set", f"launch.start={start}", env=env))
        assert code == 0, out + err
        run = run_folder(environ)
        assert how_started(run) == (start, None)
        found[start] = trained(run)
        assert len(found[start][0]) == 20
    assert found["warm"] == found["cold"]
    assert found["imports"] == found["cold"]
    assert (tmp_path / "threads").read_text().split() == [str(threads)] * 6


def test_a_parallel_region_in_the_zygote_is_seen_and_the_run_starts_cold(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    body = f"""{IN_ZYGOTE}
if in_zygote:
    import torch
    torch.set_num_threads(4)
    torch.ones(1 << 22).exp_()
    torch.set_num_threads(1)
"""
    env = hooked(environ, tmp_path, "train.worker", body)
    code, out, err = finish(airlock(*SHORT, env=env))
    assert code == 0, err
    start, reason = how_started(run_folder(environ))
    assert start == "cold"
    assert reason is not None
    assert " threads (python): a fork would " in reason
    assert f"airlock: starting cold: {reason}" in out
    assert_nothing_left(run_folder(environ))


def test_a_rank_that_is_told_not_to_trust_the_zygote_fails_and_says_so(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    # As when multiprocessing has started another zygote, and that one is unsafe to fork.
    body = "module.WarmStart.why_not = lambda self: self._wait() and None"
    hooked(environ, tmp_path, "launch.start.agent.warm_start", body)
    unfit = f"{IN_ZYGOTE}\nif in_zygote:\n    raise ImportError('only here')"
    env = hooked(environ, tmp_path, "train.worker", unfit)
    code, out, _ = finish(airlock(*SHORT, env=env))
    assert code == 10
    assert "the zygote must not be forked: ImportError: only here" in out


def test_what_a_fork_gets_wrong_is_put_right_in_every_rank(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    body = """
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
    env = hooked(environ, tmp_path, "ranks.group", body)
    env |= {"AIRLOCK_LAUNCH_THREADS_PER_RANK": "3", "HF_DEACTIVATE_ASYNC_LOAD": "0"}
    code, _, err = finish(airlock(*SHORT, env=env))
    assert code == 0, err
    assert how_started(run_folder(environ)) == ("warm", None)
    zero, one = (json.loads((tmp_path / f"about{rank}").read_text()) for rank in (0, 1))
    assert zero.pop("random") != one.pop("random")
    assert (
        zero
        == one
        == {
            "OMP_NUM_THREADS": "3",
            "OPENBLAS_NUM_THREADS": "3",
            "HF_DEACTIVATE_ASYNC_LOAD": "0",
            "JE_ARROW_MALLOC_CONF": None,
            "threads": 3,
        }
    )
    assert (tmp_path / "atexit0").exists()
    assert (tmp_path / "atexit1").exists()


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
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS, *COLD), environ) as (process, run):
        assert_kept_apart(process, run)
        process.kill()
    assert_nothing_left(run)


@pytest.mark.sample
def test_ranks_are_forks_of_the_zygote_and_share_what_it_has(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        zygote = psutil.Process(zygote_pid(run))
        pids = set(rank_pids(run).values())
        assert {child.pid for child in zygote.children()} == pids
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


@pytest.mark.parametrize("start", ["warm", pytest.param("imports", marks=pytest.mark.long)])
def test_ranks_go_on_sharing_frozen_weights_in_ddp_forked_with_them_or_not(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    env = hooked(environ, tmp_path, "train.worker", _WRITTEN_TO)
    options = (
        "--set",
        "train.method=lora",
        "--set",
        f"launch.start={start}",
        "--set",
        "train.merge_adapters=false",  # checked here in passing
    )
    code, out, err = finish(airlock(*SHORT, *options, env=env))
    assert code == 0, err
    run = run_folder(environ)
    assert (run.adapter / "adapter_model.safetensors").is_file()
    assert not run.model.exists()
    assert re.search(rf"^  adapter +.*{run.run_id}/adapter$", out, re.MULTILINE)
    written_to = [int((tmp_path / f"dirty{rank}").read_text()) for rank in (0, 1)]
    if start == "warm":
        assert written_to == [0, 0]
    else:  # what each rank has loaded itself is compared, not sent; loading wrote to a few pages
        assert max(written_to) < 100  # kB, of 3,200


@pytest.mark.gpu
def test_a_warm_start_on_a_gpu_trains_as_a_cold_one_does(
    airlock: Start, environ: dict[str, str]
) -> None:
    found = {}
    for start in ("warm", "cold"):
        for method in ("full", "lora"):
            options = ("--set", f"launch.start={start}", "--set", f"train.method={method}")
            code, out, err = finish(airlock(*SHORT, *options, env={"NUM_GPUS": "1"}))
            assert code == 0, out + err
            run = run_folder(environ)
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
def test_cuda_in_the_zygote_is_seen_whoever_initialised_it(
    airlock: Start, environ: dict[str, str], tmp_path: Path, deed: str
) -> None:
    body = f"{IN_ZYGOTE}\nif in_zygote:\n    {deed}"
    env = hooked(environ, tmp_path, "train.worker", body)
    code, _, err = finish(airlock(*SHORT, env=env | {"NUM_GPUS": "1"}))
    assert code == 0, err
    start, reason = how_started(run_folder(environ))
    assert start == "cold"
    assert reason is not None
    assert "CUDA" in reason


@pytest.mark.sample
def test_a_cold_start_has_no_zygote_and_its_command_is_kept_with_variables_and_the_limit(
    airlock: Start, environ: dict[str, str]
) -> None:
    env = {"NUM_GPUS": "2", "AIRLOCK_LIMITS_RLIMIT_AS_GIB": "24", "AIRLOCK_SCRIPT": "./start.sh"}
    code, _, err = finish(airlock(*SHORT, *COLD, env=env))
    assert code == 0, err
    run = run_folder(environ)
    assert how_started(run) == ("cold", None)
    assert not run.event_file("zygote").exists()
    first, *_, line = run.command.read_text().splitlines()
    # It was typed where no ./start.sh lies, and has to work when it is pasted.
    typed = f"NUM_GPUS=2 AIRLOCK_LIMITS_RLIMIT_AS_GIB=24 {here('start.sh')} tiny --set "
    assert first.startswith(typed)
    limits = [word for word in shlex.split(line) if word.startswith("AIRLOCK_RLIMIT_AS")]
    assert len(limits) == 1, line


def test_a_zygote_killed_from_outside_while_it_imports_ends_the_run(
    airlock: Start, environ: dict[str, str]
) -> None:
    with ended(airlock(*SHORT)) as process:
        run = run_folder(environ)
        os.kill(zygote_pid(run), signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=30)
    assert code == 10
    assert "the zygote killed by SIGKILL" in out
    assert_nothing_left(run)


@pytest.mark.long
def test_the_zygote_waits_at_the_gate_for_as_long_as_it_takes(
    airlock: Start, environ: dict[str, str]
) -> None:
    gate = Path(environ["AIRLOCK_GATE_DIR"]) / "gate.lock"
    holder = subprocess.Popen(["flock", str(gate), "sleep", "1000"], start_new_session=True)
    try:
        wait_for(gate.exists, why="nobody took the lock")
        own_s = limit_s(6)
        limit = ("--set", f"launch.zygote_timeout_s={own_s}", "--set", "launch.admit=auto")
        with ended(airlock(*SHORT, *limit)) as process:
            run = run_folder(environ)
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
