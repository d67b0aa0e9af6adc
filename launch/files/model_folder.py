"""Location of a model's files on this machine; no network is used."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from launch.files.checkpoint_files import read_checkpoint
from launch.files.hub_cache import is_model_id, is_offline, missing_files, repo_folder, snapshot
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from rundir.paths import ROOT, cache_folder


def check_model(config: RunConfig) -> None:
    """Raise UserError if `model.path` cannot be a model: a folder without one, or an invalid ID.

    Also raised if local weights that are to be read are damaged, and if files are missing and may
    not be fetched.
    """
    path = Path(config.model.path)
    weights = config.launch.load != "random"
    if not config.model.path:
        if not config.architecture:
            raise UserError("no model: model.path is empty", do="--set model.path=ID_OR_FOLDER")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(
                f"{path} holds no model: it has no config.json",
                do="--set model.path=FOLDER with a Hugging Face checkpoint in it",
            )
        if weights:
            read_checkpoint(path)
    elif not is_model_id(config.model.path):
        raise UserError(
            f"no model {config.model.path!r}: neither a folder nor a Hugging Face id",
            do="--set model.path=OWNER/NAME, or a folder that exists",
        )
    elif weights or not config.architecture:
        check_cached(config, weights=weights)


def check_cached(config: RunConfig, *, weights: bool) -> None:
    """Check the model's files in the Hub's cache. Raises UserError as `check_model` does."""
    model_id = config.model.path
    folder = snapshot(model_id, config.model.revision, os.environ)
    missing = ["all of it"] if folder is None else missing_files(folder, weights=weights)
    if missing and is_offline(os.environ):
        more = f" and {len(missing) - 3} more files" if len(missing) > 3 else ""  # noqa: PLR2004 - named
        raise UserError(
            f"{model_id} is not whole in {repo_folder(model_id, os.environ)}, and HF_HUB_OFFLINE=1 "
            f"forbids to fetch what is missing: {', '.join(missing[:3])}{more}",
            do=f"HF_HUB_OFFLINE=0; or `hf download {model_id}` where there is a network, and "
            "--set model.path=FOLDER with the copy",
            code=ExitCode.PREFLIGHT,
        )
    if folder is not None and not missing and weights:
        read_checkpoint(folder)


def fetched_model_folder(config: RunConfig) -> Path | None:
    """Return the local folder of `model.path`, or None if there is none with a config.json."""
    named = config.model.path
    if not named:
        return None
    folder: Path | None = Path(named)
    if not Path(named).is_dir() and is_model_id(named):
        folder = snapshot(named, config.model.revision, os.environ)
    return folder if folder is not None and (folder / "config.json").is_file() else None


def made_model_folder(config: RunConfig) -> Path:
    """Return the cache folder of a model made from [architecture], named by its inputs' hash."""
    source = ROOT / "train" / "model" / "make_checkpoint.py"
    weights = config.launch.load != "random" and [config.model.dtype, config.train.seed]
    parts = [config.architecture, weights]
    content = json.dumps(parts, sort_keys=True).encode() + source.read_bytes()
    return (
        cache_folder() / "models" / f"{config.profile}-{hashlib.sha256(content).hexdigest()[:12]}"
    )


def model_folder(config: RunConfig) -> Path | None:
    """Return the folder of the model, existing or to be made; None if it is yet to be fetched."""
    return fetched_model_folder(config) if config.model.path else made_model_folder(config)
