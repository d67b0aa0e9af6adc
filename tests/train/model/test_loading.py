"""Real ranks, real gloo: however a model gets into the ranks, it is the same model on all of them.

The file is also the program that the tests start, as in test_loop.py.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rundir.checkpoints import complete_checkpoints
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import Loading
from tests.models import GPT2, MOE, QWEN3
from tests.running import wait_for
from tests.train.groups import new_run, prepared_data, run_program, start_ranks
from tests.train.step.test_loop import configured, curve
from train import worker
from train.model.build import load_model
from train.model.loading import read_ahead
from train.model.make_checkpoint import make_checkpoint
from train.step.loop import Trainer

pytestmark = pytest.mark.runs  # starts groups of real ranks

STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Case:
    architecture: dict[str, Any]
    method: str = "full"
    recompute: bool = False
    saved_as: str = "float32"
    dtype: str = "float32"
    loads: tuple[str, ...] = ("mmap", "broadcast")


CASES = {
    "qwen3 tied full": Case(architecture=QWEN3, loads=("mmap", "broadcast", "random")),
    "qwen3 tied lora recomputed": Case(
        architecture=QWEN3, method="lora", recompute=True, dtype="bfloat16"
    ),
    "gpt2 full": Case(architecture=GPT2, saved_as="bfloat16"),
    "mixtral untied full": Case(architecture=MOE),
}
each_case = pytest.mark.parametrize("name", CASES)


def rank_program(run: RunDir, rank: int) -> None:
    """Run a rank of Airlock after the gate; save its state before and after DDP, and at the end."""
    os.environ["LOCAL_RANK"] = str(rank)
    config, events = read_config(run.config), EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    model = worker.load(config, run, rank)
    states: dict[str, Any] = {"devices": {p.device.type for p in model.parameters()}}
    wrap = worker.wrap

    def wrap_and_tell(model: Any, ranks: Any, **options: Any) -> Any:
        if "meta" in states["devices"]:  # empty memory may contain what it held in the parent
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data.fill_(77)
        states["before"] = state_of(model)
        wrapped = wrap(model, ranks, **options)
        states["after"] = state_of(model)
        torch.save(states, run.path / f"states{rank}.pt")
        return wrapped

    class Telling(Trainer):
        def train(self) -> Any:
            result = super().train()  # before the export, which merges adapters
            torch.save(state_of(model), run.path / f"trained{rank}.pt")
            torch.save(torch.rand(4), run.path / f"random{rank}.pt")
            return result

    worker.wrap, worker.Trainer = wrap_and_tell, Telling  # type: ignore[attr-defined]
    worker.train(config, run, model, events)


def state_of(model: Any) -> dict[str, tuple[torch.Tensor, bool, str]]:
    """Return every parameter and buffer, whether it is trained, and the first it is tied to."""
    keys: dict[int, str] = {}
    return {
        name: (one.detach().clone(), one.requires_grad, keys.setdefault(id(one), name))
        for named in (model.named_parameters, model.named_buffers)
        for name, one in named(remove_duplicate=False)
    }


def case_config(folder: Path, case: Case) -> RunConfig:
    config = configured(folder)
    return replace(
        config,
        architecture=case.architecture,
        model=replace(
            config.model,
            dtype=case.dtype,  # type: ignore[arg-type]
            gradient_checkpointing=case.recompute,
        ),
        train=replace(
            config.train,
            method=case.method,  # type: ignore[arg-type]
            max_steps=STEPS,
            lora_rank=4,
            micro_batch_size=2,
            checkpoint_every_steps=STEPS // 2,
        ),
    )


def main(folder: Path) -> None:
    """Train each case, loaded in each of their ways; and resume from a checkpoint half-way."""
    rows = [
        {"prompt": f"{i} " + "ab" * (i % 7), "response": "xyz" * (i % 4 + 1)} for i in range(11)
    ]
    for name, case in CASES.items():
        config = case_config(folder, case)
        as_saved = replace(config.model, dtype=case.saved_as)  # type: ignore[arg-type]
        plain = prepared_data(folder, replace(config, model=as_saved), rows, f"model {name}")
        generation = folder / f"model {name}" / "generation_config.json"
        generation.write_text('{"repetition_penalty": 1.5}')
        for load in case.loads:
            loading = Loading(load=load)  # type: ignore[arg-type]
            run = new_run(folder, f"{name} {load}", config, replace(plain, loading=loading))
            start_ranks(rank_program, run, 2)
            half_way = replace(
                plain, loading=loading, resume_from=str(complete_checkpoints(run.checkpoints)[0])
            )
            if load == "broadcast":
                start_ranks(rank_program, new_run(folder, f"{name} resumed", config, half_way), 2)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the cases have run."""
    return run_program(__file__, tmp_path_factory.mktemp("loading"))


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, (tensor, is_trained, tied_to) in one.items():
        assert (is_trained, tied_to) == other[name][1:], name
        assert tensor.dtype == other[name][0].dtype, name
        assert torch.equal(tensor, other[name][0]), name


