"""Read, check and tokenise the data once, before any rank starts; ranks only map the result.

With data.streaming that is left to the ranks, and only some rows are tried (train/prepare_stream).

`python -P -m train.prepare RUN_DIR MODEL_PATH [RESUME_FROM]` writes Arrow files to the cache
(train/data_cache.py). Imports neither torch nor transformers: it costs a second, and can fork as
it likes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.prepared import Prepared, PreparedData, write_prepared
from train.architecture import check_is_causal
from train.arrow_file import BAD_ROWS, HELD_OUT, TRAIN
from train.data_cache import cached
from train.fits_model import check_adapter, check_fits, check_tokenizer, raw_config
from train.prepare_stream import other_data, prepare_stream
from train.preview import preview, short
from train.sources import find_sources
from train.template import Template
from train.tokenise import Recipe


def prepare(run: RunDir, model_path: Path, resume_from: str | None) -> Prepared:
    """Tokenise training and held-out data. Raises UserError for data that cannot be used."""
    config = read_config(run.config)
    check_is_causal(raw_config(model_path), model_path)
    check_adapter(config.train)
    tools = load_text_tools(model_path)
    for line in check_tokenizer(model_path, tools[0]):
        _say(f"airlock: {line}")
    of_train, of_evaluation = recipes(config)
    path, evaluation = _local(config, run, "path"), None
    run.data.mkdir(exist_ok=True)
    if config.data.streaming:
        train, shown, line = prepare_stream(path, model_path, of_train, tools, run)
        _say(line)
    else:
        train, evaluation = prepare_path(path, model_path, of_train, run)
        shown = preview(train, tools[0])
    if resume_from is not None and (other := other_data(Path(resume_from), run)):
        _say(f"airlock: {other}")
    if config.data.eval_path:
        path = _local(config, run, "eval_path")
        evaluation, _ = prepare_path(path, model_path, of_evaluation, run)
    _show(run, shown)
    return Prepared(
        model_path=str(model_path), train=train, evaluation=evaluation, resume_from=resume_from
    )


def _local(config: RunConfig, run: RunDir, field: str) -> Path:
    """Where the files of data.path or data.eval_path are."""
    named: str = getattr(config.data, field)
    return run.data_of_hub(field) if named.startswith("hf:") else Path(named)


def recipes(config: RunConfig) -> tuple[Recipe, Recipe]:
    """How training and held-out data are to be prepared."""
    data = config.data
    of_train = Recipe(
        max_seq_length=data.max_seq_length,
        max_samples=data.max_samples,
        columns=data.columns,
        on_long_row=data.on_long_row,
        on_bad_row=data.on_bad_row,
        eval_fraction=0.0 if data.eval_path else data.eval_fraction,
        # Another seed makes other tokens only where it decides what is held out.
        seed=config.train.seed if data.eval_fraction and not data.eval_path else 0,
    )
    of_evaluation = Recipe(
        max_seq_length=data.max_seq_length,
        columns=data.columns,
        on_long_row=data.on_long_row,
        on_bad_row=data.on_bad_row,
        with_texts=True,
    )
    return of_train, of_evaluation


def prepare_path(
    path: Path, model_path: Path, recipe: Recipe, run: RunDir | None = None
) -> tuple[PreparedData, PreparedData | None]:
    """The tokenised form of a file or folder, made now or found in the cache; what is held out.

    Bad rows that were left out are listed in the folder of `run`. Raises UserError when the data
    cannot be read, a row is wrong, or nothing is left.
    """
    tools = load_text_tools(model_path)
    folder, counts = cached(find_sources(path), model_path, recipe, tools)
    check_fits(model_path, counts["max_token_id"], counts["longest_kept"])
    _say(_summary(path, counts, recipe))
    if counts["num_bad"] and run is not None:
        run.data.mkdir(exist_ok=True)
        listed = run.data / f"{path.stem}.{BAD_ROWS}"
        shutil.copyfile(folder / BAD_ROWS, listed)
        _say(f"airlock: {counts['num_bad']:,} bad rows were left out; they are listed in {listed}")
    if counts["num_samples"] == 0:
        raise _nothing_left(path, counts, recipe)
    held_out = None
    if recipe.eval_fraction:
        held_out = _prepared(folder / HELD_OUT, counts, counts["num_held_out"])
        if not counts["num_held_out"]:
            raise UserError(
                f"{path}: none of {counts['num_samples']} samples is held out by "
                f"data.eval_fraction = {recipe.eval_fraction:g}",
                do="a larger data.eval_fraction, or data.eval_path=FILE",
                code=ExitCode.DATA,
            )
    return _prepared(folder / TRAIN, counts, counts["num_samples"]), held_out


def prepare_file(
    path: Path, model_path: Path, max_samples: int, max_seq_length: int
) -> PreparedData:
    """As `prepare_path`, with the defaults, of data for training; with the texts of its rows."""
    recipe = Recipe(max_samples=max_samples, max_seq_length=max_seq_length, with_texts=True)
    return prepare_path(path, model_path, recipe)[0]


def _prepared(file: Path, counts: dict[str, Any], num_samples: int) -> PreparedData:
    return PreparedData(
        path=str(file),
        num_samples=num_samples,
        num_too_long=counts["num_too_long"],
        longest=counts["longest_kept"],
        end_token_id=counts["end_token_id"],
    )


def _summary(path: Path, counts: dict[str, Any], recipe: Recipe) -> str:
    """What was found, in a line: nothing is left out, or taken twice, unsaid."""
    share = counts["num_loss_tokens"] / max(1, counts["num_tokens"])
    parts = [
        f"data: {path.name}: {counts['columns']}",
        f"{counts['num_samples']:,} samples",
        f"{counts['num_tokens']:,} tokens, {share:.0%} with loss",
    ]
    for name, what in (
        ("num_held_out", "{:,} samples held out"),
        ("num_too_long", f"{{:,}} left out: more than {recipe.max_seq_length:,} tokens"),
        ("num_split", "{:,} long rows split"),
        ("num_rewritten", "{:,} conversations made a sample for each answer (turns are rewritten)"),
        ("num_duplicates", "{:,} rows are the same as an earlier one"),
    ):
        if counts[name]:
            parts.append(what.format(counts[name]))
    return "; ".join(parts)


def _nothing_left(path: Path, counts: dict[str, Any], recipe: Recipe) -> UserError:
    if counts["num_too_long"]:
        return UserError(
            f"{path}: all {counts['num_too_long']} samples are longer than "
            f"{recipe.max_seq_length} tokens",
            do=f"--set data.max_seq_length={counts['longest']}",
            code=ExitCode.DATA,
        )
    what = "all rows are bad" if counts["num_bad"] else "all samples are held out"
    return UserError(f"{path}: {what}", do="--data PATH", code=ExitCode.DATA)


def _show(run: RunDir, shown: list[str]) -> None:
    """Some samples as the model gets to see them: what is wrong with them is seen at a glance."""
    file = run.data / "samples.txt"
    file.write_text("\n\n".join(shown) + "\n", encoding="utf-8")
    _say(f"the first samples, [[what has loss]] in brackets (as they are: {file}):")
    for sample in shown:
        _say(f"  {short(sample)}")


def load_text_tools(model_path: Path) -> tuple[Any, Template]:
    """The tokenizer and the template of a model. Raises UserError when there is no tokenizer."""
    from tokenizers import Tokenizer

    file = model_path / "tokenizer.json"
    if not file.is_file():
        raise UserError(
            f"{model_path} has no tokenizer.json",
            do="save it with AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)",
            code=ExitCode.DATA,
        )
    tokenizer = Tokenizer.from_file(str(file))
    # Both are kept in the file by whoever used them last; they would cut and pad in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, Template(model_path)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Prepare, and write prepared.json. Raises UserError, and OSError for a full disk."""
    run, model_path, resume_from = RunDir(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with EventWriter(run.event_file("prepare")).span("prepare", what="data"):
        prepared = prepare(run, model_path, resume_from[0] if resume_from else None)
        write_prepared(run, prepared)


if __name__ == "__main__":
    main()
