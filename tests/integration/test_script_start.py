"""The start of scripts: the gate that their ranks pass, and what is imported before them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.running import User, as_options, events_of, how_started
from tests.scripts import JOIN, WARM, script


@WARM
@pytest.mark.sample
def test_ranks_pass_the_gate_in_order_and_only_then_join(user: User, start: str) -> None:
    path = script(user.folder, f"print('before')\n{JOIN}\nprint('after')\ndist.barrier()\n")
    command = ("run", "--num-gpus", "3", "--set", "launch.admit=serial")
    out = user.output_of(*command, "--set", f"launch.start={start}", path)
    run = user.run()
    held = [
        (event["kind"], event["rank"])
        for kind in ("start", "end")
        for event in events_of(run, kind, "lock.hold")
        if event["rank"] is not None
    ]
    times = {
        (kind, event["rank"]): event["mono"]
        for kind in ("start", "end")
        for event in events_of(run, kind, "lock.hold")
        if event["rank"] is not None
    }
    assert len(held) == 6
    assert sorted(times, key=lambda key: times[key]) == [
        (kind, rank) for rank in range(3) for kind in ("start", "end")
    ]
    first_join = min(event["mono"] for event in events_of(run, "start", "pg.init"))
    assert first_join > times["end", 2]
    lines = [re.sub(r" rss=.*", "", line) for line in out.splitlines() if "[Rank 1]" in line]
    waits = "[Rank 1] LOCK: waiting for exclusive access..."  # unless rank 0 has already passed
    assert [line for line in lines if line != waits] == [
        "[Rank 1] INIT: rank=1/3 local_rank=1",
        "[Rank 1] MEM:START",
        "[Rank 1] LOCK: acquired! Starting initialization...",
        "[Rank 1] MEM:POST-IMPORT",
        "[Rank 1] MEM:POST-MODEL",
        "[Rank 1] LOCK: released",
    ]
    assert out.count("before\n") == out.count("after\n") == 3


@WARM
def test_a_script_that_never_joins_runs_on_all_ranks_at_once(user: User, start: str) -> None:
    text = """
    import os, time
    from pathlib import Path
    rank = int(os.environ["RANK"])
    Path(f"here{rank}").touch()
    while not Path(f"here{1 - rank}").exists():
        time.sleep(0.1)
    """
    path = script(user.folder, text)
    command = ("run", *as_options(f"launch.start={start}", "launch.admit=serial"), path)
    out = user.output_of(*command, timeout_s=100)
    assert out.count("[Rank 0] LOCK: its memory has not grown for 10 s\n") == 1
    assert not events_of(user.run(), "start", "pg.init")


@pytest.mark.long
def test_ranks_that_meet_at_a_store_of_their_own_do_not_wait_for_each_other_at_the_gate(
    user: User,
) -> None:
    text = """
    import os, torch.distributed as dist
    from torch.distributed import init_process_group
    rank, file = int(os.environ["RANK"]), os.path.abspath("store")
    store = dist.FileStore(file, 2)
    store.set(f"here{rank}", "yes")
    store.wait([f"here{1 - rank}"])
    assert isinstance(store, dist.FileStore)
    init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.barrier()
    """
    out = user.output_of("run", script(user.folder, text), timeout_s=60)
    assert "has not grown" not in out
    assert len(events_of(user.run(), "end", "pg.init")) == 2


def test_joining_again_after_leaving_works(user: User) -> None:
    again = 'dist.destroy_process_group()\ndist.init_process_group("gloo")\ndist.barrier()\n'
    path = script(user.folder, JOIN + again)
    user.output_of("run", "--num-gpus", "1", path)
    assert len(events_of(user.run(), "end", "pg.init")) == 2
    assert len(events_of(user.run(), "end", "lock.hold", rank=0)) == 1


@WARM
def test_no_rank_hangs_whose_model_goes_after_its_group(user: User, start: str) -> None:
    # With torch's own shutdown, a rank hangs in one of 20 to 100 turns, as under torchrun.
    text = """
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
torch.set_num_threads(1)
store, rank, num_ranks = next(rendezvous("env://"))

