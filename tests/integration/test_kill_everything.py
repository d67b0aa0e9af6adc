"""SIGKILL for each process of a run, in each phase: it ends properly, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from rundir.paths import RunDir
from tests.running import (
    COLD,
    ENDLESS,
    SERIAL,
    Start,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    hooked,
    processes_of,
    rank_pids,
    run_folder,
    training,
    wait_for,
    wait_until_training,
    zygote_pid,
)

# Phases in which the ranks stand still, so that they can be hit there: (module, what is stopped).
_STOPS = {
    "zygote imports": ("train.worker", "import time; time.sleep(3600)"),
    "zygote builds": ("train.worker", "import time; module.build = lambda *a: time.sleep(3600)"),
    "ranks load": ("train.worker", "import time; module.load = lambda *a: time.sleep(3600)"),
    "a rank waits": ("train.worker", "import time; module.load = lambda *a: time.sleep(3600)"),
    "a rank imports": (
        "train.worker",
        "import time; os.environ['RANK'] == '0' or time.sleep(3600)",
    ),
    "ranks meet": ("ranks.group", "import time; module.meet = lambda *a: time.sleep(3600)"),
}
_NO_RANKS = ("zygote imports", "zygote builds")

# What ranks do only if they load the model themselves, and if there is no zygote.
_OPTIONS = {
    "a rank waits": (*SERIAL, "--set", "launch.start=imports"),
    "a rank imports": (*SERIAL, *COLD),
}


def wait_for_phase(run: RunDir, phase: str) -> None:
    """Wait until the run is stopped in that phase, or trains."""
    if phase == "training":
        return wait_until_training(run)
    kind, name, rank = {
        "zygote imports": ("start", "zygote.import", None),
        "zygote builds": ("start", "zygote.build", None),
        "ranks load": ("start", "model.load", 1),
        "a rank waits": ("start", "lock.wait", 1),
        "a rank imports": ("start", "import", 1),
        "ranks meet": ("end", "lock.hold", 1),
    }[phase]

    def is_there() -> bool:
        found = events_of(run, kind, name, rank)
        return any(event.get("what", "trainer") == "trainer" for event in found)

    wait_for(is_there, why=f"not in the phase: {phase}")
    return None


def pid_of(victim: str, run: RunDir, launcher: int) -> int:
    if victim == "launch":
        return launcher
    if victim == "agent":
        return int(events_of(run, "start", "spawn")[0]["pid"])
    if victim == "zygote":
        return zygote_pid(run)
    if victim == "rank 1":
        return rank_pids(run)[1]
    for process in processes_of(run):
        if victim in " ".join(process.cmdline()):
            return process.pid
    raise AssertionError(victim)


_CASES = [
    (victim, phase)
    for phase in (*_STOPS, "training")
    for victim in ("launch", "agent", "zygote", "rank 1")
    if (victim != "rank 1" or phase not in (*_NO_RANKS, "training"))  # that: test_failures.py
    and (victim != "zygote" or phase != "a rank imports")
]
# One phase for each victim, and one victim for each phase, in the default tier.
_SHORT = {
    ("launch", "zygote imports"),
    ("agent", "zygote builds"),
    ("zygote", "ranks load"),
    ("rank 1", "ranks meet"),
    ("launch", "ranks meet"),
    ("rank 1", "a rank waits"),
    ("rank 1", "a rank imports"),
    ("launch", "training"),
    ("agent", "training"),
}


@pytest.mark.parametrize(
    ("victim", "phase"),
    [pytest.param(*case, marks=() if case in _SHORT else pytest.mark.long) for case in _CASES],
)
def test_whoever_is_killed_whenever_the_run_ends_and_nothing_is_left(
    airlock: Start, environ: dict[str, str], tmp_path: Path, victim: str, phase: str
) -> None:
    env = hooked(environ, tmp_path, *_STOPS[phase]) if phase in _STOPS else {}
    with ended(airlock(*ENDLESS, *_OPTIONS.get(phase, ()), env=env)) as process:
        run = run_folder(environ)
        wait_for_phase(run, phase)
        os.kill(pid_of(victim, run, process.pid), signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=30)
    if victim == "launch":
        assert code == -signal.SIGKILL
    else:
        assert code == 10, out
        said = {
            "agent": "torch's agent",
            "zygote": "the zygote killed by SIGKILL",
            "rank 1": "rank 1 killed by SIGKILL",
        }[victim]
        assert said in out
    assert_nothing_left(run)


# What a rank may have started: workers of a DataLoader, torch's compile workers, anything else.
_CHILDREN = """
import subprocess, sys, torch
from torch.utils.data import DataLoader
meet = module.meet
def meet_with_children(*args):
    module.keep = [
        iter(DataLoader(list(range(1000)), num_workers=2, persistent_workers=True)),
        subprocess.Popen(["sleep", "1000"], start_new_session=True),
    ]
    next(module.keep[0])
    from torch._inductor.compile_worker.subproc_pool import SubprocPool
    module.keep.append(SubprocPool(2))
    module.keep[2].submit(abs, 1).result()
    open(f"children{os.environ['RANK']}", "w").close()
    return meet(*args)
