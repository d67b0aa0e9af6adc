"""A small training on gloo and CPU that is well, though for a while it looks as if it hung.

    ./start.sh tests/healthy.py one-evaluates       # and meanwhile: ./airlock ps, ./airlock doctor

It knows nothing of Airlock, which must not warn of it. `--help` lists the cases. HEALTHY_START_S is
the number of seconds that a rank takes to start, in the cases of a slow start.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hanging import asked_for  # type: ignore[import-not-found]  # beside this script
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

START_S = float(os.environ.get("HEALTHY_START_S", "15"))
EVALUATION_S, CHECKPOINT_S, PHASE_S, TRAINING_S = 90.0, 60.0, 120.0, 60.0
LOAD_S, LOAD_BYTES = 3.0, 12 << 20
SHORT_STEP_S, LONG_STEP_S = 3.0, 30.0
PIECE_BYTES, WHOLE_BYTES = 64 << 10, 32 << 20


def compute(seconds: float) -> None:
    """Compute on one core."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.rand(200, 200) @ torch.rand(200, 200)


def train(num_steps: int = 3) -> None:
    """Train in step with the others: a sum in each step."""
    for _step in range(num_steps):
        dist.all_reduce(torch.ones(8))


def starts_slowly(_rank: int) -> None:
    """Each rank loads for long before it joins: behind the gate, one after the other."""
    loaded = []
    for _piece in range(round(START_S / LOAD_S)):
        loaded.append(torch.ones(LOAD_BYTES // 4))  # soon enough for the gate to see that it loads
        compute(LOAD_S / 2)
        time.sleep(LOAD_S / 2)
    join()
    train()


def joins_late(rank: int) -> None:
    """The ranks join one after the other, all of them long after their start."""
    time.sleep(START_S * rank)
    compute(START_S / 2)
    time.sleep(START_S / 2)
    join()
    train()


def one_evaluates(rank: int) -> None:
    """Rank 0 alone evaluates, which computes; the others wait in a barrier."""
    train()
    if rank == 0:
        compute(EVALUATION_S)
    dist.barrier()


def one_asks_a_server(rank: int) -> None:
    """Rank 0 alone evaluates, by a server: it sleeps most of the time."""
    train()
    end = time.monotonic() + EVALUATION_S
    while rank == 0 and time.monotonic() < end:
        time.sleep(0.7)
        compute(0.002)
    dist.barrier()


def one_saves(rank: int) -> None:
    """Rank 0 alone writes a checkpoint, in pieces, to a disk that is slow."""
    train()
    with tempfile.TemporaryFile(buffering=0) as file:
        end = time.monotonic() + CHECKPOINT_S
        while rank == 0 and time.monotonic() < end:
            file.write(bytes(PIECE_BYTES))
            os.fsync(file.fileno())
            time.sleep(0.5)
    dist.barrier()


def one_saves_at_once(rank: int) -> None:
    """Rank 0 alone writes a checkpoint with one call, which takes as long."""
    train()
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "disk"
            os.mkfifo(path)
            threading.Thread(target=_take_slowly, args=(path,), daemon=True).start()
            with path.open("wb", buffering=0) as file:
                file.write(bytes(WHOLE_BYTES))
    dist.barrier()


def _take_slowly(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(int(WHOLE_BYTES / CHECKPOINT_S / 2)):
            time.sleep(0.5)


def steps_vary(rank: int) -> None:
    """Some steps are ten times as long as others, each on one rank only."""
    for step in range(12):
        compute(LONG_STEP_S if step % 6 == 2 + rank else SHORT_STEP_S)
        dist.all_reduce(torch.ones(8))


def all_sleep(_rank: int) -> None:
    """All ranks sleep alike between two phases."""
    train()
    time.sleep(PHASE_S)
    train()


class Lines(Dataset[torch.Tensor]):
    """Random tokens, which take a while to make."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.randint(256, (33,))


def _is_over(end: float) -> bool:
    """Return whether rank 0 finds that it is time to end, so that all have as many steps."""
    told = torch.tensor([time.monotonic() > end])
    dist.broadcast(told, 0)
    return bool(told.item())


def _tiny_gpt() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(256, 64),
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        torch.nn.Linear(64, 256),
    )


def _train_in_a_loop(rank: int, model: Any, num_workers: int) -> None:
    """Train as nanoGPT does: a loop, and every 50 steps rank 0 alone evaluates and saves."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = Lines()
    loader = DataLoader(
        data, 8, sampler=DistributedSampler(data), num_workers=num_workers, drop_last=True
    )
    end = time.monotonic() + TRAINING_S
    for step, tokens in enumerate(loader):
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 and rank == 0:
            compute(2)
            with tempfile.TemporaryFile() as file:
                torch.save(model.state_dict(), file)
        if _is_over(end):
            break


def trains_in_a_loop(rank: int) -> None:
    """A training loop of DDP with a DataLoader that has workers."""
    _train_in_a_loop(rank, DistributedDataParallel(_tiny_gpt()), num_workers=2)


def trains_compiled(rank: int) -> None:
    """The same with torch.compile, whose first step takes long."""
    model = torch.compile(DistributedDataParallel(_tiny_gpt()))
    _train_in_a_loop(rank, model, num_workers=0)


def trains_with_transformers(_rank: int) -> None:
    """The Trainer of transformers, with evaluations and checkpoints."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Rows(Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 256

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = torch.randint(256, (32,))
            return {"input_ids": tokens, "labels": tokens}

    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=model,
            args=TrainingArguments(
                folder,
                max_steps=1000,
                per_device_train_batch_size=4,
                eval_strategy="steps",
                eval_steps=200,
                save_steps=200,
                dataloader_num_workers=1,
                report_to="none",
                use_cpu=True,
            ),
            train_dataset=Rows(),
            eval_dataset=Rows(),
        ).train()
        dist.barrier()


def trains_with_accelerate(_rank: int) -> None:
    """A loop of accelerate, with gathered metrics and a checkpoint of the main process."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    model: Any = _tiny_gpt()
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-3)
    loader: Any = DataLoader(Lines(), 8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    end = time.monotonic() + TRAINING_S
    for tokens in loader:
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.gather_for_metrics(loss.detach().reshape(1))
        if _is_over(end):
            break
    accelerator.wait_for_everyone()
    accelerator.end_training()


def join() -> None:
    """Join the process group."""
    dist.init_process_group("gloo")


JOINS_ITSELF = (starts_slowly, joins_late, trains_with_transformers, trains_with_accelerate)
CASES: dict[str, Callable[[int], None]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        starts_slowly,
        joins_late,
        one_evaluates,
        one_asks_a_server,
        one_saves,
        one_saves_at_once,
        steps_vary,
        all_sleep,
        trains_in_a_loop,
        trains_compiled,
        trains_with_transformers,
        trains_with_accelerate,
    )
}


def main() -> None:
    """Train in the requested way."""
    case = asked_for(CASES)
    torch.set_num_threads(1)
    if case not in JOINS_ITSELF:
        join()
    case(int(os.environ["RANK"]))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
