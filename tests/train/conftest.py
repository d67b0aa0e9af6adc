"""What tests of the trainer share: a group of one rank, one thread, and warnings of libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ranks.group import Ranks

# peft asks transformers for a name that it has renamed, and detects transposed weights by itself;
# torch tells of a module of its own, and transformers of keys that small models do not need.
_OF_LIBRARIES = (
    ".*gradient_checkpointing",
    "fan_in_fan_out",
    "Unsupported layer type",
    ".*[Uu]nrecognized keys",
    ".*torch.jit:DeprecationWarning",
)


def pytest_itemcollected(item: pytest.Item) -> None:
    for warning in _OF_LIBRARIES:
        item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: with matrices this small several would only wait for each other."""
    torch: Any = sys.modules.get("torch")
    before = 0 if torch is None else torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    yield
    if before > 1:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Yield a real process group of one."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    from ranks.group import Ranks

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    control = dist.group.WORLD
    assert control is not None
    yield Ranks(rank=0, world_size=1, device=torch.device("cpu"), control=control)
    dist.destroy_process_group()
