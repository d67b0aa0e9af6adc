"""SIGKILL for each process of a run, in each phase: it ends properly, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rundir.paths import RunDir
from tests.running import (
    COLD,
    ENDLESS,
    SERIAL,
    User,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    processes_of,
    rank_pids,
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
    and (victim != "launch" or phase != "training")  # that: test_killed_launcher.py
    and (victim != "zygote" or phase != "a rank imports")
]
# One phase for each victim, and one victim for each phase, in the default tier.
_SHORT = {
    ("launch", "zygote imports"),
    ("agent", "zygote builds"),
    ("zygote", "ranks load"),
    ("launch", "ranks meet"),
    ("rank 1", "a rank imports"),
    ("agent", "training"),
}


@pytest.mark.parametrize(
    ("victim", "phase"),
    [pytest.param(*case, marks=() if case in _SHORT else pytest.mark.long) for case in _CASES],
)
def test_whoever_is_killed_whenever_the_run_ends_and_nothing_is_left(
    user: User, victim: str, phase: str
) -> None:
    env = user.hooked(*_STOPS[phase]) if phase in _STOPS else {}
    with ended(user.airlock(*ENDLESS, *_OPTIONS.get(phase, ()), env=env)) as process:
        run = user.run()
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
CHILDREN = """
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "options"),
    [
        *(("rank 1", ()), ("zygote", ()), ("agent", ())),  # the launcher: test_killed_launcher.py
        *(("launch", COLD), ("agent", COLD), ("rank 1", COLD)),
    ],
)
def test_what_the_ranks_have_started_themselves_is_ended_too(
    user: User, victim: str, options: tuple[str, ...]
) -> None:
    env = user.hooked("ranks.group", CHILDREN)
    with user.training(*ENDLESS, *options, env=env) as (process, run):
        assert (user.folder / "children0").exists()
        assert len(processes_of(run)) >= 2 + 2 * 4  # agent, zygote or not, ranks, their children
        os.kill(pid_of(victim, run, process.pid), signal.SIGKILL)
        process.wait(30)
        process.communicate()
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
