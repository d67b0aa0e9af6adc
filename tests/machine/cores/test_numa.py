"""Ranks and the NUMA nodes of their GPUs: the plan from sysfs, and what a process makes of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.rank_environment import rank_environment
from machine.cores import binding, numa
from machine.cores.binding import (
    DEFAULT,
    INTERLEAVE,
    NUMA_VARIABLE,
    PREFERRED,
    cores_text,
    memory_policy,
    parse_cores,
)
from machine.cores.numa import Bindings, bind_ranks, pci_addresses, plan
from machine.gpus.devices import Gpu, Placement, installed_gpus
from rundir.config import LaunchConfig, RunConfig
from rundir.paths import RunDir
from tests import fake_drivers
from tests.running import python

GPUS = [Gpu(index, f"GPU-{index}", "NVIDIA H100", 80 << 30) for index in range(8)]
ADDRESSES = [f"0000:{index + 1:x}b:00.0" for index in range(8)]
ALL = set(range(64))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two sockets of 16 cores with two threads each, and four GPUs on each."""
    for node, listed in enumerate(("0-15,32-47", "16-31,48-63")):
        write(tmp_path / f"devices/system/node/node{node}/cpulist", f"{listed}\n")
    for core in ALL:
        siblings = tmp_path / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        write(siblings, f"{core % 32},{core % 32 + 32}\n")
    for index, address in enumerate(ADDRESSES):
        write(tmp_path / f"bus/pci/devices/{address}/numa_node", f"{index // 4}\n")
    return tmp_path


def test_ranks_share_the_physical_cores_of_their_gpus_node(sysfs: Path) -> None:
    planned = plan(GPUS, ADDRESSES, ALL, sys=sysfs)
    assert [rank.node for rank in planned.ranks] == [0] * 4 + [1] * 4
    assert planned.ranks[0].cores == (0, 1, 2, 3, 32, 33, 34, 35)
    assert planned.ranks[7].cores == (28, 29, 30, 31, 60, 61, 62, 63)
    every = [core for rank in planned.ranks for core in rank.cores]
    assert sorted(every) == sorted(ALL)  # each core once
    assert planned.fewest_cores == 8
    assert planned.value().startswith("0:0-3,32-35 0:4-7,36-39 ")
    assert planned.lines()[5] == "  rank 5: GPU 5 (0000:6b:00.0): node 1, cores 20-23,52-55"


@pytest.mark.parametrize(
    ("gpus", "allowed", "value"),
    [
        pytest.param([6, 1], ALL, "1:16-31,48-63 0:0-15,32-47", id="in the order of the ranks"),
        pytest.param([0, 1, 2], {0, 1, 2, 32, 33, 34, 50}, "0:0,32 0:1,33 0:2,34", id="usable"),
        pytest.param([0, 1, 2], ALL, "0:0-4,32-36 0:5-9,37-41 0:10-15,42-47", id="not even"),
    ],
)
def test_only_cores_that_may_be_used_are_given_out_and_all_of_them(
    sysfs: Path, gpus: list[int], allowed: set[int], value: str
) -> None:
    chosen, addresses = [GPUS[index] for index in gpus], [ADDRESSES[index] for index in gpus]
    assert plan(chosen, addresses, allowed, sys=sysfs).value() == value


@pytest.mark.parametrize(
    ("num_gpus", "allowed", "value", "why"),
    [
        (8, set(range(16)), "0:0-3 0:4-7 0:8-11 0:12-15 - - - -", "no core of its node 1 may be"),
        (4, {0, 1, 2, 32, 33, 34, 16}, "- - - -", "4 ranks share the 6 usable cores of its node 0"),
    ],
)
def test_a_rank_without_usable_cores_on_its_node_is_not_bound(
    sysfs: Path, num_gpus: int, allowed: set[int], value: str, why: str
) -> None:
    planned = plan(GPUS[:num_gpus], ADDRESSES[:num_gpus], allowed, sys=sysfs)
    assert planned.value() == value
    assert why in planned.lines()[value.split().index("-")]


def test_ranks_that_are_to_have_more_threads_than_their_share_get_the_whole_node(
    sysfs: Path,
) -> None:
    planned = plan(GPUS, ADDRESSES, ALL, num_threads=9, sys=sysfs)
    assert planned.ranks[1].cores == tuple(sorted(parse_cores("0-15,32-47")))
    assert plan(GPUS, ADDRESSES, ALL, num_threads=8, sys=sysfs).fewest_cores == 8