def train(turn):
    own = dist.PrefixStore(str(turn), store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=num_ranks)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()

for turn in range(150):
    train(turn)
"""
    path = script(user.folder, text)
    user.output_of("run", "--set", f"launch.start={start}", path)


@WARM
def test_the_gate_can_be_passed_again_to_load_a_model(user: User, start: str) -> None:
    text = f"""{JOIN}
import airlock, time
for _ in range(2):
    with airlock.gate():
        print(f"load {{rank}}", flush=True)
        time.sleep(0.3)
        print(f"loaded {{rank}}", flush=True)
    dist.barrier()
"""
    path = script(user.folder, text)
    out = user.output_of("run", "--set", f"launch.start={start}", path)
    order = [line for line in out.splitlines() if line.startswith("load")]
    both = ["load 0", "loaded 0", "load 1", "loaded 1"]
    assert sorted(order) == sorted(both * 2)
    run = user.run()
    for rank in (0, 1):
        assert len(events_of(run, "mark", "mem.post_model", rank)) == 3
        assert len(events_of(run, "end", "all_loaded.wait", rank)) == 3
    holds = [
        (event["mono"], kind, event["rank"])
        for kind in ("start", "end")
        for event in events_of(run, kind, "lock.hold")
        if event["rank"] is not None
    ]
    inside = [f"{kind} {rank}" for _, kind, rank in sorted(holds)]
    assert inside == ["start 0", "end 0", "start 1", "end 1"] * 3


def test_under_plain_python_passing_the_gate_again_does_nothing(tmp_path: Path) -> None:
    program = "import airlock\nwith airlock.gate():\n    print('loaded')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "api")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "loaded\n"


@pytest.mark.long
def test_what_must_not_be_loaded_before_a_fork_makes_the_start_cold_and_is_named(
    user: User,
) -> None:
    site = user.folder / "site"
    (site / "x.dist-info").mkdir(parents=True)  # installed there, not the user's own
    (site / "threads.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    (site / "ranked.py").write_text("import os\nrank = os.environ.get('RANK')\n")
    (site / "broken.py").write_text("raise ImportError('only with a licence')\n")
    env = {"PYTHONPATH": f"{user.environ['PYTHONPATH']}:{site}"}
    guarded = "try:\n    import broken\nexcept ImportError:\n    broken = None\n"
    for module, said in (
        ("threads", "after importing threads, it has 2 threads"),
        ("ranked", "ranked asked for RANK when it was imported"),
    ):
        path = script(user.folder, f"{guarded}import {module}\n{JOIN}\n")
        out = user.output_of("run", path, env=env)
        assert "IMPORT: broken is left to the script: ImportError: only with a licence" in out
        start, reason = how_started(user.run())
        assert start == "cold"
        assert reason is not None
        assert reason.startswith(said)
        assert reason.endswith(f"--preload -{module} leaves it out")
        user.output_of("run", "--preload", f"-{module}", path, env=env)
        assert how_started(user.run()) == ("warm", None)


@pytest.mark.long
def test_variables_that_a_script_sets_are_there_when_its_libraries_load(user: User) -> None:
    site = user.folder / "site"
    (site / "x.dist-info").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (site / f"{name}.py").write_text("import os\nhome, pid = os.environ['HOME'], os.getpid()\n")
    text = """
    import os
    home = os.environ["HOME"]
    import one
    os.environ["HOME"] = "/somewhere"
    import two
    os.environ["HOME"] = "/" + os.environ["RANK"]
    import three
    shared = [module.pid != os.getpid() for module in (one, two, three)]
    print("homes", one.home == home, two.home, three.home, shared)
    """
    env = {"PYTHONPATH": f"{user.environ['PYTHONPATH']}:{site}"}
    out = user.output_of("run", script(user.folder, text), env=env)
    for rank in (0, 1):
        assert f"homes True /somewhere /{rank} [True, True, False]\n" in out
