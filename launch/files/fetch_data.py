"""`python -P -m launch.files.fetch_data hf:OWNER/NAME FOLDER`: fetch a dataset of the Hub.

Leaves links to its files in FOLDER. The Hub keeps a Parquet copy of most datasets on a separate
branch, by configuration and split; for other datasets the original files are used.
No code of a dataset is run.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from launch.files.fetch_errors import explain
from launch.files.fetch_progress import say
from launch.files.model_folder import DEFAULT_REVISION, hub_folder, is_offline
from rundir.errors import ExitCode, UserError

_CONVERTED = "refs/convert/parquet"  # https://huggingface.co/docs/dataset-viewer/parquet
_NAMED = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:/([\w.-]+))?(?:/([\w.-]+))?")
_TRAIN = "train"


@dataclass(frozen=True, slots=True)
class DataName:
    """A requested dataset, configuration and split; an empty `config` is the default one."""

    dataset_id: str
    config: str
    split: str
    is_split_named: bool


def parse(text: str) -> DataName:
    """Parse hf:OWNER/NAME, hf:OWNER/NAME/SPLIT or hf:OWNER/NAME/CONFIG/SPLIT. Raises UserError."""
    match = _NAMED.fullmatch(text)
    if match is None:
        raise UserError(
            f"{text!r} is no dataset of the Hub",
            do="hf:OWNER/NAME, hf:OWNER/NAME/SPLIT or hf:OWNER/NAME/CONFIG/SPLIT",
            code=ExitCode.DATA,
        )
    dataset_id, first, second = match.groups()
    config, split = (first, second) if second else ("", first)
    return DataName(dataset_id, config or "", split or _TRAIN, split is not None)


def fetch(text: str, folder: Path) -> None:
    """Fetch a dataset and link its files in `folder`. Raises UserError if that fails."""
    name, cache = parse(text), hub_folder(os.environ)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        files, snapshot = _fetched(name)
    except UserError:
        raise
    except Exception as error:  # the client's own errors, its network library's, and OSError
        raise explain(error, f"datasets/{name.dataset_id}", "main", cache) from error
    folder.mkdir()
    for number, file in enumerate(files):
        (folder / f"{number:05d}-{Path(file).name}").symlink_to(snapshot / file)
    offline = ", those that are here: HF_HUB_OFFLINE is set" if is_offline(os.environ) else ""
    say(f"data: {text} at {snapshot.name[:7]}, {len(files)} files{offline}")


def _fetched(name: DataName) -> tuple[list[str], Path]:
    """Return the names of the files and the snapshot folder that holds them."""
    from huggingface_hub import errors, snapshot_download

    offline = is_offline(os.environ)
    for revision in (_CONVERTED, None):
        try:
            files = _listed(name.dataset_id, revision, offline=offline)
        except (errors.RevisionNotFoundError, errors.LocalEntryNotFoundError):
            if revision is None:
                raise
            continue
        chosen = converted(files, name) if revision else as_they_are(files, name)
        if chosen:
            snapshot = snapshot_download(
                name.dataset_id,
                repo_type="dataset",
                revision=revision,
                allow_patterns=[glob.escape(file) for file in chosen],
                local_files_only=offline,
            )
            return chosen, Path(snapshot)
    raise UserError(
        f"the dataset {name.dataset_id} has no files of rows",
        do=f"hf download --repo-type dataset {name.dataset_id}, and --data FILE",
        code=ExitCode.DATA,
    )


def _listed(dataset_id: str, revision: str | None, *, offline: bool) -> list[str]:
    """Return the names of all files of a revision; offline, of those fetched before."""
    from huggingface_hub import HfApi, errors

    if not offline:
        return HfApi().list_repo_files(dataset_id, repo_type="dataset", revision=revision)
    repo = hub_folder(os.environ) / f"datasets--{dataset_id.replace('/', '--')}"
    ref = repo / "refs" / (revision or DEFAULT_REVISION)
    if not ref.is_file():
        raise errors.LocalEntryNotFoundError(f"{repo} has nothing of it, and HF_HUB_OFFLINE is set")
    snapshot = repo / "snapshots" / ref.read_text(encoding="utf-8").strip()
    return [str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()]


def converted(files: list[str], name: DataName) -> list[str]:
    """Return the requested files of a branch with CONFIG/SPLIT/*.parquet.

    Raises UserError if the configuration or the split does not exist.
    """
    parts = [file.split("/") for file in files if file.endswith(".parquet") and file.count("/") > 1]
    configs = sorted({part[0] for part in parts})
    if not configs:
        return []
    config = name.config or (configs[0] if len(configs) == 1 else "default")
    if config not in configs:
        raise _none_of(name, "configuration", configs, f"{configs[0]}/{name.split}")
    splits = sorted({part[1] for part in parts if part[0] == config})
    whole = {split: split for split in splits} | {
        split.removeprefix("partial-"): split for split in splits
    }  # the Hub converts only the first 5 GB
    if name.split not in whole:
        raise _none_of(name, "split", splits, f"{config}/{splits[0]}")
    split = whole[name.split]
    if split != name.split:
        say(f"data: of {name.dataset_id} the Hub has only a first part in Parquet; that is taken")
    return sorted("/".join(part) for part in parts if part[:2] == [config, split])


def as_they_are(files: list[str], name: DataName) -> list[str]:
    """Return the data files with the split in their name.

    Without a match, returns all files if no split was requested, and raises UserError otherwise.
    """
    from train.data.formats.known import format_named

    rows = sorted(
        file for file in files if format_named(PurePosixPath(file)) and "/." not in f"/{file}"
    )
    marked = re.compile(rf"(?<![a-z]){re.escape(name.split.lower())}(?![a-z])")
    of_split = [file for file in rows if marked.search(file.lower())]
    if not of_split and name.is_split_named and rows:
        raise _none_of(name, "split", rows[:5], _TRAIN)
    return of_split or rows


def _none_of(name: DataName, what: str, there: list[str], then: str) -> UserError:
    wanted = name.config if what == "configuration" else name.split
    return UserError(
        f"the dataset {name.dataset_id} has no {what} {wanted or 'by default'!r}; there are: "
        f"{', '.join(there)}",
        do=f"--data hf:{name.dataset_id}/{then}",
        code=ExitCode.DATA,
    )


def main() -> None:
    """Fetch and link. Raises UserError if that fails."""
    os.environ["HF_HUB_VERBOSITY"] = "error"  # its retries; what ends them is reported here
    fetch(sys.argv[1], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
