"""The rungs in their order; each is a module of `diagnostics`, and can be run by itself.

Those that train do so on few examples, for a few steps.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.demo import short_training
from rundir.config import RunConfig

NUM_EXAMPLES = 100
_WARMUP_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung, a question; `timeout_s` is the limit for it, or for its longest part.

    One that `needs_device` has no answer where the profile needs a GPU and none is visible.
    """

    name: str
    asks: str
    timeout_s: float
    needs_device: bool = True

    @property
    def module(self) -> str:
        """The module name for `python -m`."""
        return f"diagnostics.{self.name}"


_FILE = Path(__file__).with_suffix(".toml")
RUNGS = tuple(Rung(**row) for row in tomllib.loads(_FILE.read_text(encoding="utf-8"))["rung"])
NAMES = tuple(rung.name for rung in RUNGS)


def rung_called(name: str) -> Rung:
    """Return the rung of that name."""
    return RUNGS[NAMES.index(name)]


def smaller(config: RunConfig, *, batch_size: int, num_steps: int) -> dict[str, str]:
    """Return the settings of a short training of the same kind on the first examples."""
    warmup_steps = min(config.train.warmup_steps, _WARMUP_STEPS)
    settings: dict[str, Any] = {
        "data.max_samples": min(config.data.max_samples or NUM_EXAMPLES, NUM_EXAMPLES),
        "data.eval_path": "",
        "data.eval_fraction": 0,
        **short_training(config, batch_size, num_steps, warmup_steps),
        "launch.max_restarts": 0,
    }
    if config.train.method != "full":
        settings["train.merge_adapters"] = False
    return {key: str(value).lower() for key, value in settings.items()}
