"""The peers that do the same training as Airlock: a bare DDP loop, accelerate, and the Trainer.

A program: `torchrun … peer_training.py bare|accelerate|trainer FOLDER`. Each is written as in its
own documentation, and gets what Airlock has as well: fused AdamW with the same betas, no cache, a
loss per token of the whole step, and samples in the same order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

BETAS = (0.9, 0.95)
IGNORE = -100


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad on the right to the longest, with the mask that the libraries' own collators make."""
    length = max(len(sample["input_ids"]) for sample in samples)
    batch: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "attention_mask": []}
    for sample in samples:
        ids, num_prompt = sample["input_ids"], sample["num_prompt"]
        left = length - len(ids)
        batch["input_ids"].append(ids + [0] * left)
        batch["labels"].append([IGNORE] * num_prompt + ids[num_prompt:] + [IGNORE] * left)
        batch["attention_mask"].append([1] * len(ids) + [0] * left)
    return {key: torch.tensor(rows) for key, rows in batch.items()}


class Told:
    """Records the end time and the loss of each step, one line per step, on rank 0."""

    def __init__(self, folder: Path, name: str) -> None:
        is_first = os.environ.get("RANK", "0") == "0"
        self._file = (folder / f"{name}.steps").open("a") if is_first else None

    def step(self, loss: float) -> None:
        """Record that a step has ended."""
        if self._file is not None:
            self._file.write(f"{time.monotonic()} {loss}\n")
            self._file.flush()


def load(folder: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """Return (model, samples in their order, settings)."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model.config.use_cache = False
    samples = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    return model.train(), samples, json.loads((folder / "settings.json").read_text("utf-8"))


def optimizer_of(model: Any, settings: dict[str, Any]) -> torch.optim.AdamW:
    """Return the same optimizer as Airlock's, with a weight decay of 0."""
    return torch.optim.AdamW(
        model.parameters(), lr=settings["learning_rate"], betas=BETAS, weight_decay=0.0, fused=True
    )


def schedule_of(optimizer: Any, settings: dict[str, Any]) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a linear warm-up, then a constant rate, counting warm-up steps as Airlock does."""
    warmup = settings["warmup_steps"]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))


def bare(folder: Path) -> None:
    """Train like PyTorch's own tutorial, with accumulation and a loss per token of the step."""
    model, samples, settings = load(folder)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = optimizer_of(wrapped, settings)
    schedule = schedule_of(optimizer, settings)
    sampler: Any = DistributedSampler(samples, shuffle=False)  # type: ignore[arg-type]
    loader: Any = DataLoader(
        samples,  # type: ignore[arg-type]
        batch_size=settings["micro_batch"],
        sampler=sampler,
        collate_fn=collate,
    )
    num_accumulated = settings["global_batch"] // (settings["micro_batch"] * world)
    told, waiting = Told(folder, "bare"), []
    for batch in loader:
        waiting.append(batch)
        if len(waiting) < num_accumulated:
            continue
        count = torch.tensor(sum(int((one["labels"][:, 1:] != IGNORE).sum()) for one in waiting))
        dist.all_reduce(count)
        total = torch.zeros(())
        for i, one in enumerate(waiting):
            wrapped.require_backward_grad_sync = i == num_accumulated - 1
            loss = wrapped(**one, num_items_in_batch=count).loss
            (loss * world).backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        told.step(float(total))
        waiting = []
    dist.barrier()


def with_accelerate(folder: Path) -> None:
    """Train like accelerate's guide to gradient accumulation with samples of variable length."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    model, samples, settings = load(folder)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    num_accumulated = settings["global_batch"] // (settings["micro_batch"] * world)
    accelerator = Accelerator(gradient_accumulation_steps=num_accumulated, cpu=True)
    loader: Any = DataLoader(
        samples,  # type: ignore[arg-type]
        batch_size=settings["micro_batch"],
        collate_fn=collate,
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model, settings), loader)
    schedule = schedule_of(optimizer.optimizer, settings)
    told, batches = Told(folder, "accelerate"), iter(loader)
    for _ in range(settings["steps"]):
        waiting = [next(batches) for _ in range(num_accumulated)]
        own = torch.tensor(sum(int((one["labels"][:, 1:] != IGNORE).sum()) for one in waiting))
        count = accelerator.gather(own).sum()
        total = torch.zeros(())
        for i, one in enumerate(waiting):
            with accelerator.no_sync(model) if i < num_accumulated - 1 else torch.enable_grad():
                loss = model(**one, num_items_in_batch=count).loss
                # accelerate itself divides by the number of accumulated batches.
                accelerator.backward(loss * world * num_accumulated)
                total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        told.step(float(accelerator.reduce(total)))
    accelerator.wait_for_everyone()


def with_trainer(folder: Path) -> None:
    """Train with the Hugging Face Trainer, on samples in their order."""
    model, samples, settings = load(folder)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    told = Told(folder, "trainer")

    class Telling(Trainer):
        """A Trainer that records the end of each step; the loss it reports is that of all ranks."""

        def log(self, logs: dict[str, Any], *args: Any, **options: Any) -> None:
            if "loss" in logs:
                told.step(logs["loss"])
            super().log(logs, *args, **options)

    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=settings["steps"],
        per_device_train_batch_size=settings["micro_batch"],
        gradient_accumulation_steps=settings["global_batch"] // (settings["micro_batch"] * world),
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        use_cpu=True,
        train_sampling_strategy="sequential",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    optimizer = optimizer_of(model, settings)
    Telling(
        model=model,
        args=arguments,
        train_dataset=samples,
        data_collator=collate,
        optimizers=(optimizer, schedule_of(optimizer, settings)),
    ).train()


def main() -> None:
    """Train as the named peer, from the given folder."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    {"bare": bare, "accelerate": with_accelerate, "trainer": with_trainer}[kind](folder)
    sys.stdout.flush()
    os._exit(0)  # a gloo group may hang or abort when the interpreter tears it down


if __name__ == "__main__":
    main()
