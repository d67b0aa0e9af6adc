"""Read, check and tokenise the data once, before any rank starts; ranks only map the result.

`python -P -m train.prepare RUN_DIR MODEL_PATH [RESUME_FROM]` writes Arrow files to the cache, named
after everything they depend on, so that the next run with the same data and tokenizer finds them.
Imports neither torch nor transformers: it costs a second, and can fork or thread as it likes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rundir.atomic import new_folder
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, cache_folder
from rundir.prepared import Prepared, PreparedData, write_prepared
from rundir.seal import is_sealed, seal
from train.rows import read_rows
from train.template import Template

_FORMAT = "3"  # of the Arrow file; part of the cache's key
_BATCH_ROWS = 4096
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def prepare(run: RunDir, model_path: Path, resume_from: str | None) -> Prepared:
    """Tokenise training and held-out data. Raises UserError for data that cannot be used."""
    config = read_config(run.config)
    limit, longest = config.data.max_samples, config.data.max_seq_length
    train = prepare_file(Path(config.data.path), model_path, limit, longest)
    evaluation = None
    if config.data.eval_path:
        evaluation = prepare_file(Path(config.data.eval_path), model_path, 0, longest)
    return Prepared(
        model_path=str(model_path), train=train, evaluation=evaluation, resume_from=resume_from
    )


def prepare_file(
    path: Path, model_path: Path, max_samples: int, max_seq_length: int
) -> PreparedData:
    """The tokenised form of one JSONL file, made now or found in the cache.

    `max_samples` 0 is all; samples of more than `max_seq_length` tokens are left out and counted.
    Raises UserError when the file cannot be read, a row is wrong, or nothing is left.
    """
    key = _cache_key(path, model_path, max_samples, max_seq_length)
    folder = cache_folder() / "data" / key
    if not is_sealed(folder):
        shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as temporary:
            counts = _tokenise(
                path, model_path, max_samples, max_seq_length, temporary / "samples.arrow"
            )
            (temporary / "counts.json").write_text(json.dumps(counts), encoding="utf-8")
            seal(temporary)
    counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    _check_fits_model(model_path, counts)
    if counts["num_samples"] == 0:
        raise UserError(
            f"{path}: all {counts['num_too_long']} samples are longer than {max_seq_length} tokens",
            do=f"--set data.max_seq_length={counts['longest']}",
            code=ExitCode.DATA,
        )
    return PreparedData(
        path=str(folder / "samples.arrow"),
        num_samples=counts["num_samples"],
        num_too_long=counts["num_too_long"],
        longest=counts["longest_kept"],
        end_token_id=counts["end_token_id"],
    )


def _check_fits_model(model_path: Path, counts: dict[str, int]) -> None:
    """Raise UserError for token ids or positions that the model has no embedding for."""
    model = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    vocab_size, num_positions = model.get("vocab_size"), model.get("max_position_embeddings")
    if isinstance(vocab_size, int) and counts["max_token_id"] >= vocab_size:
        raise UserError(
            f"the tokenizer of {model_path} gives token id {counts['max_token_id']}, the model "
            f"knows ids below {vocab_size}: they do not belong together",
            do="use the tokenizer that came with the model",
            code=ExitCode.DATA,
        )
    if isinstance(num_positions, int) and counts["longest_kept"] > num_positions:
        raise UserError(
            f"a sample has {counts['longest_kept']} tokens, the model takes {num_positions}",
            do=f"--set data.max_seq_length={num_positions} leaves longer ones out",
            code=ExitCode.DATA,
        )


def _cache_key(path: Path, model_path: Path, *settings: int) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {settings}".encode())
    try:
        for file in (path, *(model_path / name for name in _TOKENIZER_FILES)):
            if file == path or file.is_file():
                with file.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
            digest.update(b"/")
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}",
            do="--data PATH names a .jsonl file with `prompt` and `response` in every row",
            code=ExitCode.DATA,
        ) from error
    return digest.hexdigest()[:24]


def _tokenise(
    path: Path, model_path: Path, max_samples: int, max_seq_length: int, out: Path
) -> dict[str, int]:
    """Write `out`, a row a sample; returns its counts.

    Columns: input_ids (int32 list, prompt then answer), num_prompt_tokens (of input_ids, how many
    are the prompt's), prompt and response (text).
    """
    import pyarrow as pa

    schema = pa.schema([
        ("input_ids", pa.list_(pa.int32())), ("num_prompt_tokens", pa.int32()),
        ("prompt", pa.string()), ("response", pa.string()),
    ])  # fmt: skip
    counts = dict.fromkeys(
        ("num_samples", "num_too_long", "longest", "longest_kept", "max_token_id"), 0
    )
    with pa.OSFile(str(out), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _encoded_batches(path, model_path, max_samples):
            fitting = [row for row in batch if len(row["input_ids"]) <= max_seq_length]
            _count(counts, batch, fitting)
            writer.write_batch(pa.RecordBatch.from_pylist(fitting, schema=schema))
    counts["end_token_id"] = _end_token_id(model_path)
    if counts["longest"] == 0:
        raise UserError(f"{path} has no rows", do="--data PATH", code=ExitCode.DATA)
    return counts


def _end_token_id(model_path: Path) -> int:
    """The token that the template writes right after an answer: where a generated one ends."""
    tokenizer, template = load_text_tools(model_path)
    suffix = template.after_answer()
    ids: list[int] = tokenizer.encode(suffix, add_special_tokens=False).ids
    if not ids:
        raise UserError(
            f"{model_path}: nothing marks the end of an answer, so none would ever end",
            do="set eos_token in tokenizer_config.json, or mend its chat template",
            code=ExitCode.DATA,
        )
    return ids[0]


def _count(counts: dict[str, int], rows: list[dict[str, Any]], kept: list[dict[str, Any]]) -> None:
    counts["num_samples"] += len(kept)
    counts["num_too_long"] += len(rows) - len(kept)
    for name, some in (("longest", rows), ("longest_kept", kept)):
        counts[name] = max([counts[name], *(len(row["input_ids"]) for row in some)])
    largest = (max(row["input_ids"], default=0) for row in rows)
    counts["max_token_id"] = max([counts["max_token_id"], *largest])


def _encoded_batches(
    path: Path, model_path: Path, max_samples: int
) -> Iterator[list[dict[str, Any]]]:
    """Rows as they are stored, tokenised in batches by the tokenizer's own threads."""
    tokenizer, template = load_text_tools(model_path)
    before_all = template.leading_ids(tokenizer)
    for rows in _batched(read_rows(path), max_samples):
        texts = [template.render(prompt, response) for _, prompt, response in rows]
        # The template has written the special tokens; adding them again would double them.
        prompts = tokenizer.encode_batch([before for before, _ in texts], add_special_tokens=False)
        answers = tokenizer.encode_batch([after for _, after in texts], add_special_tokens=False)
        yield [
            {
                "input_ids": before_all + prompt_ids.ids + answer_ids.ids,
                "num_prompt_tokens": len(before_all) + len(prompt_ids.ids),
                "prompt": prompt,
                "response": response,
            }
            for (_, prompt, response), prompt_ids, answer_ids in zip(
                rows, prompts, answers, strict=True
            )
        ]


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


def _batched(
    rows: Iterator[tuple[int, str, str]], max_samples: int
) -> Iterator[list[tuple[int, str, str]]]:
    from itertools import islice

    rows = islice(rows, max_samples or None)
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield batch


def main() -> None:
    """Prepare, and write prepared.json. Raises UserError, and OSError for a full disk."""
    run, model_path, resume_from = RunDir(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:]
    with EventWriter(run.event_file("prepare")).span("prepare", what="data"):
        prepared = prepare(run, model_path, resume_from[0] if resume_from else None)
        write_prepared(run, prepared)


if __name__ == "__main__":
    main()
