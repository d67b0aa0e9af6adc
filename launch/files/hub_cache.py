"""Lookup of Hub models already on this machine, in milliseconds and without a network.

The cache layout is documented: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from launch.files.checkpoint_files import weight_names

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
