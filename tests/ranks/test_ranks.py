"""Ranks leave their group without any of them waiting for ever."""

from __future__ import annotations

import multiprocessing
import socket
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from ranks.group import Alone, Ranks, meet, part
from rundir.config import LaunchConfig, RunConfig
from rundir.events import EventWriter
from train.worker import plain_device

pytestmark = pytest.mark.runs  # starts groups of real ranks

NUM_GROUPS = 150  # with torch's own shutdown a rank hung in one of 20 to 100 of them


def meet_and_part(port: int, rank: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, 2, rank == 0
    )
    for i in range(NUM_GROUPS):
        dist.init_process_group("gloo", store=PrefixStore(str(i), store), rank=rank, world_size=2)
        wrapped = DistributedDataParallel(torch.nn.Linear(4, 4))
        wrapped(torch.ones(1, 4)).sum().backward()
        control = dist.group.WORLD
        assert control is not None
        part(Ranks(rank=rank, world_size=2, device=torch.device("cpu"), control=control))
        del control, wrapped  # its reducer is the last that knows the group


def test_no_rank_hangs_when_it_leaves_the_group() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=partial(meet_and_part, port, rank)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(120.0)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in both] == [0, 0]


def test_a_rank_that_nobody_placed_is_alone_and_agrees_with_itself_without_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    before = psutil.Process().net_connections()
    ranks = meet(torch.device("cpu"), EventWriter(tmp_path / "a.jsonl"), 60.0)
    assert isinstance(ranks, Alone)
    assert (ranks.rank, ranks.world_size, ranks.is_first) == (0, 1, True)
    assert ranks.sum([0.1, 3, True]) == [0.1, 3.0, 1.0]
    assert ranks.gather({"a": 1}) == [{"a": 1}]
    assert ranks.share("told") == "told"
    ranks.wait()
    assert not dist.is_initialized()
    assert psutil.Process().net_connections() == before
    part(ranks)


# The GPU of a Mac that is there is tried out: test_mps.py.
@pytest.mark.parametrize(
    ("has_mps", "device", "otherwise", "chosen"),
    [
        (True, "cpu", "cpu", "cpu"),
        (True, "auto", "cuda", "cuda"),
        (False, "auto", "cpu", "cpu"),
    ],
)
def test_a_plain_run_takes_no_macs_gpu_if_it_is_told_otherwise_or_there_is_none(
    monkeypatch: pytest.MonkeyPatch, has_mps: bool, device: str, otherwise: str, chosen: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    config = RunConfig(profile="test", launch=LaunchConfig(device=device))  # type: ignore[arg-type]
    assert plain_device(config, torch.device(otherwise)).type == chosen
