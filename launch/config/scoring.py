"""The configuration of an evaluation without training: of a run, a folder or a model of the Hub."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launch.config.again import config_of
from launch.config.evaluation_sets import NAME
from launch.config.setting_values import resolve_sections
from machine.typed import ls_runs
from rundir.checkpoints import MARKER, best_checkpoint, complete_checkpoints
from rundir.config import SECTIONS, EvaluationConfig, RunConfig, ScoringConfig, Sources
from rundir.data_paths import DataPath, absolute
from rundir.errors import ExitCode, UserError
from rundir.files.reading import json_object
from rundir.paths import RunDir, find_run, shown
from rundir.prepared import read_prepared

PROFILE = "evaluate"
_DO_OF_SCRIPT = "./airlock evaluate FOLDER DATA   # with the folder of a model that it saved"
_DEFAULT_LENGTH = 2048  # tokens
Table = dict[str, dict[str, Any]]


def scoring_config(
    model: str, settings: Sequence[str], environ: Mapping[str, str]
) -> tuple[RunConfig, Sources]:
    """Return the configuration that evaluates `model`, still without sets, with its sources.

    Raises UserError if there is no such model.
    """
    table, checkpoint, layer = _of_model(model)
    values, sources = resolve_sections(tuple(SECTIONS), (table, layer), settings, environ)
    # What only a training has.
    no_data = {"path": "", "eval_path": "", "eval_fraction": 0.0, "streaming": False}
    values["data"] = replace(values["data"], **no_data, max_samples=0, max_eval_samples=0)
    train = replace(
        values["train"],
        report_to="",
        evaluate=True,
        early_stop_evaluations=0,
        shard_optimizer=False,
    )
    values["model"] = replace(values["model"], compile=False, gradient_checkpointing=False)
    load = "random" if values["launch"].load == "random" else "mmap"
    start = "imports" if train.method == "qlora" or load == "random" else "warm"
    values["launch"] = replace(
        values["launch"], load=load, start=start, needs_gpu=False, max_restarts=0
    )
    values["train"] = train
    config = RunConfig(
        profile=PROFILE,
        architecture=table.get("architecture", {}),
        scoring=ScoringConfig(model=model, checkpoint=str(checkpoint or "")),
        **values,
    )
    return config, sources


def _of_model(name: str) -> tuple[Table, Path | None, str]:
    """Return the tables of a model's configuration, the checkpoint to load, and their source."""
    path = Path(name).expanduser()
    if (path / MARKER).is_file() and (path.parent.parent / "config.toml").is_file():
        run = RunDir(path.resolve().parent.parent)
        return _of_checkpoint(run, path.resolve())
    try:
        run = find_run(name)
    except ValueError as error:
        if path.is_dir():
            return _of_folder(path.resolve())
        if name == "latest" or path.is_absolute() or name.startswith("."):
            raise UserError(str(error), do=ls_runs()) from error
        return {"model": {"path": name}, "train": {"method": "full"}}, None, f"the model {name}"
    return _of_run(run)


def _of_run(run: RunDir) -> tuple[Table, Path | None, str]:
    """Return what `_of_model` does, for the model that a run has exported, or would."""
    config = config_of(run, do=_DO_OF_SCRIPT)
    if run.model.is_dir():
        table = _table(config, path=str(run.model), method="full", adapter="")
        return table, None, f"run {run.run_id}"
    if run.adapter.is_dir():
        base = _base_of(run)
        method = config.train.method
        table = _table(config, path=base, method=method, adapter=str(run.adapter))
        return table, None, f"run {run.run_id}"
    checkpoint = best_checkpoint(run.checkpoints) if config.train.export == "best" else None
    checkpoint = checkpoint or next(iter(complete_checkpoints(run.checkpoints)[::-1]), None)
    if checkpoint is None:
        raise UserError(
            f"{run.run_id} has exported no model, and has no whole checkpoint",
            do=f"./airlock doctor {shlex.quote(shown(run.path))}",
        )
    return _of_checkpoint(run, checkpoint)


def _of_checkpoint(run: RunDir, checkpoint: Path) -> tuple[Table, Path | None, str]:
    config = config_of(run, do=_DO_OF_SCRIPT)
    train = config.train
    table = _table(config, path=_base_of(run), method=train.method, adapter=train.adapter)
    return table, checkpoint, f"run {run.run_id}"


def _base_of(run: RunDir) -> str:
    try:
        return read_prepared(run).model_path
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{run.run_id} was not prepared: {error}", do=f"ls {shlex.quote(str(run.path))}"
        ) from error


def _table(config: RunConfig, *, path: str, method: str, adapter: str) -> Table:
    """Return the tables of a run's configuration, for another model."""
    table: Table = {name: asdict(getattr(config, name)) for name in SECTIONS}
    table["model"] |= {"path": path, "revision": ""}
    table["train"] |= {"method": method, "adapter": adapter}
    table["launch"]["num_ranks"] = 0
    template = table["data"]["chat_template"]
    if template and not Path(template).is_file():  # the exported model has it
        table["data"]["chat_template"] = ""
    return table


def _of_folder(folder: Path) -> tuple[Table, Path | None, str]:
    """Return what `_of_model` does, for a folder with a model, or with adapters."""
    layer = f"the folder {folder}"
    adapters = json_object(folder / "adapter_config.json")
    if adapters:
        base = str(adapters.get("base_model_name_or_path") or "")
        if not base:
            raise UserError(
                f"{folder}/adapter_config.json does not say which model the adapters are for",
                do="write its folder or Hugging Face id into base_model_name_or_path there",
                code=ExitCode.PREFLIGHT,
            )
        train = {"method": "lora", "adapter": str(folder)}
        return {"model": _described(Path(base)) | {"path": base}, "train": train}, None, layer
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} holds neither a run, a model nor adapters",
            do="./airlock evaluate RUN|FOLDER|OWNER/NAME DATA",
        )
    described = _described(folder)
    length = json_object(folder / "config.json").get("max_position_embeddings")
    data = {"max_seq_length": min(length, _DEFAULT_LENGTH)} if isinstance(length, int) else {}
    model = described | {"path": str(folder)}
    return {"model": model, "data": data, "train": {"method": "full"}}, None, layer


def _described(folder: Path) -> dict[str, Any]:
    """Return model.dtype as a model's folder has it, if we can."""
    described = json_object(folder / "config.json")
    dtype = described.get("dtype") or described.get("torch_dtype")
    return {"dtype": dtype} if dtype in ("float32", "bfloat16") else {}


def named_sets(data: Sequence[str], columns: str, max_samples: int) -> dict[str, EvaluationConfig]:
    """Return the sets of DATA…, each PATH or NAME=PATH. Raises UserError for two of a name."""
    sets: dict[str, EvaluationConfig] = {}
    for text in data:
        name, equals, path = text.partition("=")
        if not equals or not re.fullmatch(NAME, name) or Path(text).exists():
            path = text
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(text.removeprefix("hf:")).stem).strip("-")
            name = name[:40] or "data"
        path = path if DataPath(path).is_of_hub else absolute(path, Path.cwd())
        if name in sets:
            raise UserError(
                f"two sets are called {name}: {sets[name].path} and {path}",
                do=f"./airlock evaluate MODEL {name}={shlex.quote(sets[name].path)} "
                f"{name}-2={shlex.quote(path)}",
            )
        sets[name] = EvaluationConfig(path=path, columns=columns, max_samples=max_samples)
    return sets