@each_case
def test_what_rank_0_sends_is_to_the_last_bit_what_every_rank_would_have_mapped(
    done: Path, name: str
) -> None:
    mapped = loaded(done / f"{name} mmap" / "states0.pt")["after"]
    assert any("inv_freq" in key for key in mapped) or "gpt2" in name  # they include buffers
    for rank in (0, 1):
        states = loaded(done / f"{name} broadcast" / f"states{rank}.pt")
        assert states["devices"] == {"cpu" if rank == 0 else "meta"}
        assert_same(states["after"], mapped)


@each_case
def test_twenty_steps_are_to_the_last_bit_the_same_however_the_model_was_loaded(
    done: Path, name: str
) -> None:
    mapped = done / f"{name} mmap"
    assert len(curve(mapped)) == STEPS
    for load in CASES[name].loads[1:]:
        run = done / f"{name} {load}"
        assert curve(run) == curve(mapped)
        for rank in (0, 1):
            assert_same(loaded(run / f"trained{rank}.pt"), loaded(mapped / "trained0.pt"))


@each_case
def test_a_run_that_goes_on_from_a_checkpoint_goes_on_as_it_would_have(
    done: Path, name: str
) -> None:
    run = done / f"{name} resumed"
    assert curve(run) == curve(done / f"{name} mmap")[STEPS // 2 :]
    for rank in (0, 1):
        assert_same(
            loaded(run / f"trained{rank}.pt"), loaded(done / f"{name} mmap" / "trained0.pt")
        )


@each_case
def test_ranks_without_the_files_generate_answers_as_the_others_do(done: Path, name: str) -> None:
    def answers(load: str) -> list[str]:
        folder = done / f"{name} {load}" / "evolution"
        return [
            path.read_text().partition('"examples"')[2]
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]

    assert len(answers("mmap")) == 3  # before, after 10 steps, and after the last
    assert answers("broadcast") == answers("mmap")


def test_random_weights_are_those_that_a_checkpoint_of_this_seed_is_made_with(done: Path) -> None:
    name = "qwen3 tied full"
    mapped = loaded(done / f"{name} mmap" / "states0.pt")["after"]
    for rank in (0, 1):
        states = loaded(done / f"{name} random" / f"states{rank}.pt")
        assert_same(states["before"], mapped)  # made by each rank itself


def test_ranks_draw_dropout_of_their_own_and_the_same_however_the_model_was_loaded(
    done: Path,
) -> None:
    drawn = {
        load: [loaded(done / f"gpt2 full {load}" / f"random{rank}.pt").tolist() for rank in (0, 1)]
        for load in ("mmap", "broadcast")
    }
    assert drawn["mmap"] == drawn["broadcast"]
    assert drawn["mmap"][0] != drawn["mmap"][1]


def test_a_rank_never_unpickles_more_than_weights(tmp_path: Path) -> None:
    config, model = configured(tmp_path), tmp_path / "model"
    make_checkpoint(config, model)
    (model / "model.safetensors").unlink()
    torch.save({"model.norm.weight": RunConfig}, model / "pytorch_model.bin")
    with pytest.raises(UserError, match="more than weights"):
        load_model(config, model, torch.device("cpu"))
    torch.save({"model.norm.weight": torch.ones(32)}, model / "pytorch_model.bin")
    load_model(config, model, torch.device("cpu"))


def resident_share(file: Path) -> float:
    """Return the share of a file in the page cache, by mincore(2), which loads none of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("rb") as content:
        pages = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_COPY)
    found = (ctypes.c_ubyte * math.ceil(len(pages) / mmap.PAGESIZE))()
    address = ctypes.addressof(start := ctypes.c_char.from_buffer(pages))
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(pages)), found) == 0
    del start
    return sum(page & 1 for page in found) / len(found)


def test_files_are_in_memory_before_they_are_used_and_no_thread_is_left(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        with file.open("wb") as content:
            content.write(os.urandom(80 << 20))
            os.fsync(content.fileno())
            os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_share(files[0]) > 0.5:
        pytest.skip("this filesystem keeps its files in memory")
    threads = len(list(Path("/proc/self/task").iterdir()))
    read_ahead([str(files[0]), str(tmp_path / "not there"), str(files[1])])
    assert len(list(Path("/proc/self/task").iterdir())) == threads
    wait_for(lambda: all(resident_share(file) == 1 for file in files), why="not read", timeout_s=20)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
