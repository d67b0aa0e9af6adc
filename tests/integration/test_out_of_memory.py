"""Whole runs in a small memory cgroup: the guard, the kernel, and a limit on address space."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.starts.memory_cgroup import MemoryCgroup
from rundir.events import Event
from rundir.paths import RunDir
from rundir.units import GIB
from tests.cgroup_limits import limited
from tests.running import COLD, ENDLESS, SHORT, User, assert_nothing_left, events_of

NO_GUARD = ("--set", "limits.guard_gib=0")

# Rank 1, or the zygote that builds for it, takes more and more memory before it does its work.
GROWING = """
real = {name}
def growing(*args):
    held = []
    while os.environ.get("RANK", "1") == "1":
        held.append(b"x" * (8 << 20))
    return real(*args)
{name} = growing
"""
IN_TRAINING = ("train.step.loop", GROWING.format(name="module.Trainer.train"))
IN_LOADING = ("train.model.build", GROWING.format(name="module.load_model"))
IN_PREPARING = ("train.data.tokenise", GROWING.format(name="module.Tokeniser._written"))
# More than the limit that follows from the group, less than the kernel would let a process map.
RUNAWAY = """
real = module.Trainer.train
def runaway(self):
    if os.environ["RANK"] == "1":
        bytearray(14 << 30)
    return real(self)
module.Trainer.train = runaway
"""


def run_in(
    cgroup: MemoryCgroup, user: User, hook: tuple[str, str], *args: str
) -> tuple[int, str, str]:
    """Run it in the group, with its processes hooked: (exit code, stdout, stderr)."""
    return user.finish(*args, timeout_s=120, env=user.hooked(*hook), within=cgroup.command([]))


def guard_event(run: RunDir) -> Event:
    """Return the event of the first process that the guard has ended."""
    return events_of(run, "error", "memory.guard")[0]


@pytest.mark.parametrize(
    ("hook", "args", "who", "phase"),
    [
        (IN_TRAINING, (), "rank 1", "training"),
        (IN_LOADING, (), "the zygote", "loading"),
        pytest.param(IN_LOADING, COLD, "rank 1", "loading", marks=pytest.mark.long),
    ],
)
def test_whatever_takes_all_memory_is_ended_and_named_before_the_kernel_acts(
    user: User,
    hook: tuple[str, str],
    args: tuple[str, ...],
    who: str,
    phase: str,
) -> None:
    with limited(2 * GIB) as cgroup:
        code, out, err = run_in(cgroup, user, hook, *ENDLESS, *args)
        assert cgroup.group.num_oom_kills() == 0
        assert (code, cgroup.pids()) == (11, []), err
    run = user.run()
    assert f"the run failed: {who} ended by the memory guard while {phase}" in out
    assert f"left of {2048:,} MiB\n  of the cgroup {cgroup.group.folder}\n" in out
    event = guard_event(run)
    assert (event["who"], event["phase"], event["limit_bytes"]) == (who, phase, 2 * GIB)
    assert event["held_bytes"] > GIB
    assert_nothing_left(run)


def test_a_process_that_takes_all_memory_while_it_prepares_is_ended_too(user: User) -> None:
    data = user.folder / "own.jsonl"  # not tokenised yet
    data.write_text(json.dumps({"prompt": "a", "response": str(user.folder)}) + "\n")
    with limited(GIB) as cgroup:
        own = (*ENDLESS, "--data", str(data))
        code, _, err = run_in(cgroup, user, IN_PREPARING, *own)
        assert (code, cgroup.group.num_oom_kills()) == (11, 0), err
    assert "ended by the memory guard while preparing" in err
    assert guard_event(user.run())["failed_rank"] is None


def test_without_the_guard_the_kernels_kill_is_proven(user: User) -> None:
    with limited(2 * GIB) as cgroup:
        code, out, err = run_in(cgroup, user, IN_TRAINING, *ENDLESS, *NO_GUARD)
        # Where the first one takes its time to end, the kernel kills another.
        assert cgroup.group.num_oom_kills() in (1, 2)
        assert code == 11, err
    assert "rank 1 killed by the kernel's OOM killer" in out
    assert re.search("its oom_kill count rose by [12]", out)
    assert str(cgroup.group.folder) in out
    assert_nothing_left(user.run())


@pytest.mark.long
def test_a_restart_after_the_guard_says_why_and_meets_the_same_wall(user: User) -> None:
    with limited(2 * GIB) as cgroup:
        more = ("--max-restarts", "1")
        code, out, _ = run_in(cgroup, user, IN_TRAINING, *ENDLESS, *more)
        assert (code, cgroup.group.num_oom_kills()) == (11, 0)
    assert re.search(r"airlock: rank 1 ended by the memory guard .*: restart 1 of 1", out)
    assert "restarted before: rank 1 ended by the memory guard" in out
    assert len(events_of(user.run(), "error", "memory.guard")) >= 2


def test_an_allocation_gone_wild_is_an_exception_in_its_rank(user: User) -> None:
    with limited(2 * GIB) as cgroup:
        hook = ("train.step.loop", RUNAWAY)
        code, out, err = run_in(cgroup, user, hook, *SHORT)
    assert code == 11, err
    assert "rank 1 raised MemoryError" in out
    assert "in runaway" in out  # the traceback
    assert "RLIMIT_AS of this process is" in out
    run = user.run()
    (limit,) = [
        one
        for one in json.loads(run.environment.read_text())["variables"]
        if one["name"] == "AIRLOCK_RLIMIT_AS_BYTES"
    ]
    assert "in use, all of the cgroup" in limit["reason"]
    applied = [event["rlimit_as_bytes"] for event in events_of(run, "mark", "limits")]
    assert applied == [int(limit["value"])] * 2
    marks = events_of(run, "mark", "mem.post_model")
    assert marks
    assert all(mark["vms_bytes"] < applied[0] / 2 for mark in marks)


def test_a_limit_that_no_rank_can_start_with_is_refused_before_any_is_started(user: User) -> None:
    err = user.error_of(*SHORT, code=4, env={"AIRLOCK_RLIMIT_AS_GIB": "1"})
    assert "no rank starts with 1.00 GiB" in err
    assert "AIRLOCK_RLIMIT_AS_GIB=2" in err
    assert not events_of(user.run(), "start", "spawn")