def test_a_gpu_of_an_unknown_node_is_not_bound_and_the_others_are(sysfs: Path) -> None:
    write(sysfs / f"bus/pci/devices/{ADDRESSES[1]}/numa_node", "-1\n")
    planned = plan(GPUS[:3], [ADDRESSES[0], ADDRESSES[1], ""], ALL, sys=sysfs)
    assert planned.value() == "0:0-15,32-47 - -"
    assert planned.lines()[1].endswith("(0000:2b:00.0): not bound: its NUMA node is unknown")
    assert "GPU 2 (PCI address unknown): not bound" in planned.lines()[2]


def test_nothing_is_bound_where_no_node_is_known(sysfs: Path) -> None:
    for address in ADDRESSES:
        write(sysfs / f"bus/pci/devices/{address}/numa_node", "-1\n")
    planned = plan(GPUS, ADDRESSES, ALL, sys=sysfs)
    assert (planned.value(), planned.fewest_cores) == ("", None)
    assert planned.lines() == ["  not bound: the kernel knows no GPU's NUMA node"]
    unknown = "ranks are not bound to NUMA nodes: the kernel knows no GPU's NUMA node"
    assert planned.complaints() == [f"airlock: {unknown}"]
    for silent in (Bindings(why_not="the machine has one NUMA node"), Bindings()):
        assert silent.complaints() == []


def test_one_node_is_the_whole_machine(tmp_path: Path) -> None:
    assert plan(GPUS, ADDRESSES, ALL, sys=tmp_path).why_not == "no NUMA nodes known"
    write(tmp_path / "devices/system/node/node0/cpulist", "0-63\n")
    write(tmp_path / "devices/system/node/node1/cpulist", "\n")  # memory alone, as of a GPU
    assert plan(GPUS, ADDRESSES, ALL, sys=tmp_path).why_not == "the machine has one NUMA node"


def test_binding_can_be_switched_off_and_is_not_for_ranks_on_cpu_or_under_numactl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bind_ranks(LaunchConfig(numa="off"), GPUS, {}).why_not == "launch.numa is off"
    assert bind_ranks(LaunchConfig(), [], {}).why_not == "the ranks are on CPU"
    inner = bind_ranks(LaunchConfig(), GPUS, {NUMA_VARIABLE: "0:0-3"})
    assert "a rank of another run" in inner.why_not
    monkeypatch.setattr(numa, "memory_policy", lambda: INTERLEAVE)
    assert "numactl" in bind_ranks(LaunchConfig(), GPUS, {}).why_not


@pytest.mark.parametrize("listed", ["0", "0-3", "0-3,8,10-11", "7,9"])
def test_lists_of_cores_are_read_and_written_as_the_kernel_does(listed: str) -> None:
    assert cores_text(parse_cores(f"{listed}\n")) == listed
    assert parse_cores("\n") == set()


def variables(bindings: Bindings, **launch: Any) -> dict[str, str]:
    config = RunConfig(profile="32b")
    config = replace(config, launch=replace(config.launch, **launch))
    placement = Placement("cuda", 8, "a test", tuple(GPUS))
    run = RunDir(Path("/runs/1"))
    environment = rank_environment(config, placement, run, {}, bindings=bindings)
    return {variable.name: variable.value for variable in environment.variables}


def test_a_bound_rank_has_no_more_threads_than_cores(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(24)))
    monkeypatch.setattr("machine.cores.cores.cpu_quota", lambda: None)
    # Four GPUs on the 16 cores of node 0, and four on the 8 of node 1 that may be used.
    planned = plan(GPUS, ADDRESSES, set(range(24)), sys=sysfs)
    assert planned.fewest_cores == 2
    set_ = variables(planned)
    assert (set_["OMP_NUM_THREADS"], set_["MAX_JOBS"]) == ("2", "2")
    assert set_[NUMA_VARIABLE] == planned.value()
    unbound = variables(Bindings(why_not="off"))
    assert (unbound["OMP_NUM_THREADS"], unbound[NUMA_VARIABLE]) == ("3", "")
    assert variables(planned, threads_per_rank=5)["OMP_NUM_THREADS"] == "5"


BIND = """
import json, os, sys
from machine.cores.binding import *
from machine.cores.cores import usable_cores
before = usable_cores().number
bound = bind_rank(os.environ, int(sys.argv[1]))
print(json.dumps([bound and bound.memory, sorted(os.sched_getaffinity(0)), memory_policy(),
                  usable_cores().number == before]))
"""


def in_a_process(program: str, *args: str, **env: str) -> list[object]:
    printed: list[object] = json.loads(python(program, *args, env=env))
    return printed


def has_memory_policies() -> bool:
    return in_a_process(POLICY) == [""]


POLICY = """
import json
from machine.cores.binding import *
print(json.dumps([set_memory_policy(PREFERRED, (0,))]))
"""


