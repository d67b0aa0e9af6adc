"""The collectives rung: the ranks compute the right sums, and one that fails is named."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from machine.gpus.devices import installed_gpus
from tests.diagnosing import Ended, diagnose, outcome
from tests.launch.checks.conftest import in_namespace
from tests.running import hooked, limit_s

pytestmark = pytest.mark.runs  # starts real ranks

IN_RANK_1 = """
import torch.distributed as dist
if os.environ.get("RANK") == "1":
    {}
"""


def sabotaged(on_cpu: dict[str, str], folder: Path, does: str, *args: str) -> Ended:
    """Run the rung with rank 1 doing `does` once it has imported what it needs."""
    env = on_cpu | hooked(on_cpu, folder, "ranks.group", IN_RANK_1.format(does))
    return diagnose("collectives", *args, env=env)


def red(ended: Ended) -> list[str]:
    return [one["check"] for one in ended.summary["findings"] if not one["ok"]]


def test_ranks_add_up_exactly_and_every_pair_exchanges(on_cpu: dict[str, str]) -> None:
    ended = diagnose("collectives", env=on_cpu)
    assert ended.code == 0, ended.output
    assert ended.finding("all-reduce int64")["text"] == "exact on all ranks"
    for kind in ("float32", "bfloat16"):
        assert ended.finding(f"all-reduce {kind}")["text"] == "within rounding on all ranks"
    bandwidth = ended.finding("bandwidth")["figures"]
    # 16 MiB; with two ranks, each sends and receives that much.
    assert bandwidth["bus_bytes_per_s"] == pytest.approx(16 * 1024**2 / bandwidth["seconds"])
    assert ended.finding("pairs")["figures"]["pairs"] == ["pair 0-1"]
    assert "2 ranks over gloo, bus bandwidth" in ended.summary["line"]


@pytest.mark.parametrize(
    ("call", "stage"), [("all_reduce", "all-reduce int64"), ("send", "pair 0-1")]
)
def test_a_rank_that_is_killed_is_named_with_what_it_was_at(
    on_cpu: dict[str, str], tmp_path: Path, call: str, stage: str
) -> None:
    ended = sabotaged(on_cpu, tmp_path, f"dist.{call} = lambda *_: os.kill(os.getpid(), 9)")
    assert ended.code == 4
    assert red(ended) == [stage]
    assert f"rank 1 was killed by SIGKILL in {stage}" in ended.finding(stage)["text"]
    assert "dmesg" in ended.finding(stage)["do"]
    assert ended.finding("meet")["ok"]


@pytest.mark.long
def test_a_pair_that_hangs_is_named_with_its_stacks(on_cpu: dict[str, str], tmp_path: Path) -> None:
    does = "import time; dist.recv = lambda *_: time.sleep(3600)"
    ended = sabotaged(on_cpu, tmp_path, does, "--timeout-s", str(limit_s(6)))
    assert ended.code == 4
    text = ended.finding("pair 0-1")["text"]
    assert f"nothing has happened for {limit_s(6)} s: ranks 0, 1 are in pair 0-1" in text
    assert "collective_rank.py" in text
    assert "GLOO_SOCKET_IFNAME" in ended.finding("pair 0-1")["do"]


@pytest.mark.long
def test_a_rank_that_does_not_come_is_waited_for_by_name(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    does = "import time; module.meet = lambda *_: time.sleep(3600)"
    ended = sabotaged(on_cpu, tmp_path, does, "--timeout-s", str(limit_s(6)))
    assert ended.code == 4
    assert "in meet" in ended.finding("meet")["text"]


@pytest.mark.parametrize(
    ("call", "checks", "says"),
    [
        (
            "all_reduce",
            ["all-reduce int64", "all-reduce float32", "all-reduce bfloat16"],
            "rank 1: element 7 of the sum is",
        ),
        pytest.param(
            "recv",
            ["pair 0-1"],
            "rank 1: 1 of 1,048,576 numbers arrived changed",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_number_that_arrives_wrong_is_red(
    on_cpu: dict[str, str], tmp_path: Path, call: str, checks: list[str], says: str
) -> None:
    does = (
        f"real = dist.{call}; dist.{call} = "
        "lambda tensor, *more: (real(tensor, *more), tensor[7:8].add_(1))"
    )
    ended = sabotaged(on_cpu, tmp_path, does)
    assert ended.code == 4
    assert red(ended) == checks
    assert says in ended.finding(checks[0])["text"]


def test_a_rank_that_fails_says_why(on_cpu: dict[str, str], tmp_path: Path) -> None:
    ended = sabotaged(on_cpu, tmp_path, "dist.all_reduce = None")
    assert ended.code == 4
    assert (
        "rank 1 failed in all-reduce int64: TypeError" in ended.finding("all-reduce int64")["text"]
    )


ON_CPU_TOO = ("diagnostics.collectives", "module.DEVICES = ('cuda', 'cpu')")
BROKEN_PATH = """
import time, torch.distributed as dist
if not {mended}:
    {does}
