"""`python -P -m launch.files.fetch ID LINK REVISION [without-weights]`: fetch a model of the Hub.

Leaves LINK pointing at its folder in the Hub's cache. Small files come first, then the weights that
transformers would read, and last the links to them: a snapshot with its weights is complete.

huggingface_hub restarts an interrupted file from the beginning (huggingface_hub#4196). So the
weights are transferred here, into files that the next attempt resumes, and placed where it finds
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from launch.files.checkpoint_files import weight_names
from launch.files.fetch_errors import ELSEWHERE, explain
from launch.files.fetch_progress import say
from launch.files.model_folder import hub_folder, missing_files, repo_folder, snapshot
from launch.files.transfer import File, transfer
from launch.start.gate.folder import gate_folder
from launch.start.gate.turns import lock_file, try_lock
from rundir.errors import ExitCode, UserError
from rundir.units import size_text

_SMALL = ("*.json", "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken", "README.md")
_TEMPLATES = "additional_chat_templates/"
_POLL_S = 0.2
_REMIND_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The files of a revision of a model."""

    model_id: str
    revision: str
    commit: str
    files: dict[str, File]

    def small(self) -> list[str]:
        """Return the files of configuration, tokenizer, templates and code.

        Files of other folders or formats are left out.
        """
        return [
            name
            for name in self.files
            if any(fnmatch(name, pattern) for pattern in _SMALL)
            and ("/" not in name or name.startswith(_TEMPLATES))
        ]


def fetch(model_id: str, revision: str, *, weights: bool) -> Path:
    """Return the local folder of a revision ("" is main), after fetching what is missing.

    Raises UserError, with the reason and what to do, if it cannot be fetched.
    """
    cache = hub_folder(os.environ)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(model_id, cache):
            folder = snapshot(model_id, revision, os.environ)
            if folder is None or missing_files(folder, weights=weights):
                folder = _fetch(model_id, revision, weights=weights)
            return folder
    except UserError:
        raise
    except Exception as error:  # the client's own errors, its network library's, and OSError
        raise explain(error, model_id, revision, cache) from error


def _fetch(model_id: str, revision: str, *, weights: bool) -> Path:
    listing = _list(model_id, revision)
    folder = _take(listing, listing.small())
    if not weights:
        return folder
    names = weight_names(folder, listing.files.__contains__)
    if not names:
        raise UserError(
            f"{model_id} has no weights to train: neither model.safetensors nor pytorch_model.bin",
            do="--set model.path=OWNER/NAME of a checkpoint for transformers; GGUF is none",
            code=ExitCode.PREFLIGHT,
        )
    if absent := [name for name in names if name not in listing.files]:
        raise UserError(
            f"{model_id} is not whole at the Hub: {names[0]} names {absent[0]}, which is not there",
            do="--set model.revision=NAME with another revision, or another model",
            code=ExitCode.PREFLIGHT,
        )
    files = [listing.files[name] for name in names]
    _say_if_pickle(listing, files)
    _check_space(listing, [file for file in files if not (folder / file.name).exists()])
    transfer(listing.model_id, listing.commit, files, repo_folder(model_id, os.environ) / "blobs")
    return _take(listing, names)


def _list(model_id: str, revision: str) -> _Listing:
    """Ask the Hub for the files of a revision."""
    from huggingface_hub import HfApi, constants

    info = HfApi().model_info(
        model_id,
        revision=revision or None,
        files_metadata=True,
        timeout=constants.HF_HUB_ETAG_TIMEOUT,
    )
    assert info.sha is not None
    files = {
        sibling.rfilename: File(
            sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None
        )
        for sibling in info.siblings or []
    }
    return _Listing(model_id=model_id, revision=revision, commit=info.sha, files=files)


def _take(listing: _Listing, names: list[str]) -> Path:
    """Let huggingface_hub fetch `names`, or link those already in its cache; return the folder."""
    from huggingface_hub import snapshot_download

    revision = listing.revision or None
    return Path(snapshot_download(listing.model_id, revision=revision, allow_patterns=names))


def _say_if_pickle(listing: _Listing, files: list[File]) -> None:
    if files[-1].name.endswith(".bin"):
        size = size_text(sum(file.size_bytes for file in files))
        say(
            f"airlock: {listing.model_id} HAS NO SAFETENSORS: {files[-1].name} and the like are "
            f"pickles ({size}). They are fetched, looked into and opened with weights_only, so no "
            "code in them is run; a rank that reads one may hold all of it in memory of its own"
        )


def _check_space(listing: _Listing, files: list[File]) -> None:
    """Raise UserError, before any weights are transferred, if the disk has no room for them."""
    repo = repo_folder(listing.model_id, os.environ)
    missing_bytes = sum(file.size_bytes - file.have_bytes(repo / "blobs") for file in files)
    free_bytes = shutil.disk_usage(repo).free
    say(
        f"fetch: {listing.model_id} at {listing.commit[:7]}: {size_text(missing_bytes)} to fetch "
        f"of {size_text(sum(file.size_bytes for file in files))}, to {repo}"
    )
    if missing_bytes > free_bytes:
        raise UserError(
            f"{listing.model_id} takes {size_text(missing_bytes)} more in {repo}, where "
            f"{size_text(free_bytes)} are free",
            do=ELSEWHERE,
            code=ExitCode.PREFLIGHT,
        )


@contextlib.contextmanager
def _alone(model_id: str, cache: Path) -> Iterator[None]:
    """Keep other runs of this user and node from fetching the same model into the same cache.

    The lock is in the gate's folder, which is local: the cache may be on a network filesystem,
    where locks can be void.
    """
    folder = gate_folder() / "fetch"
    folder.mkdir(exist_ok=True)
    key = hashlib.sha256(f"{cache}\0{model_id}".encode()).hexdigest()[:16]
    lock, holder = lock_file(folder / f"{key}.lock"), folder / f"{key}.holder"
    say_at = started = time.monotonic()
    while not try_lock(lock):
        if time.monotonic() >= say_at:
            say(
                f"fetch: {model_id} is being fetched by {_read(holder)}: waiting for it, "
                f"{time.monotonic() - started:.0f} s so far"
            )
            say_at = time.monotonic() + _REMIND_S
        time.sleep(_POLL_S)
    try:
        run = Path(os.environ.get("AIRLOCK_RUN_DIR", "")).name
        holder.write_text(f"process {os.getpid()} of run {run}", encoding="utf-8")
        yield
    finally:
        lock.release()


def _read(holder: Path) -> str:
    with contextlib.suppress(OSError):
        return holder.read_text(encoding="utf-8") or "another run"
    return "another run"


def main() -> None:
    """Fetch and link. Raises UserError if that fails."""
    model_id, link, revision, *what = sys.argv[1:]
    # This module reports the progress of all files together, and the errors.
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
    Path(link).symlink_to(fetch(model_id, revision, weights="without-weights" not in what))


if __name__ == "__main__":
    main()
