"""The peers that do the same training as Airlock: a bare DDP loop, accelerate, and the Trainer.

A program: `torchrun … peer_training.py bare|accelerate|trainer FOLDER`. Each is written as in its
own documentation, and gets what Airlock has as well: fused AdamW with the same betas, no cache, a
loss per token of the whole step, and samples in the same order.

In FOLDER/settings.json `device`, `dtype`, `model` (a folder), `adapter` (of LoRA, to begin from)
and `checkpointing` may be absent: then it is full training of FOLDER/model in float32 on CPU.
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
    """Records the end time and the loss of each step, one line per step, on rank 0.

    At the end also the peak of torch's allocator on a GPU, in a file of its own.
    """

    def __init__(self, folder: Path, name: str) -> None:
        is_first = os.environ.get("RANK", "0") == "0"
        self._file = (folder / f"{name}.steps").open("a") if is_first else None
        self._peak = folder / f"{name}.peak"

    def step(self, loss: float) -> None:
        """Record that a step has ended."""
        if self._file is not None:
            self._file.write(f"{time.monotonic()} {loss}\n")
            self._file.flush()

    def end(self) -> None:
        """Record that all steps are done."""
        if self._file is not None and torch.cuda.is_available():
            self._peak.write_text(str(torch.cuda.max_memory_allocated()), encoding="ascii")


def load(folder: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """Return (model, samples in their order, settings)."""
    settings = {"device": "cpu", "dtype": "float32", "model": str(folder / "model")}
    settings |= json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    is_gpu = settings["device"] == "cuda"
    model: Any = AutoModelForCausalLM.from_pretrained(
        settings["model"],
        dtype=getattr(torch, settings["dtype"]),
        **({"device_map": {"": 0}} if is_gpu else {}),
    )
    model.config.use_cache = False
    if settings.get("adapter"):
        from peft import PeftModel

        model.enable_input_require_grads()
        model = PeftModel.from_pretrained(model, settings["adapter"], is_trainable=True)
    samples = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    return model.train(), samples, settings


def _checkpoint(model: Any) -> None:
    """Have blocks recomputed in backward, as each library's guide does by one call."""
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    enable = getattr(plain, "activation_checkpointing_enable", None)  # transformers 5.23 and later
    (enable or plain.gradient_checkpointing_enable)({"use_reentrant": False})


def optimizer_of(model: Any, settings: dict[str, Any]) -> torch.optim.AdamW:
    """Return the same optimizer as Airlock's, with a weight decay of 0."""
    trained = [one for one in model.parameters() if one.requires_grad]
    return torch.optim.AdamW(
        trained, lr=settings["learning_rate"], betas=BETAS, weight_decay=0.0, fused=True
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
    is_gpu = settings["device"] == "cuda"
    accelerator = Accelerator(
        gradient_accumulation_steps=num_accumulated,
        cpu=not is_gpu,
        mixed_precision="bf16" if settings["dtype"] == "bfloat16" else "no",
    )
    if settings.get("checkpointing"):
        _checkpoint(model)
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
        own = torch.tensor(
            sum(int((one["labels"][:, 1:] != IGNORE).sum()) for one in waiting),
            device=accelerator.device,
        )
        count = accelerator.gather(own).sum()
        total = torch.zeros((), device=accelerator.device)
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
    told.end()
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
        use_cpu=settings["device"] == "cpu",
        bf16=settings["dtype"] == "bfloat16",
        gradient_checkpointing=bool(settings.get("checkpointing")),
        gradient_checkpointing_kwargs={"use_reentrant": False},
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
    told.end()


def main() -> None:
    """Train as the named peer, from the given folder."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    {"bare": bare, "accelerate": with_accelerate, "trainer": with_trainer}[kind](folder)
    sys.stdout.flush()
    os._exit(0)  # a gloo group may hang or abort when the interpreter tears it down


if __name__ == "__main__":
    main()
