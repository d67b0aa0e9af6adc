"""What is kept when a GPU runs out of memory: torch's snapshot, and the largest allocations."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks.gpu_memory import report_out_of_memory, summary
from ranks.torch_compat import note_allocations
from rundir.paths import RunDir

MIB = 1 << 20
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/functional.py"


def block(size_mib: float, *lines: tuple[str, int, str], state: str = "active_allocated") -> Any:
    """Return a block as torch.cuda.memory._snapshot() documents it."""
    frames = [{"filename": file, "line": line, "name": name} for file, line, name in lines]
    size = int(size_mib * MIB)
    return {"size": size, "requested_size": size, "address": 0, "state": state, "frames": frames}


def snapshot(*blocks: Any) -> dict[str, Any]:
    total = sum(one["size"] for one in blocks)
    return {"segments": [{"total_size": total, "blocks": list(blocks)}], "device_traces": [[]]}


def test_the_largest_come_first_with_their_lines_and_those_alike_in_one_row() -> None:
    weight = block(64, ("/clone/train/model/loading.py", 40, "load_model"))
    deep = [(TORCH, 100 + i, f"torch{i}") for i in range(5)]
    logits = block(900, *deep, ("/clone/train/model/loss.py", 77, "forward"))
    others = [block(1 + i / 100) for i in range(20)]
    free = block(5000, state="inactive")
    lines = summary(snapshot(weight, weight, logits, free, *others)).splitlines()
    assert lines[0].startswith("torch has 6,050 MiB, and tensors hold 1,050 MiB of it, in 23 ")
    assert lines[1] == "900.0 MiB"
    assert lines[2].strip() == f"{TORCH}:100 torch0"
    assert lines[4].strip() == "/clone/train/model/loss.py:77 forward"
    assert lines[5] == "2 × 64.0 MiB"  # noqa: RUF001 - a product
    assert lines[6].strip() == "/clone/train/model/loading.py:40 load_model"
    assert sum(line.endswith("MiB") and not line.startswith(" ") for line in lines) == 10


def test_without_a_history_there_are_sizes_only() -> None:
    bare = block(8)
    del bare["frames"]
    assert "8.0 MiB\n    no line of Python" in summary(snapshot(bare))


def test_the_incident_gets_both_files_and_the_error_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    run, said = RunDir(tmp_path), list[str]()
    taken = snapshot(block(8))
    with (
        pytest.raises(torch.OutOfMemoryError, match="tried"),
        report_out_of_memory(run, said.append, lambda: taken),
    ):
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")
    file = run.incident(0) / "gpu-memory-rank3.txt"
    assert "8.0 MiB" in file.read_text()
    assert pickle.loads(file.with_suffix(".pickle").read_bytes()) == taken  # noqa: S301 - ours
    assert "gpu-memory-rank3.txt" in said[0]


def test_an_error_about_the_snapshot_never_hides_that_memory_ran_out(tmp_path: Path) -> None:
    said: list[str] = []

    def broken() -> dict[str, Any]:
        raise RuntimeError("no driver")

    with (
        pytest.raises(torch.OutOfMemoryError),
        report_out_of_memory(RunDir(tmp_path), said.append, broken),
    ):
        raise torch.OutOfMemoryError
    assert said == ["no snapshot of the GPU's memory: RuntimeError: no driver"]


def test_other_errors_leave_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(KeyError), report_out_of_memory(RunDir(tmp_path), print):
        raise KeyError
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_a_gpu_that_runs_out_of_memory_leaves_the_lines_of_its_allocations(
    tmp_path: Path,
) -> None:
    device, said = torch.device("cuda", 0), list[str]()
    note_allocations()
    kept = [torch.empty(256 * MIB, dtype=torch.uint8, device=device)]
    with (
        pytest.raises(torch.OutOfMemoryError),
        report_out_of_memory(RunDir(tmp_path), said.append),
    ):
        kept.append(torch.empty(1 << 50, dtype=torch.uint8, device=device))
    text = (RunDir(tmp_path).incident(0) / "gpu-memory-rank0.txt").read_text()
    assert "256.0 MiB" in text
    assert Path(__file__).name in text
