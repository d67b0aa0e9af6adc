"""The question for the tracer: a configuration reduced to what its memory depends on."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from launch.files.model_folder import fetched_model_folder
from machine.typed import again
from rundir.config import (
    ADAPTER_SHAPE,
    DataConfig,
    LaunchConfig,
    LimitsConfig,
    RunConfig,
    TrainConfig,
)
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.paths import ROOT
from rundir.versions import library_versions

Device = Literal["cuda", "cpu"]
_FORMAT = "1"  # of a cached answer
_TRACED = ("train", "rundir")  # packages whose code gives the answer


@dataclass(frozen=True, slots=True)
class Question:
    """One configuration to trace; those that take the same memory have the same `key`."""

    config: RunConfig
    device: Device
    key: str


def question_of(config: RunConfig, device: Device, model_folder: Path | None = None) -> Question:
    """Return the question about a resolved configuration; `launch.num_ranks` must be known.

    `model_folder` is the folder of the model, if it has been fetched. Raises UserError when the
    shape of the model cannot be known.
    """
    train, num_ranks = config.train, config.launch.num_ranks
    assert num_ranks > 0
    share = math.ceil(train.global_batch_size / num_ranks)
    at_once = min(train.micro_batch_size, share)
    accumulates = math.ceil(share / train.micro_batch_size) > 1
    # Only whether there are others matters, unless the optimizer's states are divided among them.
    counted_ranks = num_ranks if train.shard_optimizer else min(num_ranks, 2)
    folder, architecture = _shape(config, model_folder)
    packing = True if config.data.packing == "auto" else config.data.packing
    asked = RunConfig(
        profile=config.profile,
        model=replace(
            config.model,
            path=folder,
            compile=False,
            # Of numbers of blocks, none and all are traced (launch/plan/recompute.py).
            gradient_checkpointing=bool(config.model.gradient_checkpointing),
        ),
        data=DataConfig(max_seq_length=config.data.max_seq_length, packing=packing),
        train=TrainConfig(
            method=train.method,
            **{name: getattr(train, name) for name in ADAPTER_SHAPE},
            micro_batch_size=at_once,
            optimizer=train.optimizer,
            shard_optimizer=train.shard_optimizer,
            bf16_updates=_updates(config),
            global_batch_size=at_once * counted_ranks * (2 if accumulates else 1),
        ),
        launch=LaunchConfig(num_ranks=counted_ranks, device=device, needs_gpu=device == "cuda"),
        limits=LimitsConfig(),
        architecture=architecture,
    )
    return Question(asked, device, _key(asked, device))


def _updates(config: RunConfig) -> Literal["auto", "master", "stochastic", "plain"]:
    """Return the way of updating weights in bfloat16; auto where there are none."""
    updates = config.train.bf16_updates
    if config.train.method != "full" or config.model.dtype != "bfloat16":
        return "auto"
    return "master" if updates == "auto" else updates


def _shape(config: RunConfig, model_folder: Path | None) -> tuple[str, dict[str, object]]:
    """Return a folder with the model's config.json, or else its [architecture]."""
    folder = model_folder or fetched_model_folder(config)
    if folder is not None:
        return str(folder.resolve()), {}
    if config.architecture:
        return "", config.architecture
    name = config.model.path
    if not name:
        raise UserError(
            f"{config.profile} has no model: model.path is empty, and there is no [architecture]",
            do=f"{again(config.profile)} --set model.path=OWNER/NAME   # or put it there",
            code=ExitCode.PREFLIGHT,
        )
    raise UserError(
        f"the shape of {name} is not known here: it has not been fetched, and {config.profile} "
        "has no [architecture] for it",
        do=f"hf download {name} config.json   # a few kB; or --set model.path=FOLDER with a copy",
        code=ExitCode.PREFLIGHT,
    )


def _key(config: RunConfig, device: Device) -> str:
    """Return a name for the answer, made of everything that it depends on."""
    digest = hashlib.sha256()
    config = replace(config, profile="any")
    if config.model.path:
        folder = Path(config.model.path)
        try:
            for file in [folder / "config.json", *sorted(folder.glob("*.py"))]:
                digest.update(file.read_bytes() + b"\0")
        except OSError as error:
            raise UserError(
                f"cannot read the model: {error}",
                do=f"ls -lL {shlex.quote(str(folder))}",
                code=ExitCode.PREFLIGHT,
            ) from error
        config = replace(config, model=replace(config.model, path="as in config.json"))
    parts = [_FORMAT, device, config_text(config, {}), *library_versions(), _code_digest()]
    digest.update(json.dumps(parts).encode())
    return digest.hexdigest()[:32]


@functools.cache
def _code_digest() -> str:
    digest = hashlib.sha256()
    for package in _TRACED:
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
