"""Profiles: a name here, a file of the user's own, or the configuration of an earlier run."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launch.config.setting_values import check_key
from machine.typed import again, start_program, typed_run
from rundir.config import SECTIONS
from rundir.config_file import read_config
from rundir.data_paths import absolute
from rundir.errors import UserError
from rundir.paths import ROOT, RunDir, find_run

PROFILES = ROOT / "profiles"
OTHER_FORMATS = (".yaml", ".yml", ".json")  # in which others keep what is a profile here
_HELP = ("help", "usage", "commands")


def is_file(profile: str) -> bool:
    """Return whether a profile is given by the path of a file, and not by a name."""
    return profile.endswith(".toml")


def is_known(word: str) -> bool:
    """Return whether a word is the path of a profile, or the name of one that is here."""
    return is_file(word) or (PROFILES / f"{word}.toml").is_file()


def preset_profile() -> str:
    """Return the profile of a start script, where none is typed."""
    return os.environ.get("AIRLOCK_PRESET_PROFILE") or "32b"


def profile_file(profile: str) -> Path:
    """Return the file of a profile."""
    if is_file(profile):
        return Path(absolute(profile, Path.cwd()))
    return PROFILES / f"{profile}.toml"


def name_of(profile: str) -> str:
    """Return the name of a profile, which is part of the names of its runs."""
    if not is_file(profile):
        return profile
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(profile).stem)[:40].strip("-.") or "profile"


def load_profile(name: str) -> dict[str, Any]:
    """Return the tables of profiles/NAME.toml, or of the file that `name` is the path of.

    Raises UserError if it is missing or invalid.
    """
    path = profile_file(name)
    known = sorted(file.stem for file in PROFILES.glob("*.toml"))
    if is_file(name) and not path.is_file():
        raise UserError(
            f"no profile {name!r}: there is no file {path}",
            do=f"{again(known[0], instead_of=name)}   # or {', '.join(known[1:])}, or a file",
        )
    if not is_file(name) and name not in known:
        raise _unknown(name, known)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}", do=f"ls -l {shlex.quote(str(path))}"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}", do=f"mend {path}") from error
    for section, content in table.items():
        _check_section(path, section, content)
    return table


def _unknown(name: str, known: list[str]) -> UserError:
    """Return what to say to a word that is no profile."""
    if name in _HELP:
        return UserError(f"no profile {name!r}", do=f"{start_program()} --help")
    if name.endswith(OTHER_FORMATS):
        own = again(str(Path(name).with_suffix(".toml")), instead_of=name)
        return UserError(
            f"{name}: a profile is a TOML file",
            do=f"{own}   # once its settings stand there: docs/configuration.md",
        )
    near = [profile for profile in known if name and name in profile]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.4) or known[:1]
    each = "\n  → ".join(again(profile, instead_of=name) for profile in near)
    return UserError(
        f"no profile {name!r}: there are {', '.join(known)}",
        do=f"{each}   # or a file, my.toml; another model: --set model.path=OWNER/NAME",
    )


def load_resumed(profile: str, run: RunDir) -> dict[str, Any]:
    """Return the tables of a run's config.toml, without the number of ranks: each run decides it.

    Raises UserError if it belongs to another profile or cannot be read.
    """
    try:
        config = read_config(run.config)
    except (OSError, ValueError) as error:
        raise UserError(f"run {run.run_id}: {error}", do=typed_run(run).again()) from error
    if config.script is not None:
        raise UserError(
            f"run {run.run_id} is of the script {config.script.path}, which saves and goes on in a "
            "way of its own: --resume is for profiles",
            do=f"{typed_run(run).again()}   # as it was typed; what makes it go on, its own help "
            "says",
        )
    if config.profile != name_of(profile):
        raise UserError(
            f"run {run.run_id} is of the profile {config.profile}, not {profile}",
            do=again(config.profile, instead_of=profile),
        )
    table = asdict(config)
    del table["launch"]["num_ranks"]
    return table


def profile_of_run(name: str) -> str | None:
    """Return the profile of the run called `name`; None if there is none to read."""
    try:
        return read_config(find_run(name).config).profile or None
    except (OSError, ValueError):
        return None


def _check_section(path: Path, section: str, content: Any) -> None:
    others = ("architecture", "evaluation")
    if section not in (*SECTIONS, *others) or not isinstance(content, dict):
        raise UserError(
            f"{path}: no section [{section}]", do=f"one of {', '.join((*SECTIONS, *others))}"
        )
    for key in content if section in SECTIONS else ():
        check_key(f"{section}.{key}", where=str(path))
