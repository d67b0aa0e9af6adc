"""Which ways of starting, loading and training go together, and what the zygote does in each."""

from __future__ import annotations

from dataclasses import dataclass

from rundir.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteWork:
    """What is done once, before the ranks are forked."""

    imports: bool
    builds_model: bool
    why: str


_WARM = "adapters and other new weights are shared copy-on-write; files stay mapped"
_COLD = "each rank imports and loads for itself, inside the gate"

# (launch.start, how weights are read, train.method)
STARTS: dict[tuple[str, str, str], ZygoteWork] = {
    ("warm", "mmap", "full"): ZygoteWork(imports=True, builds_model=True, why=_WARM),
    ("warm", "mmap", "lora"): ZygoteWork(imports=True, builds_model=True, why=_WARM),
    ("cold", "mmap", "full"): ZygoteWork(imports=False, builds_model=False, why=_COLD),
    ("cold", "mmap", "lora"): ZygoteWork(imports=False, builds_model=False, why=_COLD),
}


def zygote_work(config: RunConfig) -> ZygoteWork:
    """The row of the table for this run."""
    return STARTS[config.launch.start, "mmap", config.train.method]
