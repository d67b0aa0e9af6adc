"""A short look at the ranks of a job from outside: state, CPU, I/O, sockets, and Python stacks."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from doctor.outside.running_job import RunningJob
from doctor.outside.spy import Dump, as_stack, dump, own_call
from doctor.runs.rank_stacks import Call, Stack
from machine.processes.activity import all_io_bytes, busy_s, state_of

_NUM_LOOKS, _NUM_LONG = 5, 16  # a job on GPUs may be in one call for many seconds
_EVERY_S = 0.7
_BUSY = 0.05  # of a core: less is what threads take that only wait
_BUSY_BYTES_PER_S = 64 << 10
_TORCH = re.compile(r"/torch/(distributed|nn/parallel)/")
_WRAPPERS = ("wrapper", "inner", "_wait", "wait")
_RENDEZVOUS = re.compile(r"/torch/distributed/(rendezvous\.py|elastic/rendezvous/)")
_MEETS = ("init_process_group", "_store_based_barrier", "init_distributed")
_WORKERS = re.compile(r"/torch/utils/data/dataloader\.py|/multiprocessing/(queues|connection)\.py")
_LAUNCHES = re.compile(r"/torch/distributed/elastic/agent/|/torch/multiprocessing/spawn\.py")
_SYNCHRONISES = re.compile(r"\.(item|cpu|tolist|numpy|synchronize)\(|\b(float|bool|int|print)\(")


@dataclass(slots=True, kw_only=True)
class ObservedProcess:
    """What was seen of one process of a job in `span_s` seconds."""

    rank: int
    process: psutil.Process
    letters: list[str] = field(default_factory=list)
    waits_in: str = ""  # a function of the kernel
    cpu_s: float = 0.0
    read_bytes: int = 0  # and written
    span_s: float = 0.0
    stands: bool = True  # the main thread is in the same calls at every look, as far as seen
    last: Dump = field(default_factory=Dump)
    stack: Stack | None = None
    own: Call | None = None
    connecting: tuple[str, ...] = ()  # addresses that do not answer
    on_gpu: bool = False

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    @property
    def letter(self) -> str:
        """The state it was in at every look; "" if it has changed."""
        return self.letters[0] if len(set(self.letters)) == 1 else ""

    @property
    def busy(self) -> float:
        """The share of one core that it and its children used."""
        return self.cpu_s / self.span_s if self.span_s else 0.0

    @property
    def is_gone(self) -> bool:
        """True if it has ended meanwhile."""
        return bool(self.letters) and self.letters[-1] in ("", "Z")

    @property
    def moves(self) -> bool:
        """True if it makes progress. A CPU that spins for a GPU is no sign of it."""
        if self.last.main and not self.stands:
            return True
        is_busy = self.busy > _BUSY and not (self.on_gpu and self.last.main)
        return is_busy or self.read_bytes > _BUSY_BYTES_PER_S * self.span_s

    @property
    def waits(self) -> bool:
        """True if it waits for other ranks, or for its GPU, as far as its stack tells."""
        if self.stack is None or self.in_workers or self.launches:
            return False
        return self.stack.waits or self.meets or (self.on_gpu and self._synchronises())

    @property
    def meets(self) -> bool:
        """True if it is joining the process group, where ranks wait for all others."""
        calls = self.last.main
        return any(
            _RENDEZVOUS.search(call.file) or (call.where in _MEETS and _TORCH.search(call.file))
            for call in calls
        )

    @property
    def launches(self) -> bool:
        """True if it is torchrun's agent, or a program that has started others and waits."""
        return any(_LAUNCHES.search(call.file) for call in self.last.main)

    @property
    def in_workers(self) -> bool:
        """True if it waits for a worker of its DataLoader."""
        return any(_WORKERS.search(call.file) for call in self.last.main[:6])

    @property
    def call(self) -> str:
        """The operation of torch.distributed that it is in, or "" ."""
        for call in reversed(self.last.main):
            name = call.where.rpartition(".")[2]  # of `Class.method`, `function.<locals>.inner`
            if _TORCH.search(call.file) and name not in _WRAPPERS:
                return name
        in_backward = any("/torch/autograd/graph.py" in call.file for call in self.last.main[:4])
        return "backward" if in_backward else ""

    @property
    def where(self) -> str:
        """The line it is at, or where it waits in the kernel."""
        if self.stack is not None:
            return self.stack.where
        return f"{self.waits_in} of the kernel" if self.waits_in else "an unknown place"

    @property
    def show(self) -> str:
        """A command that shows the line it is at, or else what the kernel does for it."""
        return f"sudo cat /proc/{self.pid}/stack" if self.stack is None else self.stack.show

    @property
    def source(self) -> str:
        """The text of the line of the user's code that it is at."""
        call = self.own or (self.last.main[0] if self.last.main else None)
        return linecache.getline(call.file, call.line).strip() if call else ""

    def _synchronises(self) -> bool:
        innermost = self.last.main[0] if self.last.main else None
        return innermost == self.own and bool(_SYNCHRONISES.search(self.source))

    @property
    def doing(self) -> str:
        """A clause that says what it does."""
        with_cpu = f"{self.busy:.0%} of a core"
        for holds, text in (
            (self.letter in ("T", "t"), "is stopped, at {}"),
            (self.letter == "D", "waits in the kernel, at {}"),
            (self.meets, "waits for the other ranks in init_process_group, at {}"),
            (self.waits, f"waits in {self.call or 'its GPU'}, at {{}}"),
            (self.in_workers, "waits for its DataLoader's workers, at {}"),
            (self.moves, f"moves, at {{}} ({with_cpu})"),
        ):
            if holds:
                return text.format(self.where)
        return f"stands, at {self.where} ({with_cpu}, no I/O)"