def test_a_process_binds_itself_as_planned_and_counts_all_cores_as_before() -> None:
    last = max(os.sched_getaffinity(0))
    memory, cores, policy, same = in_a_process(BIND, "1", AIRLOCK_RANK_CORES=f"- 0:{last}")
    assert (cores, same) == ([last], True)
    if has_memory_policies():
        assert (memory, policy) == ("preferred", PREFERRED)
    else:
        assert "set_mempolicy is refused" in str(memory)


@pytest.mark.parametrize("plan_", ["", "- 0:0", "0:999999 0:0"])
def test_a_process_that_is_not_to_be_bound_or_cannot_be_is_as_before(plan_: str) -> None:
    memory, cores, policy, _ = in_a_process(BIND, "0", AIRLOCK_RANK_CORES=plan_)
    assert cores == sorted(os.sched_getaffinity(0))
    assert policy in (DEFAULT, None)
    assert memory is None or "cores 999999: Invalid argument" in str(memory)


SPREAD = """
import json, os
from machine.cores import binding
from machine.cores.binding import *
calls = []
real = binding.set_memory_policy
binding.set_memory_policy = lambda mode, nodes: calls.append([mode, list(nodes)]) or real(mode, [0])
spread = spread_pages(os.environ)
pid = os.fork()
if pid == 0:
    inherited = memory_policy()
    bind_rank(os.environ, 2)
    with pages_spread(os.environ, 1) as is_spread:
        inside = memory_policy()
    print(json.dumps([spread and spread.memory, calls, inherited, inside, is_spread]))
else:
    os.waitpid(pid, 0)
"""


def test_the_zygotes_pages_are_spread_over_all_nodes_and_a_forks_are_not() -> None:
    if not has_memory_policies():
        pytest.skip("set_mempolicy is refused here")
    memory, calls, inherited, inside, is_spread = in_a_process(
        SPREAD, AIRLOCK_RANK_CORES="0:0 1:0 -"
    )
    assert (memory, inherited, inside, is_spread) == ("interleaved", INTERLEAVE, INTERLEAVE, True)
    unbound, for_all, own = [DEFAULT, []], [INTERLEAVE, [0, 1]], [PREFERRED, [1]]
    assert calls == [for_all, unbound, for_all, own]


def test_nothing_is_spread_when_all_ranks_are_on_one_node() -> None:
    memory, calls, _, _, is_spread = in_a_process(SPREAD, AIRLOCK_RANK_CORES="1:0 1:1 -")
    assert (memory, is_spread) == (None, False)
    assert calls == [[DEFAULT, []]]


# A filter as container runtimes have it: EPERM for system call `number`, anything else is allowed.
REFUSED = """
import ctypes, json, struct, sys
from machine.cores import binding
number = binding._SYSCALLS[binding.platform.machine()][0]
code = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)
))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
program, libc = Program(4, code), ctypes.CDLL(None)
done = libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0)
bound = binding.bind_rank({"AIRLOCK_RANK_CORES": "0:" + sys.argv[1]}, 0)
print(json.dumps([done, bound.cores, bound.memory]))
"""


def test_where_a_container_refuses_memory_policies_the_cores_are_bound_all_the_same() -> None:
    core = str(max(os.sched_getaffinity(0)))
    done, cores, memory = in_a_process(REFUSED, core)
    if done != 0:
        pytest.skip("no seccomp here")
    assert cores == core
    assert memory == (
        "as ever: set_mempolicy is refused: Operation not permitted; "
        "`docker run --cap-add SYS_NICE` allows it"
    )


def test_memory_policies_that_cannot_be_are_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert in_a_process(POLICY.replace("(0,)", "(1000,)"))[0] != ""  # there is no such node
    monkeypatch.setattr(binding, "_SYSCALLS", {})  # of a machine that is not known
    assert "not known on" in binding.set_memory_policy(PREFERRED, (0,))
    assert memory_policy() is None


ADDRESSED = """
import json
from machine.gpus.devices import installed_gpus
from machine.cores.numa import pci_addresses
print(json.dumps(pci_addresses(installed_gpus())))
"""


def test_gpus_are_found_in_sysfs_by_the_address_that_nvml_says(tmp_path: Path) -> None:
    env = fake_drivers.nvml(tmp_path)
    assert in_a_process(ADDRESSED, **env) == ["0000:00:00.0", "0000:01:00.0"]


@pytest.mark.gpu
def test_every_real_gpu_is_in_sysfs() -> None:
    for address in pci_addresses(installed_gpus()):
        assert (Path("/sys/bus/pci/devices") / address / "vendor").read_text().strip() == "0x10de"
