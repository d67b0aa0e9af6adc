"""Ranks of real runs on the cores that they were given; on CPU the machine's nodes are made up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from machine.cores.binding import cores_text, parse_cores
from rundir.events import Event
from rundir.paths import RunDir
from tests.running import ENDLESS, SHORT, User, events_of, hooked, rank_pids, training
from tests.scripts import WARM, script

ALLOWED = sorted(os.sched_getaffinity(0))
FIRST, LAST = ALLOWED[0], ALLOWED[-1]

# Two GPUs, each on a node with one of this machine's cores. Ranks stay on CPU.
TWO_NODES = """
import pathlib
from machine.gpus.devices import Gpu
from machine.cores.numa import plan
gpus = [Gpu(index, "GPU-0", "made up", 1 << 30) for index in (0, 1)]
addresses = ["0000:01:00.0", "0000:41:00.0"]
module.bind_ranks = lambda launch, _gpus, _environ: plan(
    gpus, addresses, os.sched_getaffinity(0), sys=pathlib.Path({sys!r}))
"""


@pytest.fixture
def two_nodes(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the launcher finds a node for each of two cores."""
    if len(ALLOWED) < 2:
        pytest.skip("one core")
    sysfs = tmp_path / "sys"
    for node, (core, address) in enumerate(((FIRST, "0000:01:00.0"), (LAST, "0000:41:00.0"))):
        files = {
            f"devices/system/node/node{node}/cpulist": str(core),
            f"bus/pci/devices/{address}/numa_node": str(node),
        }
        for name, text in files.items():
            (sysfs / name).parent.mkdir(parents=True, exist_ok=True)
            (sysfs / name).write_text(f"{text}\n")
    folder = tmp_path / "hook"
    folder.mkdir()
    return hooked(environ, folder, "launch.config.job", TWO_NODES.format(sys=str(sysfs)))


def numa_event(run: RunDir, rank: int | None) -> Event:
    (event,) = [one for one in events_of(run, "mark", "numa") if one["rank"] == rank]
    return event


@WARM
def test_ranks_run_on_the_cores_of_their_node_with_all_their_threads(
    user: User, two_nodes: dict[str, str], start: str
) -> None:
    process = user.airlock(*ENDLESS, "--set", f"launch.start={start}", env=two_nodes)
    with training(process, user.environ) as (_, run):
        for rank, pid in rank_pids(run).items():
            core = (FIRST, LAST)[rank]
            for thread in Path(f"/proc/{pid}/task").iterdir():
                assert os.sched_getaffinity(int(thread.name)) == {core}
            variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
            if start == "cold":  # a fork keeps the zygote's as it began
                assert "OMP_NUM_THREADS=1" in variables
            event = numa_event(run, rank)
            assert (event["numa_node"], event["cores"]) == (rank, str(core))
        if start == "warm":
            spread = numa_event(run, None)
            assert (spread["numa_node"], spread["cores"]) == (None, "")
            assert spread["memory"] == "interleaved" or "is refused" in spread["memory"]
    told = json.loads(run.environment.read_text())["variables"]
    (plan,) = [one for one in told if one["name"] == "AIRLOCK_RANK_CORES"]
    assert plan["value"] == f"0:{FIRST} 1:{LAST}"
    assert f"NUMA: node=0 cores={FIRST} memory: " in run.rank_log(0, 0).read_text()


def test_a_run_says_which_rank_it_cannot_bind(user: User, two_nodes: dict[str, str]) -> None:
    (user.folder / "sys/bus/pci/devices/0000:41:00.0/numa_node").write_text("-1\n")
    path = script(user.folder, "pass")
    out = user.output_of("run", path, env=two_nodes)
    assert "airlock: rank 1: GPU 1 (0000:41:00.0): not bound: its NUMA node is unknown" in out
    assert "airlock: rank 0" not in out


@WARM
def test_a_script_is_bound_too_and_may_bind_itself(
    user: User, two_nodes: dict[str, str], start: str
) -> None:
    path = script(
        user.folder,
        """
        import os
        before = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, range(os.cpu_count()))
        print(os.environ["RANK"], before, len(os.sched_getaffinity(0)))
        """,
    )
    out = user.output_of("run", "--set", f"launch.start={start}", path, env=two_nodes)
    assert f"0 [{FIRST}] {len(ALLOWED)}" in out
    assert f"1 [{LAST}] {len(ALLOWED)}" in out


def test_a_dry_run_shows_each_ranks_gpu_node_and_cores(
    user: User, two_nodes: dict[str, str]
) -> None:
    out = user.output_of("run", "tiny", "--dry-run", env=two_nodes)
    assert f"  rank 1: GPU 1 (0000:41:00.0): node 1, cores {LAST}\n" in out
    assert f"AIRLOCK_RANK_CORES=0:{FIRST} 1:{LAST}" in out


def test_on_cpu_nothing_is_bound_and_a_dry_run_says_so(user: User) -> None:
    out = user.output_of("run", "tiny", "--dry-run")
    assert "cores of the ranks (NUMA):\n  not bound: the ranks are on CPU\n" in out
    assert "AIRLOCK_RANK_CORES" not in out


@pytest.mark.gpu
def test_on_a_real_gpu_a_rank_runs_on_its_gpus_node(user: User) -> None:
    user.output_of(*SHORT, "--num-gpus", "1")
    run = user.run()
    told = json.loads(run.environment.read_text())["variables"]
    (plan,) = [one for one in told if one["name"] == "AIRLOCK_RANK_CORES"]
    if plan["value"] in ("", "-"):
        assert plan["reason"]
        assert not events_of(run, "mark", "numa")
        return
    node = numa_event(run, 0)["numa_node"]
    listed = Path(f"/sys/devices/system/node/node{node}/cpulist").read_text()
    cores = parse_cores(numa_event(run, 0)["cores"])
    assert cores <= parse_cores(listed), cores_text(cores)