def observe(job: RunningJob) -> list[ObservedProcess]:
    """Return what is seen of each rank within three seconds; up to eleven if none of them moves."""
    seen = [ObservedProcess(rank=rank, process=process) for rank, process in job.ranks.items()]
    before = {
        seen_rank.rank: (busy_s([seen_rank.pid]), all_io_bytes([seen_rank.pid])[0])
        for seen_rank in seen
    }
    started_s = time.monotonic()
    for number in range(_NUM_LONG):
        for seen_rank in seen:
            _look_at(seen_rank)
        if number + 1 >= _NUM_LOOKS and not _may_be_long(seen):
            break
        time.sleep(_EVERY_S)
    for seen_rank in seen:
        seen_rank.span_s = time.monotonic() - started_s
        cpu_s, read = before[seen_rank.rank]
        seen_rank.cpu_s = max(0.0, busy_s([seen_rank.pid]) - cpu_s)
        seen_rank.read_bytes = max(0, all_io_bytes([seen_rank.pid])[0] - read)
        seen_rank.connecting = _connecting(seen_rank.process)
        script = _script(seen_rank.process)
        seen_rank.stack = as_stack(seen_rank.last.threads, script)
        seen_rank.own = own_call(seen_rank.last.main, script)
    return seen


def workers_of(seen: ObservedProcess) -> list[ObservedProcess]:
    """Return what is seen of the children of a rank, at one look."""
    workers = []
    with contextlib.suppress(psutil.Error):
        for number, process in enumerate(seen.process.children()):
            worker = ObservedProcess(rank=number, process=process)
            _look_at(worker)
            worker.stack = as_stack(worker.last.threads)
            worker.own = own_call(worker.last.main)
            workers.append(worker)
    return workers


def _look_at(seen: ObservedProcess) -> None:
    seen.on_gpu = seen.on_gpu or _has_gpu(seen.pid)
    letter, seen.waits_in = state_of(seen.pid)
    seen.letters.append(letter)
    new = dump(seen.pid)
    if seen.last.main and new.main != seen.last.main:
        seen.stands = False
    if new.main or not seen.last.main:
        seen.last = new


def _may_be_long(seen: Sequence[ObservedProcess]) -> bool:
    """Return whether all may be in a long step on their GPUs, of which nothing else is seen."""
    return all(seen_rank.on_gpu and seen_rank.stands for seen_rank in seen) and not any(
        seen_rank.letter in ("T", "t", "D") for seen_rank in seen
    )


def _connecting(process: psutil.Process) -> tuple[str, ...]:
    with contextlib.suppress(psutil.Error, OSError):
        connections = process.net_connections("tcp")
        tried = [
            connection.raddr
            for connection in connections
            if connection.status == psutil.CONN_SYN_SENT and connection.raddr
        ]
        return tuple(f"{address[0]}:{address[1]}" for address in tried)
    return ()


def _has_gpu(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith("/dev/nvidia"):
                    return True
    return False


def _script(process: psutil.Process) -> str:
    """Return the file that a process runs, "" if it is a module or not to be found."""
    with contextlib.suppress(psutil.Error, OSError):
        for word in process.cmdline()[1:]:
            if word.endswith(".py"):
                return os.path.realpath(Path(process.cwd(), word))
    return ""
