"""The held-out rows of each set that was trained on, kept to ask the same questions later.

A set is two files: KEY.jsonl, the rows that its run held out, and KEY.json, how they were read. The
key is the digest of the rows: the same set again is the same files.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rundir.atomic import sync, write_text
from rundir.config import RunConfig
from rundir.paths import RunDir

_ROWS = "*.held_out.jsonl"  # in the run's folder of data
_LONGEST = 40  # letters of a name: what `--name` and `airlock evaluate NAME=DATA` take


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSet:
    """The held-out rows of one set, and the settings that make the same samples of them."""

    name: str
    key: str
    path: str
    settings: list[str]  # KEY=VALUE, for --set
    options: list[str]  # of `airlock evaluate`
    added_t: float


class HeldOutSets:
    """The sets in a folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made with the first set."""
        self._folder = folder

    def named(self, names: Sequence[str] | None = None) -> list[HeldOutSet]:
        """Return the sets of those names, or all, oldest first; sets that are gone are left out."""
        sets = [held_out for held_out in self._all() if names is None or held_out.name in names]
        return sorted(sets, key=lambda held_out: held_out.added_t)

    def add(self, run: RunDir, config: RunConfig, dropped: str) -> HeldOutSet | None:
        """Keep the rows that `run` held out of `dropped`; None if it held out none.

        Raises OSError (a full disk), and then adds nothing.
        """
        rows = sorted(run.data.glob(_ROWS))
        if not rows:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(".*"):  # half-written, by an inbox that was killed
            left.unlink(missing_ok=True)
        key = _digest(rows)
        known = {held_out.key: held_out for held_out in self._all()}
        if key in known:
            return known[key]
        file = self._folder / f"{key}.jsonl"
        _join(rows, file)
        taken = {held_out.name for held_out in known.values()}
        made = HeldOutSet(
            name=free_name(set_name(dropped), key, taken),
            key=key,
            path=str(file),
            settings=_settings(config),
            options=_options(config),
            added_t=time.time(),
        )
        write_text(self._folder / f"{key}.json", json.dumps(asdict(made), indent=1) + "\n")
        return made

    def _all(self) -> Iterator[HeldOutSet]:
        for file in self._folder.glob("*.json"):
            try:
                held_out = HeldOutSet(**json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                continue  # not ours, or edited beyond use
            rows = file.with_suffix(".jsonl")
            if rows.is_file():
                # The inbox may have moved, and a template be gone: models have theirs with them.
                settings = [text for text in held_out.settings if not _is_gone(text)]
                yield replace(held_out, path=str(rows), settings=settings)


def _is_gone(setting: str) -> bool:
    key, _, value = setting.partition("=")
    return key == "data.chat_template" and not Path(value).is_file()


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _join(files: Sequence[Path], to: Path) -> None:
    """Write the contents of `files` to a new file, which appears whole."""
    new = to.with_name(f".{to.name}")
    with new.open("wb") as made:
        for path in files:
            with path.open("rb") as file:
                shutil.copyfileobj(file, made)
    sync(new)
    new.replace(to)


def _settings(config: RunConfig) -> list[str]:
    """Return the settings that decide what becomes of a row, and how its loss is computed."""
    data = config.data
    values = {
        "data.columns": data.columns,
        "data.only_where": data.only_where,
        "data.loss_on": data.loss_on,
        "data.chat_template": data.chat_template and str(Path(data.chat_template).absolute()),
        "data.template_options": data.template_options,
        "data.max_seq_length": data.max_seq_length,
        "data.on_long_row": data.on_long_row,
        "data.on_bad_row": "skip",  # that row was left out of the training as well
        "model.dtype": config.model.dtype,
        "model.trust_remote_code": str(config.model.trust_remote_code).lower(),
        "train.micro_batch_size": config.train.micro_batch_size,
        "launch.device": config.launch.device,
    }
    return [f"{key}={value}" for key, value in values.items() if value not in ("", "false")]


def _options(config: RunConfig) -> list[str]:
    """Return the options with which as much is computed as in the run's own evaluations."""
    most = config.data.max_eval_samples
    options = ["--max-samples", str(most)] if most else []
    if config.launch.num_ranks > 1:
        options += ["--num-gpus", str(config.launch.num_ranks)]
    return options if config.train.eval_generate else [*options, "--no-generate"]


def set_name(dropped: str) -> str:
    """Return the name of a dropped file or folder, for `--name` and for `airlock evaluate`.

    The name without its suffix, as far as both take it: letters, digits, - and _.
    """
    stem = Path(dropped).stem or dropped
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:_LONGEST].rstrip("-_")
    return "data" if name in ("", "latest") else name


def free_name(name: str, key: str, taken: set[str]) -> str:
    """Return `name`, or where another set is called so, the name with the start of `key`."""
    if name not in taken:
        return name
    ending = f"-{key[:6]}"
    return name[: _LONGEST - len(ending)] + ending
