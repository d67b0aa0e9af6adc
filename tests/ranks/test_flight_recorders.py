"""Collectives are counted from both of torch's recorders: NCCL's own, and that of all others."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ranks.flight_compat import dumped_collectives, group_counts
from tests.running import python


def recorder(*entries: str, **groups: tuple[int, int]) -> Callable[..., bytes]:
    """Return what torch has for a recorder: it dumps what it is asked for, pickled."""
    names = ("last_enqueued_collective", "last_completed_collective")
    status = {name: dict(zip(names, map(str, last), strict=True)) for name, last in groups.items()}

    def dump(*, includeStackTraces: bool, includeCollectives: bool = True) -> bytes:  # noqa: N803
        shown: dict[str, Any] = {"pg_status": status}
        if includeCollectives:
            shown["entries"] = [{"name": name, "has": includeStackTraces} for name in entries]
        return pickle.dumps(shown)

    return dump


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a module with both recorders in the place of torch's."""
    module = SimpleNamespace(
        _dump_fr_trace=recorder("gloo:barrier", **{"0": (7, 7), "1": (3, 2)}),
        _dump_nccl_trace=recorder("nccl:all_reduce", **{"0": (21, 20)}),
    )
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    return module


@pytest.mark.usefixtures("recorders")
def test_groups_of_the_same_number_in_both_recorders_are_told_apart() -> None:
    assert group_counts() == {"0": (7, 7), "1": (3, 2), "nccl:0": (21, 20)}


@pytest.mark.usefixtures("recorders")
@pytest.mark.parametrize("with_stacks", [True, False])
def test_entries_of_both_recorders_are_dumped(with_stacks: bool) -> None:
    assert dumped_collectives(with_stacks=with_stacks) == [
        {"name": "gloo:barrier", "has": with_stacks},
        {"name": "nccl:all_reduce", "has": with_stacks},
    ]


def test_a_build_without_nccl_has_one_recorder_and_a_script_without_torch_none(
    recorders: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    del recorders._dump_nccl_trace
    assert group_counts() == {"0": (7, 7), "1": (3, 2)}
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d")
    assert group_counts() == {}
    assert dumped_collectives() == []


_ONE_RANK = """
import torch, torch.distributed as dist
from ranks.flight_compat import dumped_collectives, group_counts
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(8, device="cuda"))
torch.cuda.synchronize()
called = [entry["profiling_name"] for entry in dumped_collectives(with_stacks=False)]
print(max(last[0] for name, last in group_counts().items() if name.startswith("nccl:")))
print(sum(name == "nccl:all_reduce" for name in called))
dist.destroy_process_group()
"""


@pytest.mark.gpu
def test_what_nccl_has_called_is_counted_on_a_real_gpu() -> None:
    printed = python(_ONE_RANK, env={"TORCH_FR_BUFFER_SIZE": "100"})
    assert [int(line) for line in printed.split()] == [3, 3]
