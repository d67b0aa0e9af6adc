"""Models of the Hub that are on this machine already, found in milliseconds and without a network.

The layout is documented: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from launch.files.checkpoint_files import weight_names

_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its variables
DEFAULT_REVISION = "main"


def hub_folder(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it has fetched."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if named is None:
        home = environ.get("HF_HOME")
        if home is None:
            home = f"{environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface"
        named = f"{home}/hub"
    return Path(os.path.expandvars(named)).expanduser().absolute()


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether the user forbids asking the Hub."""
    asked = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return asked.upper() in _TRUE


def is_model_id(path: str) -> bool:
    """Whether `path` can be OWNER/NAME of the Hub."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~"))


def repo_folder(model_id: str, environ: Mapping[str, str]) -> Path:
    """Where the cache has, or will have, all revisions of a model."""
    return hub_folder(environ) / f"models--{model_id.replace('/', '--')}"


def snapshot(model_id: str, revision: str, environ: Mapping[str, str]) -> Path | None:
    """The folder of a revision (a branch, a tag, a commit), whole or not; None without one."""
    repo = repo_folder(model_id, environ)
    ref = repo / "refs" / (revision or DEFAULT_REVISION)
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    folder = repo / "snapshots" / commit
    return folder if commit and folder.is_dir() else None


def missing_files(folder: Path, *, weights: bool) -> list[str]:
    """What training needs and `folder` lacks; that all else is there follows from the weights.

    They are linked there last (launch/files/fetch.py). Raises UserError for a config.json or an
    index
    that cannot be read, and OSError.
    """

    def is_there(name: str) -> bool:
        return (folder / name).is_file()

    needed = ["config.json", "tokenizer.json"]
    if weights and is_there("config.json"):
        needed += weight_names(folder, is_there) or ["model.safetensors"]
    return [name for name in needed if not is_there(name)]
