"""Ranks part without one of them waiting for ever."""

from __future__ import annotations

import multiprocessing
import socket
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from train.ranks import Ranks, part

NUM_GROUPS = 150  # with torch's own good-bye a rank hung in one of 20 to 100 of them


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
        del control, wrapped  # the reducer of which is the last that knows the group


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
