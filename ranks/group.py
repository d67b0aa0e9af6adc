"""The ranks as a group: how they meet, and the small values they agree on."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from rundir.events import EventWriter
from rundir.pulse import Pulse

_CONTROL_TIMEOUT = timedelta(hours=6)  # rank 0 may write a large model while the others wait
_POLL_S = (0.02, 0.5)  # the first and longest wait between two polls
_POLL_SHARE = 0.03  # the interval between polls, as a share of the time waited so far
_REMIND_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank and its group. `control` is a gloo group, so saves and stops never block NCCL.

    `control` is None for a rank that is alone. `pulse` shows the launcher that this rank
    progresses; `events` are what it writes into the run folder, by default nothing.
    """

    rank: int
    world_size: int
    device: torch.device
    control: dist.ProcessGroup | None
    pulse: Pulse = field(default_factory=Pulse)
    events: EventWriter = field(default_factory=lambda: EventWriter(Path(os.devnull)))

    @property
    def is_first(self) -> bool:
        """True for rank 0, which writes everything that is written once."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Write a line for people, which begins with this rank's number."""
        self.events.emit("log", "line", text=f"[Rank {self.rank}] {text}")

    def mark(self, name: str, **fields: Any) -> None:
        """Write a mark, on rank 0 alone."""
        if self.is_first:
            self.events.emit("mark", name, **fields)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise sum over all ranks, in float64 on the host."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.control)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order, on rank 0; an empty list elsewhere."""
        gathered: list[Any] = [None] * self.world_size if self.is_first else []
        dist.gather_object(value, gathered if self.is_first else None, group=self.control)
        return gathered

    def exchange(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def share(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        shared = [value]
        dist.broadcast_object_list(shared, src=0, group=self.control)
        return shared[0]

    def wait(self) -> None:
        """Wait at a barrier of the control group."""
        dist.barrier(group=self.control)


class Alone(Ranks):
    """The rank of a plain run. It agrees with itself, so there is no group, and no port is open.

    gloo would listen on a port even in a group of one, at an address that some laptops do not have.
    """

    def __init__(self, device: torch.device, **pulse_and_events: Any) -> None:
        super().__init__(rank=0, world_size=1, device=device, control=None, **pulse_and_events)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the values themselves."""
        return [float(value) for value in values]

    def gather(self, value: Any) -> list[Any]:
        """Return a list of the value itself."""
        return [value]

    exchange = gather

    def share(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def wait(self) -> None:
        """Return at once: there is no other rank to wait for."""


def rank_device(local_rank: int) -> torch.device:
    """Return the GPU of this rank, or the CPU if none is visible (the launcher decides that)."""
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def meet(
    device: torch.device, events: EventWriter, timeout_s: float, pulse: Pulse | None = None
) -> Ranks:
    """Wait until every rank has left the gate, then form the process group (`Alone` for one rank).

    The wait has no timeout of its own: the queue at the gate may be long, and a timeout inside
    `init_process_group` would end ranks that did nothing wrong. If a rank dies, the launcher or the
    agent ends this one too. Afterwards a rank waits at most `timeout_s` for the others in a
    collective.
    """
    pulse = pulse or Pulse()
    if "RANK" not in os.environ:
        return Alone(device, pulse=pulse, events=events)
    timeout = timedelta(seconds=timeout_s)
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # One prefix per attempt: a restarted group must not read the addresses of the previous one.
    store = PrefixStore(f"airlock/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    with events.span("all_loaded.wait"):
        _wait_for_all(store, rank, world_size, events)
    place = meeting_place({"store": store, "world_size": world_size})
    with events.span("pg.init", **place):
        control = _form_group(PrefixStore("pg", store), rank, world_size, device, timeout)
    return Ranks(
        rank=rank,
        world_size=world_size,
        device=device,
        control=control,
        pulse=pulse,
        events=events,
    )


def meeting_place(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `pg.init` for `init_process_group` with these arguments, by name."""
    store = arguments.get("store")
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    method = arguments.get("init_method") or "env://"
    if store is not None:
        host = getattr(store, "host", None)
        address = f"{host}:{store.port}" if host else f"a {type(store).__name__}"
    elif method.startswith("env://"):
        address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    else:
        address = method
    world_size = arguments.get("world_size", -1)
    with suppress(KeyError, TypeError, ValueError):  # torch itself complains of such a value
        asked = int(os.environ["WORLD_SIZE"]) if world_size in (-1, None) else int(world_size)
        return {"address": address, "world_size": asked}
    return {"address": address, "world_size": None}


def _wait_for_all(store: Store, rank: int, world_size: int, events: EventWriter) -> None:
    num_loaded, began = store.add("loaded", 1), time.monotonic()
    reminded = began
    while num_loaded < world_size:
        now = time.monotonic()
        if now - reminded > _REMIND_S:
            reminded = now
            text = f"[Rank {rank}] {num_loaded} of {world_size} ranks have left the gate"
            events.emit("log", "line", text=text)
        # Ranks still at the gate need the cores.
        time.sleep(min(max(_POLL_S[0], _POLL_SHARE * (now - began)), _POLL_S[1]))
        num_loaded = store.add("loaded", 0)


def _form_group(
    store: Store, rank: int, world_size: int, device: torch.device, timeout: timedelta
) -> dist.ProcessGroup:
    """Form the process group and return the group for control messages."""
    is_cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if is_cuda else None,
    )
    control = (
        dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT) if is_cuda else dist.group.WORLD
    )
    assert control is not None
    # Check that every rank can reach every other before anything relies on it.
    dist.barrier(group=control)
    return control


def keep(group: dist.ProcessGroup) -> None:
    """Keep a group that includes gloo until this process ends; call it before destroying the group.

    The destructor of such a group joins its threads. If DDP's reducer has the last reference, it
    runs the destructor with the GIL held, while such a thread may be waiting for the GIL to release
    its last tensor: the rank then never ends. With torch 2.13 this happened in one of 20 to 100
    runs.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def part(ranks: Ranks) -> None:
    """Leave the process group together with all ranks; no collective can run afterwards."""
    if ranks.control is None:
        return
    ranks.wait()
    keep(ranks.control)
    with suppress(RuntimeError):  # all work is done and saved: a failure here changes nothing
        dist.destroy_process_group()
