"""Resolution of profile, environment and options into a RunConfig, with each value's source.

In order of precedence: option (`--set`), environment (AIRLOCK_SECTION_KEY), profile, default.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rundir.config import SECTIONS, DataConfig, LaunchConfig, RunConfig, Sources, TrainConfig
from rundir.config_file import read_config
from rundir.data_paths import as_text, data_paths
from rundir.errors import UserError
from rundir.paths import ROOT, RunDir

PROFILES = ROOT / "profiles"

_ALIASES = {"limits.rlimit_as_gib": "AIRLOCK_RLIMIT_AS_GIB"}  # names that predate the naming rule
_MOST = 1e30  # the upper bound of every number: no setting needs more
_BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def resolve(
    profile: str,
    settings: Sequence[str],
    environ: Mapping[str, str],
    resumed: RunDir | None = None,
) -> tuple[RunConfig, Sources]:
    """Return the configuration of a run, and a map of `section.key` to the value's source.

    A run that resumes another (`resumed`) uses that run's configuration as its profile.
    Raises UserError for an unknown profile or key and for a value of the wrong type or range.
    """
    table, layer = load_profile(profile), f"profile {profile}.toml"
    if resumed is not None:
        table, layer = load_resumed(profile, resumed), f"run {resumed.run_id}"
    values, sources = resolve_sections(tuple(SECTIONS), (table, layer), settings, environ)
    values["data"] = _absolute(values["data"], sources)
    if values["model"].path.startswith("~"):  # the shell does not expand it after `model.path=`
        path = os.path.expanduser(values["model"].path)  # noqa: PTH111 - never raises
        values["model"] = replace(values["model"], path=path)
    values["train"] = _adapter(values["train"])
    values["launch"] = _start_that_loads(values["launch"], values["train"], sources)
    architecture = table.get("architecture", {})
    if values["model"].path and sources["model.path"] not in (layer, "default"):
        architecture = {}  # it describes the profile's model, and this is another one
    return RunConfig(profile=profile, architecture=architecture, **values), sources


def resolve_sections(
    sections: Sequence[str],
    below: tuple[dict[str, Any], str],
    settings: Sequence[str],
    environ: Mapping[str, str],
) -> tuple[dict[str, Any], Sources]:
    """Return the values of these sections, and their sources.

    `below` is the table of lower precedence and the name of its source. Raises UserError as
    `resolve` does.
    """
    options = dict(_split_setting(setting) for setting in settings)
    table, layer = below
    sources: Sources = {}
    values: dict[str, Any] = {}
    for section in sections:
        cls = SECTIONS[section]
        hints = get_type_hints(cls)
        values[section] = cls(
            **{
                item.name: _resolve_one(
                    f"{section}.{item.name}",
                    item,
                    hints[item.name],
                    (table.get(section, {}), layer),
                    environ,
                    options,
                    sources,
                )
                for item in fields(cls)
            }
        )
    return values, sources


def _absolute(data: DataConfig, sources: Sources) -> DataConfig:
    """Return `data` with absolute paths.

    A profile's paths are relative to the clone, a user's to the working directory. A profile's
    held-out data belongs to its training data: with other data there is none.
    """
    if _from_profile(sources["data.eval_path"]) and not _from_profile(sources["data.path"]):
        sources["data.eval_path"] = "none, as data.path is not the profile's"
        data = replace(data, eval_path="")

    def absolute(key: str, text: str) -> str:
        base = ROOT if _from_profile(sources[f"data.{key}"]) else Path.cwd()
        return str(base / os.path.expanduser(text)) if text else ""  # noqa: PTH111 - never raises

    def each(key: str, text: str) -> str:
        paths = data_paths(text)
        found = [
            one if one.is_of_hub else replace(one, path=absolute(key, one.path)) for one in paths
        ]
        return as_text(found)

    return replace(
        data,
        path=each("path", data.path),
        eval_path=each("eval_path", data.eval_path),
        chat_template=absolute("chat_template", data.chat_template),
    )


def _adapter(train: TrainConfig) -> TrainConfig:
    """Return `train` with the adapter folder made absolute, from the working directory."""
    if not train.adapter:
        return train
    path = Path.cwd() / os.path.expanduser(train.adapter)  # noqa: PTH111 - never raises
    return replace(train, adapter=str(path))


def _start_that_loads(launch: LaunchConfig, train: TrainConfig, sources: Sources) -> LaunchConfig:
    """Return `launch` with a default start that suits how the model is loaded.

    By default the zygote maps the model; for ranks that get it otherwise, it only imports.
    """
    if sources["launch.start"] != "default":
        return launch
    if launch.load not in ("auto", "mmap"):
        sources["launch.start"] = f"as launch.load is {launch.load}"
    elif train.method == "qlora":
        sources["launch.start"] = "as train.method is qlora"
    else:
        return launch
    return replace(launch, start="imports")


def _from_profile(source: str) -> bool:
    return source.startswith("profile")


def load_profile(name: str) -> dict[str, Any]:
    """Return the tables of profiles/NAME.toml. Raises UserError if it is missing or invalid."""
    path = PROFILES / f"{name}.toml"
    known = sorted(file.stem for file in PROFILES.glob("*.toml"))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        raise UserError(
            f"no profile {name!r}: there are {', '.join(known)}",
            do=f"./start.sh {near[0] if near else known[0]}",
        )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}", do=f"mend {path}") from error
    for section, content in table.items():
        _check_section(path, section, content)
    return table


def load_resumed(profile: str, run: RunDir) -> dict[str, Any]:
    """Return the tables of a run's config.toml, without the number of ranks: each run decides it.

    Raises UserError if it belongs to another profile or cannot be read.
    """
    try:
        config = read_config(run.config)
    except (OSError, ValueError) as error:
        raise UserError(f"run {run.run_id}: {error}", do="start anew, without --resume") from error
    if config.profile != profile:
        raise UserError(
            f"run {run.run_id} is of the profile {config.profile}, not {profile}",
            do=f"./start.sh {config.profile} --resume {run.run_id}",
        )
    table = asdict(config)
    del table["launch"]["num_ranks"]
    return table


def _check_section(path: Path, section: str, content: Any) -> None:
    if section not in (*SECTIONS, "architecture") or not isinstance(content, dict):
        raise UserError(
            f"{path}: no section [{section}]", do=f"one of {', '.join(SECTIONS)}, architecture"
        )
    for key in content if section in SECTIONS else ():
        check_key(f"{section}.{key}", where=str(path))


def check_key(key: str, *, where: str) -> None:
    """Raise UserError, with the closest match, unless `key` is an existing `section.name`."""
    known = [f"{section}.{item.name}" for section, cls in SECTIONS.items() for item in fields(cls)]
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f"perhaps {near[0]}?" if near else f"keys begin with {', '.join(SECTIONS)}"
        raise UserError(f"{where}: unknown key {key!r}", do=f"{hint} All: docs/configuration.md")


def env_names(key: str) -> list[str]:
    """Return the environment variables that set `section.name`; the first one set wins."""
    by_rule = "AIRLOCK_" + key.replace(".", "_").upper()
    return [_ALIASES[key], by_rule] if key in _ALIASES else [by_rule]


def _split_setting(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise UserError(
            f"--set {setting!r} has no value",
            do="--set section.key=value, as in train.max_steps=10",
        )
    check_key(key.strip(), where="--set")
    return key.strip(), value


def _resolve_one(
    key: str,
    item: Field[Any],
    hint: Any,
    below: tuple[dict[str, Any], str],
    environ: Mapping[str, str],
    options: dict[str, str],
    sources: Sources,
) -> Any:
    table, layer = below
    if key in options:
        value, source = _from_text(options[key], hint, f"--set {key}"), f"option --set {key}"
    elif name := next((name for name in env_names(key) if environ.get(name, "").strip()), None):
        value, source = _from_text(environ[name], hint, name), f"environment {name}"
    elif item.name in table:
        value, source = table[item.name], layer
    else:
        value, source = item.default, "default"
    sources[key] = source
    return _checked(value, hint, item, f"{key} ({source})")


def _from_text(text: str, hint: Any, where: str) -> Any:
    """Return `text` converted to `hint`; an invalid number stays text, for `_checked` to report."""
    text = text.strip()
    if hint is bool:
        return _BOOLS.get(text.casefold(), text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    assert hint is str or get_args(hint), where
    return text


def _checked(given: Any, hint: Any, item: Field[Any], where: str) -> Any:
    """Return the value if it has its field's type and range; an int is accepted as a float.

    Raises UserError otherwise.
    """
    choices = get_args(hint)
    kind = str if choices else hint
    value: Any = float(given) if kind is float and type(given) is int else given
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UserError(f"{where} is {value!r}, not {names[kind]}", do=f"{item.metadata['help']}")
    if isinstance(value, str) and not value.isprintable():
        raise UserError(f"{where} is {value!r}", do="use printable characters only")
    if choices and value not in choices:
        raise UserError(f"{where} is {value!r}", do=f"one of {', '.join(choices)}")
    if item.metadata["at_least"] is not None:
        _check_range(value, item, where)
    return value


def _check_range(value: Any, item: Field[Any], where: str) -> None:
    least = item.metadata["at_least"]
    if not _MOST > value >= least:
        bound = f"the least is {least:g}" if value < least else f"the most is {_MOST:g}"
        raise UserError(f"{where} is {str(value)[:40]}, {bound}", do=item.metadata["help"])
