"""Data preparation, once, before any rank starts: read, check, tokenise. Ranks only map the result.

With data.streaming the ranks do this, and only some rows are tried here
(train/stream/count_and_try.py).

`python -P -m train.prepare RUN_DIR MODEL_PATH [RESUME_FROM]` writes Arrow files to the cache
(train/data/cache.py). Imports neither torch nor transformers, so it takes a second and can fork
freely.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from rundir.atomic import write_text
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.data_paths import DataPath, data_paths
from rundir.errors import ExitCode, UserError
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import Prepared, PreparedData, write_prepared
from train.data.architecture import check_is_causal
from train.data.cache import Tools, cached
from train.data.dataset import preview, short
from train.data.fits_model import check_adapter, check_tokenizer, raw_config
from train.data.mix import Ingredient, is_mixed, mixed, mixture_lines
from train.data.path_samples import load_text_tools, prepare_path, say
from train.data.reading_progress import reported_in
from train.data.samples import Recipe, recipes
from train.data.sources import find_sources
from train.files.content import digest_of
from train.stream.count_and_try import count_and_try

_FEWEST_HELD_OUT = 8  # samples held out by default


def prepare(run: RunDir, model_path: Path, resume_from: str | None) -> Prepared:
    """Tokenise training and held-out data. Raises UserError for unusable data."""
    config = read_config(run.config)
    check_is_causal(raw_config(model_path), model_path)
    check_adapter(config.train)
    training_recipe, evaluation_recipe = recipes(config)
    tools = load_text_tools(model_path, training_recipe)
    for line in check_tokenizer(model_path, tools[0]):
        say(f"airlock: {line}")
    run.data.mkdir(exist_ok=True)
    named = _named_sets(config, run, model_path, evaluation_recipe, tools)
    if config.scoring is not None:  # there is nothing to train on
        train, evaluation, resume_from = next(iter(named.values())), None, None
    else:
        train, evaluation = _training_data(config, run, model_path, training_recipe, tools)
        if config.data.eval_path and config.train.evaluate:
            held_out = paths_of(config.data.eval_path, run, "eval_path")
            evaluation, _ = _combined(held_out, model_path, evaluation_recipe, run, tools)
    return Prepared(
        model_path=str(model_path),
        train=train,
        evaluation=evaluation,
        resume_from=resume_from,
        evaluations=named,
    )


def _training_data(
    config: RunConfig, run: RunDir, model_path: Path, recipe: Recipe, tools: Tools
) -> tuple[PreparedData, PreparedData | None]:
    """Return the training data, some of which are shown, and what is held out of them or None."""
    paths = paths_of(config.data.path, run, "path")
    if config.data.streaming:
        train, shown, line = count_and_try(paths[0][0], model_path, recipe, tools, run)
        say(line)
        _show(run, shown)
        return train, None
    if config.data.eval_fraction < 0:
        recipe = held_out_if_enough(paths, model_path, recipe, tools)
    train, held_out = _combined(paths, model_path, recipe, run, tools)
    _show(run, preview(train, tools[0]))
    paths += paths_of(config.data.eval_path, run, "eval_path")
    _note_files(run, [path for path, _ in paths])  # streamed files would take long to read
    return train, held_out


def _named_sets(
    config: RunConfig, run: RunDir, model_path: Path, recipe: Recipe, tools: Tools
) -> dict[str, PreparedData]:
    """Return the data of each [evaluation.NAME]."""
    prepared = {}
    for name, evaluation in config.evaluation.items() if config.train.evaluate else ():
        paths = paths_of(evaluation.path, run, f"set_{name}")
        own = replace(recipe, columns=evaluation.columns or recipe.columns)
        prepared[name], _ = _combined(paths, model_path, own, run, tools)
    return prepared


def paths_of(text: str, run: RunDir, field: str) -> list[tuple[Path, DataPath]]:
    """Return the local path of each entry of `text`, the value of `field`, with the entry."""
    return [
        (run.data_of_hub(field, number) if path.is_of_hub else Path(path.path), path)
        for number, path in enumerate(data_paths(text))
    ]


def held_out_if_enough(
    paths: list[tuple[Path, DataPath]], model_path: Path, recipe: Recipe, tools: Tools
) -> Recipe:
    """Return the recipe, with nothing held out if that would be too little to tell anything.

    For data.eval_fraction = -1, which must not end a run that somebody wants to start. Raises
    UserError.
    """
    if not recipe.eval_fraction:
        return recipe
    counts = [cached(find_sources(path), model_path, recipe, tools)[1] for path, _ in paths]
    num_held_out = sum(count["num_held_out"] for count in counts)
    if num_held_out >= _FEWEST_HELD_OUT and all(count["num_samples"] for count in counts):
        return recipe
    num_samples = num_held_out + sum(count["num_samples"] for count in counts)
    say(
        f"data: nothing is held out of {num_samples:,} samples: {recipe.eval_fraction:.0%} are "
        f"{num_held_out}, and fewer than {_FEWEST_HELD_OUT} tell little; "
        "--set data.eval_fraction=0.1 holds out a tenth, data.eval_path=FILE other data"
    )
    return replace(recipe, eval_fraction=0.0, seed=0)


def _combined(
    paths: list[tuple[Path, DataPath]], model_path: Path, recipe: Recipe, run: RunDir, tools: Tools
) -> tuple[PreparedData, PreparedData | None]:
    """Return the combined data of all paths, and what is held out of them or None."""
    made = [prepare_path(path, model_path, recipe, run, tools) for path, _ in paths]
    ingredients = [
        Ingredient(name=part.name, weight=part.weight, data=data)
        for (_, part), (data, _) in zip(paths, made, strict=True)
    ]
    held_out = [
        Ingredient(name=part.name, weight=1, data=data)
        for (_, part), (_, data) in zip(paths, made, strict=True)
        if data is not None
    ]
    if recipe.eval_fraction and not held_out:
        raise UserError(
            f"none of {sum(part.data.num_samples for part in ingredients)} samples is held out by "
            f"data.eval_fraction = {recipe.eval_fraction:g}",
            do="a larger data.eval_fraction, or data.eval_path=FILE",
            code=ExitCode.DATA,
        )
    if is_mixed(ingredients):
        for line in mixture_lines(ingredients):
            say(line)
    text_end_id = tools[1].text_end_id(tools[0])
    return mixed(ingredients, text_end_id), mixed(held_out, text_end_id) if held_out else None


def _note_files(run: RunDir, paths: list[Path]) -> None:
    """Write which files the data are, for the model's card."""
    files = [
        {
            "name": source.path.name,
            "size_bytes": source.path.stat().st_size,
            "sha256": digest_of(source.path),
        }
        for path in paths
        for source in find_sources(path)
    ]
    write_text(run.data_files, json.dumps(files, indent=1) + "\n")


def _show(run: RunDir, shown: list[str]) -> None:
    """Write and print some samples as the model sees them, so that mistakes show at a glance."""
    file = run.data / "samples.txt"
    file.write_text("\n\n".join(shown) + "\n", encoding="utf-8")
    say(f"the first samples, [[what has loss]] in brackets (as they are: {file}):")
    for sample in shown:
        say(f"  {short(sample)}")


def main() -> None:
    """Prepare the data and write prepared.json. Raises UserError, and OSError for a full disk."""
    run, model_path, resume_from = RunDir(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    events = EventWriter(run.event_file("prepare"))
    with events.span("prepare", what="data"), reported_in(events):
        prepared = prepare(run, model_path, resume_from[0] if resume_from else None)
        write_prepared(run, prepared)


if __name__ == "__main__":
    main()
