"""Parallel, resumable transfer of large files from the Hub into its cache."""

from __future__ import annotations

import hashlib
import os
import queue
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from launch.files.fetch_errors import is_network_error
from launch.files.fetch_progress import FetchProgress
from rundir.errors import ExitCode, UserError
from rundir.units import MIB

_NUM_THREADS = 8  # as in huggingface_hub: one connection seldom uses the full bandwidth
_POLL_S = 0.1
_CHUNK_BYTES = MIB


@dataclass(frozen=True, slots=True)
class File:
    """A file of a model on the Hub. `sha256` is None for a small file, stored in git itself."""

    name: str
    size_bytes: int
    sha256: str | None

    def partial(self, blobs: Path) -> Path:
        """Return the path of the partial file, which other users and nodes do not share."""
        return blobs / f"{self.sha256}.{socket.gethostname()}-{os.getuid()}.incomplete"

    def have_bytes(self, blobs: Path) -> int:
        """Return how much of the file is present, in bytes."""
        if self.sha256 is None:
            return 0
        for path in (blobs / self.sha256, self.partial(blobs)):
            if path.is_file():
                return min(path.stat().st_size, self.size_bytes)
        return 0


def transfer(model_id: str, commit: str, files: list[File], blobs: Path) -> None:
    """Fetch `files` into the folder `blobs`, named by their hashes as in the Hub's cache.

    Files without a sha256 are left to huggingface_hub. Raises what the first thread to fail raised:
    errors of huggingface_hub and its network library, OSError (a full disk), and UserError.
    """
    large = [file for file in files if file.sha256 is not None]
    todo: queue.SimpleQueue[File] = queue.SimpleQueue()
    for file in large:
        todo.put(file)
    failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            while True:
                _transfer_one(model_id, commit, todo.get_nowait(), blobs)
        except queue.Empty:
            return
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            failed.put(error)

    blobs.mkdir(parents=True, exist_ok=True)
    # Daemon threads: the end of this process must not wait for gigabytes to arrive.
    threads = [threading.Thread(target=work, daemon=True) for _ in large[:_NUM_THREADS]]
    progress = _progress(model_id, large, blobs)
    for thread in threads:
        thread.start()
    try:
        while failed.empty() and any(thread.is_alive() for thread in threads):
            progress.tick()
            time.sleep(_POLL_S)
    finally:
        progress.end()
    if not failed.empty():
        raise failed.get()
    for left in blobs.glob(File("", 0, "*").partial(Path()).name):
        left.unlink()  # from an earlier revision


def _progress(model_id: str, files: list[File], blobs: Path) -> FetchProgress:
    def have() -> tuple[int, int]:
        whole = sum((blobs / str(file.sha256)).exists() for file in files)
        return sum(file.have_bytes(blobs) for file in files), whole

    return FetchProgress(model_id, sum(file.size_bytes for file in files), len(files), have)


def _transfer_one(model_id: str, commit: str, file: File, blobs: Path) -> None:
    """Fetch the rest of one file. The URL names the commit, so a partial file always matches."""
    from huggingface_hub import constants, hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    blob, partial = blobs / str(file.sha256), file.partial(blobs)
    if blob.exists():
        return
    if file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:  # only for Xet, which cannot resume
        hf_hub_download(model_id, file.name, revision=commit)
        return
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES  # an incomplete chunk is lost: 10 MiB by default
    with partial.open("ab") as out:
        at_bytes = out.tell()
        while True:
            try:
                http_get(
                    hf_hub_url(model_id, file.name, revision=commit),
                    out,
                    resume_size=at_bytes,
                    headers=build_hf_headers(),
                    expected_size=file.size_bytes,
                )
                break
            except Exception as error:
                if not is_network_error(error) or out.tell() == at_bytes:
                    raise
                at_bytes = out.tell()  # data has arrived: resume, even if the client gave up
        out.flush()
        os.fsync(out.fileno())
    if at_bytes:
        _check(file, partial)
    partial.replace(blob)


def _check(file: File, partial: Path) -> None:
    """Raise UserError if a resumed file has a wrong hash: a crashed node may have left zeros."""
    with partial.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != file.sha256:
        partial.unlink()
        raise UserError(
            f"{file.name} came in pieces that do not fit together (SHA-256 {digest[:12]}…, not "
            f"{str(file.sha256)[:12]}…)",
            do="start again: this file is fetched anew, the others are kept",
            code=ExitCode.PREFLIGHT,
        )
