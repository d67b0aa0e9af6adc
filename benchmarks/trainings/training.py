"""Real ranks that train a model with random weights, and the memory that takes.

On CPU that is anonymous memory above the level after the imports, on a GPU what torch's allocator
has handed out.

The file is also the program of a rank: `python -m benchmarks.trainings.training RUN_DIR`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from machine.memory.process_memory import smaps_rollup
from rundir.config import RunConfig
from rundir.config_file import config_text, read_config
from rundir.events import EventWriter
from rundir.paths import ROOT, RunDir
from rundir.prepared import Loading, Prepared, write_prepared

_EVERY_S = 0.0005
_NUM_MARKS = 3  # tokens that the template adds to a prompt and its answer
# The first step has no optimizer states until its end; in the second DDP rebuilds its buckets, and
# the kernel provides memory only once it is written to.
_STEPS = 3
# Blocks above the threshold go back to the kernel when they are freed. By default glibc would raise
# it to 32 MiB and keep smaller blocks, so that memory in use could not be told from freed memory.
# MKL keeps 5 MB of its own for each kind of product that it has computed, whatever the model.
_ON_CPU = {
    "MKL_DISABLE_FAST_MM": "1",
    "MALLOC_MMAP_THRESHOLD_": str(128 * 1024),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_ON_GPU = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}  # as Airlock's ranks have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes, summed over the ranks."""

    peak_bytes: int
    held_bytes: int  # after a step: weights, states, DDP's buckets


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def prepare(config: RunConfig, folder: Path) -> RunDir:
    """Create a run folder with samples of `max_seq_length` tokens, for a model without weights.

    Each rank creates the weights in its own memory: those of a file would be the kernel's pages
    until they are written to.
    """
    from train.data.path_samples import prepare_path
    from train.data.samples import Recipe
    from train.model.make_checkpoint import make_checkpoint

    recipe = Recipe(max_seq_length=config.data.max_seq_length, with_texts=True)
    run, model, data = RunDir(folder / "run"), folder / "model", folder / "data.jsonl"
    for part in (run.path, run.events, run.control, run.checkpoints):
        part.mkdir()
    write_full_rows(data, config.data.max_seq_length, config.train.global_batch_size)
    make_checkpoint(config, model, weights=False)
    run.config.write_text(config_text(config, {}), encoding="utf-8")
    prepared = Prepared(
        model_path=str(model),
        train=prepare_path(data, model, recipe)[0],
        evaluation=None,
        resume_from=None,
        loading=Loading(load="random"),
    )
    write_prepared(run, prepared)
    return run


def write_full_rows(file: Path, num_tokens: int, num_rows: int) -> None:
    """Write samples of `num_tokens` tokens each, with the tokenizer of a model without weights."""
    prompt = "a"  # all else has a label, as the plan assumes
    answer = "b" * (num_tokens - _NUM_MARKS - len(prompt))
    row = json.dumps({"prompt": prompt, "response": answer}) + "\n"
    file.write_text(row * num_rows, encoding="utf-8")


def measure(config: RunConfig, folder: Path) -> Measured:
    """Train a few steps on the ranks that `config` asks for. Raises RuntimeError if one fails."""
    config = replace(config, train=replace(config.train, max_steps=_STEPS, epochs=1))
    run = prepare(config, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    num_ranks = config.launch.num_ranks
    on_cpu = config.launch.device == "cpu"
    env = (
        os.environ
        | (_ON_CPU if on_cpu else _ON_GPU)
        | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(num_ranks),
            "PYTHONPATH": str(ROOT),
        }
    )
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(_Rank(run, env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
            for rank in range(num_ranks)
        ]
        for rank in ranks:
            rank.wait_for_imports()
        base = sum(map(_anon_bytes, ranks))
        for rank in ranks:
            rank.begin()
        peak = sum(_peaks(ranks))
        told = [rank.told() for rank in ranks]
    held = sum(one[0] for one in told)
    if not on_cpu:
        return Measured(peak_bytes=sum(one[1] for one in told), held_bytes=held)
    return Measured(peak_bytes=peak - base, held_bytes=held - base)


class _Rank:
    """The process of one rank."""

    def __init__(self, run: RunDir, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", __name__, str(run.path)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> _Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for_imports(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "imported\n":
            raise RuntimeError("a rank ended while it imported; what it said is above")

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def told(self) -> tuple[int, int]:
        """Return its memory after the last step, and on a GPU its peak. Raises RuntimeError."""
        assert self._process.stdout is not None
        lines = self._process.stdout.read().splitlines()
        if self._process.wait() != 0 or not lines:
            raise RuntimeError("a rank failed; what it said is above")
        held, peak = map(int, lines[-1].split())
        return held, peak


def _anon_bytes(rank: _Rank) -> int:
    """Return RssAnon: Pss_Anon if nothing anonymous is shared, and readable in microseconds.

    Pss_Anon walks the page tables, which takes so long that it misses peaks shorter than 20 ms.
    Raises OSError when the process is gone, KeyError when it is about to be.
    """
    text = Path(f"/proc/{rank.pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def _peaks(ranks: list[_Rank]) -> list[int]:
    """Return the peak of each rank until the first one ends; they may be at different times."""
    peaks = [0] * len(ranks)
    while not any(rank.has_ended() for rank in ranks):
        try:
            peaks = [max(pair) for pair in zip(peaks, map(_anon_bytes, ranks), strict=True)]
        except (OSError, KeyError):  # one has just ended
            break
        time.sleep(_EVERY_S)
    return peaks


def main() -> None:
    """Import everything, wait for the signal to start, then train as an Airlock rank does."""
    import peft  # noqa: F401
    import torch
    import torch._dynamo  # the first optimizer would

    from train import worker
    from train.step import loop

    class Told(loop.Trainer):
        """Prints what is held after each step; on a GPU it saves nothing: 14B would fill a disk."""

        def update(self, lr: float) -> Any:
            result = super().update(lr)
            on_gpu = torch.cuda.is_available()
            held = torch.cuda.memory_allocated() if on_gpu else smaps_rollup("self")["Pss_Anon"]
            peak = torch.cuda.max_memory_allocated() if on_gpu else 0
            print(held, peak, flush=True)  # noqa: T201
            if on_gpu and self._step == _STEPS - 1:
                sys.exit()
            return result

    worker.Trainer = Told  # type: ignore[attr-defined]
    run = RunDir(Path(sys.argv[1]))
    config, rank = read_config(run.config), int(os.environ["RANK"])
    print("imported", flush=True)  # noqa: T201
    sys.stdin.readline()
    events = EventWriter(run.event_file(f"rank{rank}"), rank=rank)
    worker.train(config, run, worker.load(config, run, rank), events)


if __name__ == "__main__":
    main()