"""
HANGS = "dist.recv = lambda *_: time.sleep(3600)"
CORRUPTS = (
    "real = dist.recv; dist.recv = lambda tensor, *more: (real(tensor, *more), tensor[7:8].add_(1))"
)


def on_broken_path(
    on_cpu: dict[str, str], folder: Path, mended: str, does: str, *args: str, **own: str
) -> Ended:
    """Run the rung where `does` happens to each rank, unless its variables are as `mended` says."""
    body = BROKEN_PATH.format(mended=mended, does=does)
    env = on_cpu | hooked(on_cpu, folder, "ranks.group", body)
    # Run as a program, the rung is __main__: imported under its name, it is found by the hook.
    hooked(on_cpu, folder, *ON_CPU_TOO)
    code = (
        "import sys; from diagnostics.collectives import main; "
        f"sys.argv[1:] = ['--json', *{list(args)!r}]; main()"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=env | own, capture_output=True, text=True, check=False)
    return outcome(done)


P2P_OFF = "os.environ.get('NCCL_P2P_DISABLE') == '1'"
SHM_OFF = "os.environ.get('NCCL_SHM_DISABLE') == '1'"


@pytest.mark.long
def test_a_pair_that_hangs_is_tried_again_and_the_variable_that_mends_it_named(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    limit = ("--timeout-s", str(limit_s(6)))
    ended = on_broken_path(on_cpu, tmp_path, P2P_OFF, HANGS, *limit)
    assert ended.code == 4, ended.output
    assert red(ended) == ["pair 0-1"]
    found = ended.finding("pair 0-1")
    assert found["text"].startswith(
        "ranks 0 and 1 do not reach each other by direct copies between GPUs (P2P); "
        "with NCCL_P2P_DISABLE=1 they do. Without: nothing has happened for"
    )
    assert found["do"].startswith("NCCL_P2P_DISABLE=1 ./start.sh tiny   # slower; better: PCIe ACS")
    assert "NCCL_SHM_DISABLE" not in ended.output


def test_numbers_that_arrive_wrong_lead_to_the_variable_too_whichever_it_is(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    ended = on_broken_path(on_cpu, tmp_path, SHM_OFF, CORRUPTS)
    assert ended.code == 4, ended.output
    found = ended.finding("pair 0-1")
    assert "by the host's shared memory; with NCCL_SHM_DISABLE=1 they do" in found["text"]
    assert "numbers arrived changed" in found["text"]
    assert found["do"].startswith("NCCL_SHM_DISABLE=1 ./start.sh tiny")


@pytest.mark.long
def test_what_no_variable_mends_says_what_was_tried_besides_what_the_user_has_set(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    ended = on_broken_path(on_cpu, tmp_path, "False", CORRUPTS, NCCL_P2P_DISABLE="1")
    assert ended.code == 4, ended.output
    text = ended.finding("pair 0-1")["text"]
    three = "NCCL_SHM_DISABLE=1, NCCL_IB_DISABLE=1, NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1: "
    assert text.startswith(f"also with {three}rank 0: 1 of")


def test_a_loopback_that_is_down_is_red(on_cpu: dict[str, str]) -> None:
    command = [sys.executable, "-P", "-m", "diagnostics.collectives", "--json"]
    command = in_namespace(f"exec {shlex.join(command)}")
    done = subprocess.run(command, env=on_cpu, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    (found,) = outcome(done).summary["findings"]
    assert found["check"] == "localhost"
    assert "ip link set lo up" in found["do"]


@pytest.mark.gpu
def test_gpus_that_hang_over_p2p_are_mended_by_the_variable(
    environ: dict[str, str], tmp_path: Path
) -> None:
    if len(installed_gpus()) < 2:
        pytest.skip("one GPU exchanges with nobody")
    body = BROKEN_PATH.format(mended=P2P_OFF, does=HANGS)
    env = environ | hooked(environ, tmp_path, "ranks.group", body)
    ended = diagnose("collectives", "--num-gpus", "2", "--timeout-s", str(limit_s(20)), env=env)
    found = ended.finding("pair 0-1")
    assert "GPUs 0 and 1 do not reach each other" in found["text"]
    assert found["do"].startswith("NCCL_P2P_DISABLE=1 ./start.sh tiny")


@pytest.mark.gpu
def test_the_gpus_here_exchange_over_nccl(environ: dict[str, str]) -> None:
    ended = diagnose("collectives", env=environ)
    assert ended.code == 0, ended.output
    assert "NCCL" in ended.summary["line"]
