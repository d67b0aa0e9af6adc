"""Resolution of profile, environment and options into a RunConfig, with each value's source.

In order of precedence: option (`--set`), environment (AIRLOCK_SECTION_KEY), profile, default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launch.config.evaluation_sets import resolve_sets, split_settings
from launch.config.profiles import (
    PROFILES,
    is_file,
    load_profile,
    load_resumed,
    name_of,
    profile_file,
)
from launch.config.setting_values import resolve_sections
from rundir.config import SECTIONS, DataConfig, LaunchConfig, RunConfig, Sources, TrainConfig
from rundir.data_paths import absolute, absolute_paths
from rundir.paths import ROOT, RunDir


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
    if resumed is not None:
        table, layer = load_resumed(profile, resumed), f"run {resumed.run_id}"
    else:
        table, layer = load_profile(profile), f"profile {profile.removesuffix('.toml')}.toml"
    of_sets, settings = split_settings(settings)
    values, sources = resolve_sections(tuple(SECTIONS), (table, layer), settings, environ)
    base = profile_file(profile).resolve().parent if is_file(profile) else ROOT
    base = ROOT if base == PROFILES else base  # one of Airlock's own, given by its path
    values["data"] = _absolute(values["data"], sources, base)
    model, train = values["model"], values["train"]
    if model.path.startswith("~"):  # the shell does not expand it after `model.path=`
        values["model"] = replace(model, path=absolute(model.path, Path.cwd()))
    if train.adapter:
        values["train"] = replace(train, adapter=absolute(train.adapter, Path.cwd()))
    values["launch"] = _start_that_loads(values["launch"], values["train"], sources)
    architecture = table.get("architecture", {})
    if values["model"].path and sources["model.path"] not in (layer, "default"):
        architecture = {}  # it describes the profile's model, and this is another one
    evaluation = resolve_sets(table.get("evaluation", {}), layer, of_sets, base)
    config = RunConfig(
        profile=name_of(profile), architecture=architecture, evaluation=evaluation, **values
    )
    return config, sources


def _absolute(data: DataConfig, sources: Sources, profiles_base: Path) -> DataConfig:
    """Return `data` with absolute paths.

    The paths of a profile here are relative to the clone, those of a profile of the user's own to
    its folder (`profiles_base`), other paths to the working directory. A profile's
    held-out data belongs to its training data: with other data there is none.
    """
    if _from_profile(sources["data.eval_path"]) and not _from_profile(sources["data.path"]):
        sources["data.eval_path"] = "none, as data.path is not the profile's"
        data = replace(data, eval_path="")

    def base_of(key: str) -> Path:
        return profiles_base if _from_profile(sources[f"data.{key}"]) else Path.cwd()

    template = data.chat_template
    return replace(
        data,
        path=absolute_paths(data.path, base_of("path")),
        eval_path=absolute_paths(data.eval_path, base_of("eval_path")),
        chat_template=template and absolute(template, base_of("chat_template")),
    )


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