module.meet = meet_with_children
"""


@pytest.mark.parametrize(
    ("victim", "options"),
    [
        ("launch", ()),
        pytest.param("rank 1", (), marks=pytest.mark.long),
        pytest.param("zygote", (), marks=pytest.mark.long),
        pytest.param("agent", (), marks=pytest.mark.long),
        pytest.param("launch", COLD, marks=pytest.mark.long),
        pytest.param("agent", COLD, marks=pytest.mark.long),
        pytest.param("rank 1", COLD, marks=pytest.mark.long),
    ],
)
def test_what_the_ranks_have_started_themselves_is_ended_too(
    airlock: Start, environ: dict[str, str], tmp_path: Path, victim: str, options: tuple[str, ...]
) -> None:
    env = hooked(environ, tmp_path, "ranks.group", _CHILDREN)
    with training(airlock(*ENDLESS, *options, env=env), environ) as (process, run):
        assert (tmp_path / "children0").exists()
        assert len(processes_of(run)) >= 2 + 2 * 4  # agent, zygote or not, ranks, their children
        os.kill(pid_of(victim, run, process.pid), signal.SIGKILL)
        process.wait(30)
        process.communicate()
        assert_nothing_left(run)


@pytest.mark.parametrize("helper", ["resource_tracker", "keeper.py"])
def test_a_run_does_without_its_small_helpers(
    airlock: Start, environ: dict[str, str], helper: str
) -> None:
    with training(airlock(*ENDLESS), environ) as (process, run):
        if helper == "keeper.py":  # it has none of the run's environment
            children = psutil.Process(process.pid).children()
            pid = next(one.pid for one in children if helper in " ".join(one.cmdline()))
        else:
            pid = pid_of(helper, run, process.pid)
        os.kill(pid, signal.SIGKILL)
        step = events_of(run, "metric", "train")[-1]["step"]
        wait_for(lambda: events_of(run, "metric", "train")[-1]["step"] > step + 5, why="it stopped")
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process)
    assert code == 20, out
    assert_nothing_left(run)


def test_the_keeper_ends_only_what_is_of_its_run(environ: dict[str, str], tmp_path: Path) -> None:
    from machine.processes import children

    mine, other = str(tmp_path / "mine"), str(tmp_path / "mine too")
    sleepers = [
        subprocess.Popen(["sleep", "1000"], env=environ | {"AIRLOCK_RUN_DIR": run})
        for run in (mine, other)
    ]
    keeper = children.start_keeper(Path(mine))
    try:
        assert keeper.stdin is not None
        keeper.stdin.close()  # as the kernel does when the launcher is gone
        assert keeper.wait(30) == 0
        assert sleepers[0].wait(30) == -signal.SIGKILL
        assert sleepers[1].poll() is None
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
