"""Which ways of starting, loading and training go together, and what the zygote does in each."""

from __future__ import annotations

from dataclasses import dataclass

from rundir.config import RunConfig


@dataclass(frozen=True, slots=True)
class ZygoteWork:
    """What is done once, before the ranks are forked, and so what a rank is left to do."""

    imports: bool
    builds_model: bool
    rank_does: str


_FORKED = ZygoteWork(True, True, "moves the model to its device; on CPU the weights stay shared")
_LOADS = ZygoteWork(True, False, "reads the model, one rank at a time")
_ALONE = ZygoteWork(False, False, "imports and reads the model, one rank at a time")

# (launch.start, how weights are read, train.method). A combination that is not here is not valid.
STARTS: dict[tuple[str, str, str], ZygoteWork] = {
    ("warm", "mmap", "full"): _FORKED,
    ("warm", "mmap", "lora"): _FORKED,
    ("imports", "mmap", "full"): _LOADS,
    ("imports", "mmap", "lora"): _LOADS,
    ("cold", "mmap", "full"): _ALONE,
    ("cold", "mmap", "lora"): _ALONE,
}


def zygote_work(config: RunConfig) -> ZygoteWork:
    """The row of the table for this run."""
    return STARTS[config.launch.start, "mmap", config.train.method]
