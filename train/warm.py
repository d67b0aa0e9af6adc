"""Work done once in the zygote for all ranks (imports and the model), and repairs after a fork.

Nothing here may start a thread or touch CUDA (launch/start/rank/fork_safety.py checks this).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from machine.cores.cores import num_threads
from rundir.config import RunConfig
from rundir.paths import RunDir
from rundir.prepared import read_prepared


def imports(config: RunConfig, run: RunDir) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield (library, function that imports it) for all that a rank imports, in order."""
    yield "torch", _import_torch
    yield "transformers", lambda: _import_model_class(config, Path(read_prepared(run).model_path))
    if config.train.method != "full":
        yield "peft", _import_peft
    yield "trainer", _import_trainer


def _import_torch() -> None:
    import torch

    torch.set_num_threads(1)


def _import_model_class(config: RunConfig, model_path: Path) -> None:
    """Import transformers and the module that defines this model's class."""
    from transformers import AutoConfig

    from train.model.multimodal import known_class

    if not config.model.trust_remote_code:  # else its class need not be one of transformers' own
        known_class(AutoConfig.from_pretrained(model_path))


def _import_peft() -> None:
    from train.model.hidden_packages import without_cuda_at_import

    with without_cuda_at_import():
        import peft  # noqa: F401


def _import_trainer() -> None:
    from ranks.torch_compat import import_compiler
    from train import worker  # noqa: F401

    import_compiler()


def build(config: RunConfig, run: RunDir) -> Any:
    """Return the model on the CPU, with what the method trains, for the ranks to inherit.

    Safetensors in the model's own dtype stay mapped from their file; anything newly created
    (adapters, another dtype) is shared copy-on-write. Raises whatever loading a model raises.
    """
    import torch
    from transformers.utils import logging

    from train import worker

    logging.disable_progress_bar()  # tqdm keeps a thread for its bars
    try:
        return worker.build(config, run, torch.device("cpu"))
    finally:
        logging.enable_progress_bar()


def after_fork() -> None:
    """Repair in a rank what a fork leaves wrong; launch/start/rank/fork_safety.py saw to CUDA."""
    import torch

    torch.set_num_threads(num_threads())  # OpenMP read OMP_NUM_THREADS in the zygote
    if numpy := sys.modules.get("numpy"):  # a script may do without
        numpy.random.seed()  # the global generator, whose state all forks would share
