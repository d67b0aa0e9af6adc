"""The memory of a step, as the kernel counts it: one gradient, a chunk of logits, no more.

The file is also the program that the tests start: a process of its own, where freed blocks are
returned to the kernel at once.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ranks.group import meet
from rundir.config import RunConfig
from rundir.events import EventWriter
from rundir.paths import RunDir
from train.batches.batch import Batch
from train.batches.feed import Feed
from train.model.head import _LOGITS_BYTES
from train.model.loss import SummedLoss
from train.step.loop import Trainer

pytestmark = pytest.mark.runs  # starts real steps, large ones

ROOT = Path(__file__).resolve().parents[2]
WIDTH, DEPTH = 2048, 8  # 134 MB of float32 weights, in blocks large enough to be counted
VOCABULARY, NUM_LABELS = 50_000, 4096  # 819 MB of logits
MIB = 1024 * 1024


class Layers(nn.Module):
    """A stack of matrices in place of a language model: what it computes is irrelevant."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))

    def forward(
        self, input_ids: torch.Tensor, _positions: Any, where: torch.Tensor, *_rest: Any
    ) -> torch.Tensor:
        """Return a sum that every weight contributes to."""
        hidden = input_ids.float() @ torch.ones(input_ids.shape[1], WIDTH)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden.sum() * len(where)


def held_bytes(what: str = "RssAnon") -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024


def peak_of(action: Callable[[], Any]) -> int:
    """Return the peak rise of memory above what is held while `action` runs."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = held_bytes("VmRSS")
    action()
    return held_bytes("VmHWM") - before


def steps(*, warm: bool) -> dict[str, float]:
    """Return the peaks of gradients, optimizer and warm-up over three steps of two micro-batches.

    In units of the weights. The environment says which rank this is.
    """
    events = EventWriter(Path(os.devnull))
    ranks = meet(torch.device("cpu"), events, 60.0)
    torch.set_num_threads(1)
    nn.parallel.DistributedDataParallel(nn.Linear(2, 2))  # the first one imports a good deal
    layers = Layers()
    config = RunConfig(profile="test")
    config = replace(config, train=replace(config.train, weight_decay=0.1))
    started = held_bytes()
    wrapped = nn.parallel.DistributedDataParallel(layers, gradient_as_bucket_view=True)
    samples: Any = range(8)
    trainer = Trainer(
        config=config,
        run=RunDir(Path(os.devnull)),
        ranks=ranks,
        model=wrapped,
        feed=Feed(samples, config, ranks.rank, ranks.world_size),
        evaluator=None,
    )
    ids = torch.ones((2, 8), dtype=torch.long)
    batches = [Batch(ids, ids, 16)] * 2
    before = held_bytes() - started
    in_warm_up = before + peak_of(trainer.warm_up) if warm else 0
    in_backward = in_optimizer = 0
    for step in range(3):
        holds = 2 * weights_bytes(layers) if step else 0  # the states of AdamW
        before = held_bytes() - started - holds
        peak = peak_of(lambda: trainer.gradients(batches, 1.0))
        in_backward = max(in_backward, before + peak)
        rise = peak_of(lambda: trainer.update(1e-3))
        in_optimizer = max(in_optimizer, rise - (0 if step else 2 * weights_bytes(layers)))
        if not warm:
            trainer.optimizer.zero_grad()  # frees them, as loops commonly do
    return {
        "gradients": in_backward / weights_bytes(layers),
        "optimizer": in_optimizer / weights_bytes(layers),
        "warm-up": in_warm_up / weights_bytes(layers),
    }


def weights_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.randn(1, NUM_LABELS, 64))

    def forward(self, **_inputs: Any) -> tuple[torch.Tensor]:
        return (self.hidden,)


class Head(nn.Module):
    """No layers, only a head, so that the loss is all there is."""

    base_model_prefix = "model"

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(64, VOCABULARY, bias=False)
        self.lm_head.weight.requires_grad_(False)
        self.model = Hidden()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head


def loss(*, chunked: bool) -> dict[str, float]:
    """Return the peak of loss and backward, in bytes."""
    torch.set_num_threads(1)
    model, where = Head(), torch.arange(NUM_LABELS)
    ids = torch.zeros((1, NUM_LABELS), dtype=torch.long)

    def in_chunks() -> None:
        summed: torch.Tensor = SummedLoss(model)(ids, None, where, where)
        torch.autograd.backward(summed)

    def whole() -> None:
        logits = model.lm_head(model.model.hidden).flatten(0, 1).float()
        torch.autograd.backward(F.cross_entropy(logits, where, reduction="sum"))

    return {"bytes": peak_of(in_chunks if chunked else whole)}


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "steps": lambda: steps(warm=True),
    "steps without a warm-up": lambda: steps(warm=False),
    "loss": lambda: loss(chunked=True),
    "loss of whole logits": lambda: loss(chunked=False),
}


def measured(case: str, num_ranks: int = 1) -> dict[str, float]:
    """Run the case on so many real ranks; return what the last of them has found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(num_ranks),
    }
    command = [sys.executable, "-P", __file__, case]
    ranks = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(num_ranks)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * num_ranks
    found: dict[str, float] = json.loads(said[-1].splitlines()[-1])
    return found


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_gradients_take_the_memory_of_one_also_in_the_warm_up_and_the_optimizer_no_more(
    num_ranks: int,
) -> None:
    found = measured("steps", num_ranks)
    assert found["warm-up"] < 1.3  # one layer's, and buffers of gloo
    if num_ranks == 1:
        assert 0.95 < found["gradients"] < 1.2  # one layer's gradient is being computed
        assert found["optimizer"] < 0.1


@pytest.mark.long
def test_without_the_warm_up_they_take_that_of_two() -> None:
    assert measured("steps without a warm-up")["gradients"] > 1.5


@pytest.mark.long
def test_the_loss_holds_a_chunk_of_logits_and_never_all() -> None:
    found = measured("loss")["bytes"]
    assert found < 2.3 * _LOGITS_BYTES
    whole = measured("loss of whole logits")["bytes"]
    assert whole > 2 * NUM_LABELS * VOCABULARY * 4 > 2 * found


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))  # noqa: T201
