"""Location of a model's files on this machine, found in milliseconds and without a network.

The Hub's cache is documented: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from launch.files.checkpoint_files import read_checkpoint, weight_names
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from rundir.paths import ROOT, cache_folder

_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its variables
DEFAULT_REVISION = "main"


def hub_folder(environ: Mapping[str, str]) -> Path:
    """Return the cache folder of huggingface_hub."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if named is None:
        home = environ.get("HF_HOME")
        if home is None:
            home = f"{environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface"
        named = f"{home}/hub"
    return Path(os.path.expandvars(named)).expanduser().absolute()


def is_offline(environ: Mapping[str, str]) -> bool:
    """Return whether the user forbids access to the Hub."""
    asked = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return asked.upper() in _TRUE


def is_model_id(path: str) -> bool:
    """Return whether `path` can be OWNER/NAME on the Hub."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~"))


def repo_folder(model_id: str, environ: Mapping[str, str]) -> Path:
    """Return the cache folder of all revisions of a model, which need not exist yet."""
    return hub_folder(environ) / f"models--{model_id.replace('/', '--')}"


def snapshot(model_id: str, revision: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a revision (branch, tag or commit), complete or not; None if absent."""
    repo = repo_folder(model_id, environ)
    ref = repo / "refs" / (revision or DEFAULT_REVISION)
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    folder = repo / "snapshots" / commit
    return folder if commit and folder.is_dir() else None


def missing_files(folder: Path, *, weights: bool) -> list[str]:
    """Return the files that training needs and `folder` lacks.

    If the weights are there, so is all else: they are linked last (launch/files/fetch.py).
    Raises UserError for a config.json or an index that cannot be read, and OSError.
    """

    def is_there(name: str) -> bool:
        return (folder / name).is_file()

    needed = ["config.json", "tokenizer.json"]
    if weights and is_there("config.json"):
        needed += weight_names(folder, is_there) or ["model.safetensors"]
    return [name for name in needed if not is_there(name)]


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
