"""The tokenised data of one path, made now or found in the cache, and what to report about them."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import PreparedData
from rundir.units import num_text
from train.chat.template import Template
from train.chat.template_files import options_of
from train.data.arrow_file import BAD_ROWS, HELD_OUT, HELD_OUT_ROWS, TRAIN
from train.data.cache import Tools, cached, content_of, listed_bad_rows, tokenizer_digest
from train.data.compare_tokenizers import compare_tokenizers
from train.data.fits_model import check_fits
from train.data.samples import Recipe
from train.data.sources import find_sources
from train.files.served import tokenizer_of

# Recipe fields that determine the samples, and so whether a run can resume on the same data.
_DECIDES = (
    "max_seq_length",
    "max_samples",
    "columns",
    "only_where",
    "loss_on",
    "template_options",
    "on_long_row",
    "eval_fraction",
    "seed",
)


def prepare_path(
    path: Path,
    model_path: Path,
    recipe: Recipe,
    run: RunDir | None = None,
    tools: Tools | None = None,
) -> tuple[PreparedData, PreparedData | None]:
    """Return the tokenised data of a file or folder, and what is held out of them or None.

    They are made now, or found in the cache. Skipped bad rows are listed in the folder of `run`.
    Raises UserError if the data cannot be read, a row is wrong, or nothing is left.
    """
    sources, tools = find_sources(path), tools or load_text_tools(model_path, recipe)
    folder, counts = cached(sources, model_path, recipe, tools)
    check_fits(model_path, counts["max_token_id"], counts["longest_kept"])
    say(summary(path, counts, recipe))
    for line in compare_tokenizers(sources, model_path, recipe, tools):
        say(f"airlock: {path.name}: {line}")
    if counts["num_bad"] and run is not None:
        listed = _free_name(run.data, path.stem, BAD_ROWS)
        lines = (json.dumps(row) + "\n" for row in listed_bad_rows(folder, sources))
        listed.write_text("".join(lines), encoding="ascii")
        num = num_text(counts["num_bad"], "bad row")
        are = "was left out; it is" if counts["num_bad"] == 1 else "were left out; they are"
        say(f"airlock: {num} {are} listed in {listed}")
    if counts["num_samples"] == 0:
        raise nothing_left(path, counts, recipe)
    made_of = {"files": content_of(sources), **decided_by(recipe, model_path)}
    held_out = None
    if counts["num_held_out"]:
        if run is not None:
            rows = folder / HELD_OUT_ROWS
            shutil.copyfile(rows, _free_name(run.data, path.stem, HELD_OUT_ROWS))
        held_out = as_prepared(folder / HELD_OUT, counts, counts["num_held_out"], made_of)
    return as_prepared(folder / TRAIN, counts, counts["num_samples"], made_of), held_out


def _free_name(folder: Path, stem: str, kind: str) -> Path:
    """Return a free path for a list of rows: two files of the same name each get a list."""
    folder.mkdir(exist_ok=True)
    names = (f"{stem}{number or ''}.{kind}" for number in itertools.count())
    return next(folder / name for name in names if not (folder / name).exists())


def decided_by(recipe: Recipe, model_path: Path) -> dict[str, str]:
    """Return all that determines the samples besides the files; the tokenizer as a digest."""
    values = asdict(recipe)
    tokens = {"tokenizer": tokenizer_digest(model_path, recipe)}
    return tokens | {
        ("train." if name == "seed" else "data.") + name: str(values[name]) for name in _DECIDES
    }


def as_prepared(
    file: Path, counts: dict[str, Any], num_samples: int, made_of: dict[str, str]
) -> PreparedData:
    """Return the data that ranks need to open one file of the cache."""
    return PreparedData(
        path=str(file),
        num_samples=num_samples,
        num_too_long=counts["num_too_long"],
        longest=counts["longest_kept"],
        end_token_id=counts["end_token_id"],
        num_tokens=counts["num_tokens"],
        made_of=made_of,
    )


def summary(path: Path, counts: dict[str, Any], recipe: Recipe) -> str:
    """Return a one-line summary that mentions every row left out or taken twice."""
    share = counts["num_loss_tokens"] / max(1, counts["num_tokens"])
    parts = [
        f"data: {path.name}: {counts['columns']}",
        num_text(counts["num_samples"], "sample"),
        f"{counts['num_tokens']:,} tokens, {share:.0%} with loss",
        *left_out(counts, recipe),
    ]
    return "; ".join([*parts, *counts["remarks"]])


def left_out(counts: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Return phrases about the rows that are not trained on as they are."""
    limit = f"{recipe.max_seq_length:,}"
    return [
        what.format(num)
        for name, what in (
            ("num_held_out", "{:,} samples held out"),
            ("num_unwanted", f"{{:,}} rows left out: `{recipe.only_where}` is not true"),
            ("num_too_long", f"{{:,}} left out: more than {limit} tokens"),
            ("num_truncated", f"{{:,}} cut off at {limit} tokens"),
            ("num_split", "{:,} long rows split"),
            (
                "num_rewritten",
                "{:,} conversations split into several samples (earlier turns change)",
            ),
            ("num_unasked", "{:,} answers without loss: no prompt asks for them"),
            ("num_own_marks", "begin or end tokens of {:,} rows are their own: none is added"),
            ("num_duplicates", "{:,} rows are the same as an earlier one, and kept"),
        )
        if (num := counts.get(name))
    ]


def nothing_left(path: Path, counts: dict[str, Any], recipe: Recipe) -> UserError:
    """Return the error for data without a sample to train on."""
    if counts["num_too_long"]:
        return UserError(
            f"{path}: all {counts['num_too_long']} samples are longer than "
            f"{recipe.max_seq_length} tokens",
            do=f"--set data.max_seq_length={counts['longest']}",
            code=ExitCode.DATA,
        )
    what, do = "no samples are left", "./airlock data FILE shows what becomes of the rows"
    if counts["num_held_out"]:
        what, do = "all samples are held out", "a smaller data.eval_fraction"
    if counts["num_unwanted"]:
        what, do = f"no row has a true `{recipe.only_where}`", "another data.only_where"
    if counts["num_bad"]:
        what, do = "all rows are bad", "--set data.on_bad_row=stop tells what is wrong with them"
    return UserError(f"{path}: {what}", do=do, code=ExitCode.DATA)


def load_text_tools(model_path: Path, recipe: Recipe | None = None) -> Tools:
    """Return the tokenizer and the template of a model. Raises UserError if it has no tokenizer."""
    tokenizer = tokenizer_of(model_path)
    recipe = recipe or Recipe(max_seq_length=0)
    options = options_of(recipe.template_options)
    marks = [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    ]
    return tokenizer, Template(model_path, recipe.chat_template, options, marks)


def say(text: str) -> None:
    """Print a line for the user; characters that the terminal cannot show are escaped."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
