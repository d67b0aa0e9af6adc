"""A small training on gloo and CPU that hangs, in one chosen way; it knows nothing of Airlock.

    ./start.sh tests/hanging.py skips-a-collective       # and meanwhile: ./airlock doctor
    torchrun --standalone --nproc-per-node=2 tests/hanging.py skips-a-collective

Rank 1 is the one that does something else, in most. `--help` lists the cases. Comments mark what a
verdict has to name: `# at fault` the line at which that rank is, `# waits` that of the others.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FOR_EVER_S = 3600.0
NUM_STEPS = 3


def train(num_steps: int = NUM_STEPS) -> None:
    """Train in step with the others: a sum in each step."""
    for _step in range(num_steps):
        dist.all_reduce(torch.ones(8))


def waits_for_the_other() -> None:
    """The rank that is not at fault calls one more sum, and waits."""
    dist.all_reduce(torch.ones(8))  # waits


def skips_a_collective(rank: int) -> None:
    """It skips one sum of many, and calls the barrier that follows."""
    for step in range(6):
        if not (rank == 1 and step == 4):
            dist.all_reduce(torch.ones(8))  # waits
        dist.barrier()  # at fault


def one_batch_fewer(rank: int) -> None:
    """It has 10 batches where the other has 11, and is done."""
    for _batch in range(11 - rank):
        dist.all_reduce(torch.ones(8))  # waits


def one_batch_fewer_in_an_epoch(rank: int) -> None:
    """It has 10 batches where the other has 11, and goes on to the end of the epoch."""
    for _epoch in range(2):
        for _batch in range(11 - rank):
            dist.all_reduce(torch.ones(8))  # waits
        dist.barrier()  # at fault


def different_collectives(rank: int) -> None:
    """It calls a gathering where the other calls a sum."""
    train()
    if rank == 1:
        dist.all_gather([torch.ones(8), torch.ones(8)], torch.ones(8))  # at fault
    dist.all_reduce(torch.ones(8))  # waits


def different_sizes(rank: int) -> None:
    """It brings fewer numbers to a broadcast than the other expects."""
    train()
    if rank == 1:
        dist.broadcast(torch.ones(1 << 20), src=1)  # at fault
        dist.barrier()
    else:
        dist.broadcast(torch.ones(1 << 22), src=0)  # waits
        dist.barrier()


def different_order(rank: int) -> None:
    """It calls the sums of two groups in the other order."""
    first, second = dist.new_group(), dist.new_group()
    train()
    if rank == 1:
        dist.all_reduce(torch.ones(8), group=second)  # at fault
        dist.all_reduce(torch.ones(8), group=first)
    else:
        dist.all_reduce(torch.ones(8), group=first)  # waits
        dist.all_reduce(torch.ones(8), group=second)


def barrier_of_rank_0(rank: int) -> None:
    """Rank 0 alone calls a barrier, to save a checkpoint; the other goes on training."""
    for step in range(6):
        dist.all_reduce(torch.ones(8))  # waits
        if step == 3 and rank == 0:
            dist.barrier()  # at fault


def ends_but_for_a_thread(rank: int) -> None:
    """It comes to its end, where a thread keeps its process from ending."""
    train()
    if rank == 1:
        threading.Thread(target=time.sleep, args=(FOR_EVER_S,)).start()
        return
    waits_for_the_other()


def exits_early(rank: int) -> None:
    """It has no data, and exits without an error."""
    train()
    if rank == 1:
        sys.exit(0)  # at fault
    waits_for_the_other()


def stopped(rank: int) -> None:
    """It is stopped by a signal, and never continued."""
    train()
    if rank == 1:
        time.sleep(2.5)  # at fault
        os.kill(os.getpid(), signal.SIGSTOP)  # at fault
    waits_for_the_other()


def gil_held(rank: int) -> None:
    """It waits in native code for a mutex that it holds itself, and keeps the GIL meanwhile."""
    train()
    if rank == 1:
        mutex, native = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        native.pthread_mutex_lock(mutex)
        native.pthread_mutex_lock(mutex)  # at fault
    waits_for_the_other()


def two_locks(rank: int) -> None:
    """Two of its threads take two locks in different orders."""
    train()
    if rank == 1:
        first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

        def other() -> None:
            with second:
                both.wait()
                first.acquire()  # the other thread

        threading.Thread(target=other, daemon=True).start()
        with first:
            both.wait()
            second.acquire()  # at fault
    waits_for_the_other()


class Samples(Dataset[int]):
    """Eight samples; `get` is called for each."""

    def __init__(self, get: Callable[[int], int]) -> None:
        self.get = get

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return self.get(index)


def worker_stuck(rank: int) -> None:
    """A worker of its DataLoader does not return from a sample."""

    def get(index: int) -> int:
        if rank == 1 and index == 5:
            time.sleep(FOR_EVER_S)  # at fault
        return index

    for _batch in DataLoader(Samples(get), num_workers=1):  # its main thread
        dist.all_reduce(torch.ones(8))  # waits


def worker_stopped(rank: int) -> None:
    """A worker of its DataLoader is stopped by a signal."""

    def get(index: int) -> int:
        if rank == 1 and index == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        return index

    for _batch in DataLoader(Samples(get), num_workers=1):  # at fault
        dist.all_reduce(torch.ones(8))  # waits


def worker_forked_with_a_lock(rank: int) -> None:
    """A worker was forked while a thread of the rank held a native lock, which it needs."""
    mutex, native = ctypes.create_string_buffer(64), ctypes.CDLL(None)

    def get(index: int) -> int:
        if rank == 1:
            native.pthread_mutex_lock(mutex)  # at fault
        return index

    train()
    native.pthread_mutex_lock(mutex)
    for _batch in DataLoader(Samples(get), num_workers=1):  # its main thread
        dist.all_reduce(torch.ones(8))  # waits


def queue_of_a_dead_process(rank: int) -> None:
    """It waits for an answer of a process of its own, which has been killed."""
    train()
    if rank == 1:
        answers = multiprocessing.get_context("fork").Queue()
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOR_EVER_S,))
        child.start()
        os.kill(child.pid or 0, signal.SIGKILL)
        answers.get()  # at fault
    waits_for_the_other()


def sleeps(rank: int) -> None:
    """It sleeps."""
    train()
    if rank == 1:
        time.sleep(FOR_EVER_S)  # at fault
    waits_for_the_other()


def waits_for_a_file(rank: int) -> None:
    """It waits for a file that never comes."""
    train()
    while rank == 1 and not Path("/nonexistent/ready").exists():
        time.sleep(0.2)  # at fault
    waits_for_the_other()


def python_loop(rank: int) -> None:
    """It computes in Python, for ever."""
    train()
    while rank == 1:  # at fault
        pass  # at fault
    waits_for_the_other()


def as_with_nccl(num_called: int) -> None:
    """Look like a process that uses a GPU, and whose NCCL has completed 3 of its collectives.

    A stand-in where there is none: torch built for CPU has no recorder of NCCL's.
    """
    status = {"last_enqueued_collective": num_called, "last_completed_collective": 3}
    dumped = pickle.dumps({"entries": [], "pg_status": {"0": status}})
    sys.modules["torch._C._distributed_c10d"]._dump_nccl_trace = lambda **_: dumped  # type: ignore[attr-defined]
    torch.cuda.is_initialized = lambda: True


def spins_in_the_driver() -> None:
    """Wait as `.item()` does for a GPU: in native code, without the GIL, at full speed."""
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 1 << 30)  # waits


def sleeps_beside_nccl(rank: int) -> None:
    """It sleeps, and the other waits for it in a collective of NCCL's."""
    train()
    as_with_nccl(3 if rank == 1 else 4)
    if rank == 1:
        time.sleep(FOR_EVER_S)  # at fault
    spins_in_the_driver()


