"""A report of what a run would train on, without training.

`python -P -m train.describe RUN_DIR MODEL_PATH [json]` prepares the data of a run's
configuration through the same cache as a run, and shows bad rows rather than stop at the first. If
a run would stop, this ends with the same code.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.units import num_text
from train.data.arrow_file import TRAIN
from train.data.cache import Tools, cached, listed_bad_rows
from train.data.compare_tokenizers import compare_tokenizers
from train.data.dataset import BEGIN, END, SampleFile, preview, short
from train.data.mix import Ingredient, is_mixed, mixture_lines
from train.data.path_samples import as_prepared, left_out, load_text_tools, nothing_left
from train.data.samples import Recipe, recipes
from train.data.sources import find_sources
from train.prepare import held_out_if_enough, paths_of

_NUM_BINS, _BAR = 10, 40  # bins of the histogram; characters in its longest bar
_NUM_BAD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One data path: its counts, the lengths of its samples in tokens, and some samples."""

    name: str
    counts: dict[str, Any]
    lengths: np.ndarray
    shown: list[str]
    bad: list[dict[str, Any]]
    ingredient: Ingredient


def describe(
    path: Path, model_path: Path, recipe: Recipe, tools: Tools, settings: Any
) -> Described:
    """Prepare `path` and describe the result. Raises UserError."""
    sources = find_sources(path)
    folder, counts = cached(sources, model_path, recipe, tools)
    counts["remarks"] += compare_tokenizers(sources, model_path, recipe, tools)
    prepared = as_prepared(folder / TRAIN, counts, counts["num_samples"], {})
    samples = SampleFile(prepared)
    return Described(
        name=settings.name,
        counts=counts,
        lengths=samples.lengths(),
        shown=preview(prepared, tools[0]),
        bad=list(islice(listed_bad_rows(folder, sources), _NUM_BAD)),
        ingredient=Ingredient(name=settings.name, weight=settings.weight, data=prepared),
    )


def show(described: Described, recipe: Recipe, console: Console) -> None:
    """Print everything that was found, for people to read."""
    counts = described.counts
    console.print(Text(described.name, style="bold"))
    rows = f"{num_text(counts['num_rows'], 'row')}, {num_text(counts['num_samples'], 'sample')}"
    share = counts["num_loss_tokens"] / max(1, counts["num_tokens"])
    facts = [
        ("format", ", ".join(counts["formats"])),
        ("columns", counts["columns"]),
        ("rows", rows),
        ("tokens", f"{counts['num_tokens']:,}, {share:.0%} with loss"),
        *(("note", remark) for remark in counts["remarks"]),
        *(("note", phrase) for phrase in left_out(counts, recipe)),
        *(("left out", num_text(counts["num_bad"], "bad row")) for _ in described.bad[:1]),
        *(("  bad row", f"{row['file']}:{row['row']}: {row['problem']}") for row in described.bad),
    ]
    for name, fact in facts:
        console.print(Text(f"  {name:<10}", style="dim") + Text(fact))
    for line in histogram(described.lengths):
        console.print(Text(f"  {line}"))
    for file, row, tokens in counts["longest_rows"]:
        console.print(Text(f"  a longest row: {tokens:,} tokens: {file}:{row}"))
    console.print(Text(f"  the first samples, {BEGIN}what has loss{END} in brackets:"))
    for sample in described.shown:
        console.print(Text(f"    {short(sample)}"))


def histogram(lengths: np.ndarray) -> list[str]:
    """Return the lines of a histogram of sample lengths, in tokens."""
    if not len(lengths):
        return []
    bounds = np.linspace(int(lengths.min()), int(lengths.max()) + 1, _NUM_BINS + 1)
    edges = np.unique(np.ceil(bounds).astype(int))
    numbers, _ = np.histogram(lengths, edges)
    most, lines = numbers.max(), ["tokens of a sample:"]
    for begin, end, number in zip(edges[:-1], edges[1:], numbers, strict=True):
        bar = "█" * max(int(number > 0), round(_BAR * number / most))
        lines.append(f"  {begin:>7,} to {end - 1:>7,}  {number:>9,}  {bar}".rstrip())
    return lines


def as_json(described: Described) -> dict[str, Any]:
    """Return everything that was found as a JSON object; lengths are in tokens."""
    quantiles = [0, 0.5, 0.9, 0.99, 1]
    lengths = described.lengths if len(described.lengths) else np.zeros(1, int)
    return {
        "name": described.name,
        "weight": described.ingredient.weight,
        **described.counts,
        "length_quantiles": dict(
            zip(map(str, quantiles), np.quantile(lengths, quantiles).tolist(), strict=True)
        ),
        "samples": described.shown,
        "bad_rows": described.bad,
    }


def check_would_start(described: Described, path: Path, recipe: Recipe, *, stops: bool) -> None:
    """Raise UserError if a run would stop at these data; `stops`: at a bad row."""
    if described.bad and stops:
        bad, num = described.bad[0], num_text(described.counts["num_bad"], "bad row")
        raise UserError(
            f"a run would stop at {bad['file']}:{bad['row']}: {num}",
            do="mend it, or --set data.on_bad_row=skip leaves bad rows out",
            code=ExitCode.DATA,
        )
    if not len(described.lengths):
        raise nothing_left(path, described.counts, recipe)


def main() -> None:
    """Describe each path, then their mixture. Raises UserError if a run would stop at them."""
    run, model_path = RunDir(Path(sys.argv[1])), Path(sys.argv[2])
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    config = read_config(run.config)
    recipe = replace(recipes(config)[0], on_bad_row="skip")
    tools = load_text_tools(model_path, recipe)
    paths = paths_of(config.data.path, run, "path")
    if config.data.eval_fraction < 0:
        recipe = held_out_if_enough(paths, model_path, recipe, tools)
    all_described = [
        describe(path, model_path, recipe, tools, described) for path, described in paths
    ]
    if sys.argv[3:]:
        sys.stdout.write(
            json.dumps({"files": [as_json(described) for described in all_described]}) + "\n"
        )
    else:
        _show_all(all_described, recipe)
    sys.stdout.flush()
    for described, (path, _) in zip(all_described, paths, strict=True):
        check_would_start(described, path, recipe, stops=config.data.on_bad_row == "stop")


def _show_all(all_described: list[Described], recipe: Recipe) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for described in all_described:
        show(described, recipe, console)
    ingredients = [described.ingredient for described in all_described if len(described.lengths)]
    if ingredients and is_mixed(ingredients):
        for line in mixture_lines(ingredients):
            console.print(Text(line))


if __name__ == "__main__":
    main()