def link_of_nccl_is_broken(_rank: int) -> None:
    """All ranks wait in the same collective of NCCL's, which does not end."""
    train()
    as_with_nccl(4)
    spins_in_the_driver()


def key_of_nobody(rank: int) -> None:
    """It asks the store for a key that nobody sets."""
    train()
    if rank == 1:
        dist.distributed_c10d._get_default_store().get("a/key/of/nobody")  # at fault
    waits_for_the_other()


def recv_without_send(rank: int) -> None:
    """It waits for a tensor that nobody sends."""
    train()
    if rank == 1:
        dist.recv(torch.ones(8), src=0)  # at fault
    waits_for_the_other()


def waits_for_a_program(rank: int) -> None:
    """It waits for a program that does not end."""
    train()
    if rank == 1:
        subprocess.run(["sleep", str(FOR_EVER_S)], check=True)  # at fault
    waits_for_the_other()


def group_of_one(rank: int) -> None:
    """Rank 0 alone creates another group, which all ranks must do."""
    train()
    if rank == 0:
        dist.new_group([0, 1])  # at fault
    waits_for_the_other()


def barrier_with_a_monitor(rank: int) -> None:
    """It sleeps where the other waits in a barrier that would name it, in an hour."""
    train()
    if rank == 1:
        time.sleep(FOR_EVER_S)  # at fault
    dist.monitored_barrier(timeout=timedelta(hours=1))  # waits


def never_joins(rank: int) -> None:
    """It sleeps before it joins the process group."""
    if rank == 1:
        time.sleep(FOR_EVER_S)  # at fault
    join()


def too_many_to_come(rank: int) -> None:
    """All wait for a third rank, which nobody has started."""
    dist.init_process_group("gloo", rank=rank, world_size=3)  # waits


def join() -> None:
    """Join the process group."""
    dist.init_process_group("gloo", timeout=timedelta(hours=1))  # joins


BEFORE_JOINING = (never_joins, too_many_to_come)
CASES: dict[str, Callable[[int], None]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        skips_a_collective,
        one_batch_fewer,
        one_batch_fewer_in_an_epoch,
        different_collectives,
        different_sizes,
        different_order,
        barrier_of_rank_0,
        ends_but_for_a_thread,
        exits_early,
        stopped,
        gil_held,
        two_locks,
        worker_stuck,
        worker_stopped,
        worker_forked_with_a_lock,
        queue_of_a_dead_process,
        sleeps,
        waits_for_a_file,
        python_loop,
        sleeps_beside_nccl,
        link_of_nccl_is_broken,
        key_of_nobody,
        recv_without_send,
        waits_for_a_program,
        group_of_one,
        barrier_with_a_monitor,
        *BEFORE_JOINING,
    )
}


def main() -> None:
    """Train, and hang as requested."""
    case = asked_for(CASES)
    if case not in BEFORE_JOINING:
        join()
    case(int(os.environ["RANK"]))


def asked_for(cases: dict[str, Callable[[int], None]]) -> Callable[[int], None]:
    """Return the case that the command line names; its help lists all of them."""
    texts = {name: (case.__doc__ or "").splitlines()[0] for name, case in cases.items()}
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="cases:\n" + "\n".join(f"  {name:<28} {text}" for name, text in texts.items()),
    )
    parser.add_argument("case", choices=cases, metavar="CASE")
    return cases[parser.parse_args().case]


if __name__ == "__main__":
    main()
