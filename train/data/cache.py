"""The cache of tokenised data, keyed by everything the data depend on.

An entry is complete: it is written under another name, synced to disk and renamed. If two runs want
the same entry, one prepares it and the other waits; on file systems whose locks exclude nobody,
both prepare it, and the first to finish wins.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from rundir.atomic import new_folder, remove_abandoned
from rundir.errors import ExitCode, UserError
from rundir.paths import cache_folder
from rundir.seal import is_sealed, seal, use_sealed
from train.chat.bad_row import BadRowError
from train.chat.template import Template
from train.data.arrow_file import BAD_ROWS, Writer
from train.data.columns import LINES, Columns, check_settings, find_columns, unused
from train.data.formats.format import Block
from train.data.formats.known import NEEDED, read_blocks
from train.data.formats.source import Source
from train.data.pool import in_order, num_processes
from train.data.reading_progress import ReadingProgress
from train.data.rows import parsed
from train.data.samples import Recipe
from train.data.sources import bad_row
from train.data.tokenise import Tokeniser
from train.files.content import digest_of
from train.files.served import served

_FORMAT = "8"  # of its files; part of the cache key
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)
_SMALL_BYTES = 4 << 20  # finished before other processes could start
_POLL_S = 0.1
_REMIND_S = 30.0

Tools = tuple[Any, Template]


def cached(
    sources: list[Source], model_path: Path, recipe: Recipe, tools: Tools
) -> tuple[Path, dict[str, Any]]:
    """Return the folder of prepared data and its counts; make it if it is missing or damaged.

    Raises UserError for unusable data, and OSError for a full disk.
    """
    parent = cache_folder() / "data"
    folder = parent / _key(sources, model_path, recipe)
    if not use_sealed(folder):
        parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            remove_abandoned(parent)
            _make(folder, sources, recipe, tools)
    counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    counts["longest_rows"] = [
        (str(sources[number].path), row, tokens) for number, row, tokens in counts["longest_rows"]
    ]
    if counts["num_bad"] and recipe.on_bad_row == "stop":
        raise _first_bad_row(folder, sources)
    return folder, counts


def listed_bad_rows(folder: Path, sources: Sequence[Source]) -> Iterator[dict[str, Any]]:
    """Yield the bad rows of prepared data, under the current names of their files."""
    with (folder / BAD_ROWS).open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield row | {"file": str(sources[row.pop("source")].path)}


def _first_bad_row(folder: Path, sources: Sequence[Source]) -> UserError:
    line = next(listed_bad_rows(folder, sources))
    (source,) = {file for file in sources if str(file.path) == line["file"]}
    return bad_row(source, line["row"], line["problem"], line.get("do", ""))


def _make(folder: Path, sources: list[Source], recipe: Recipe, tools: Tools) -> None:
    # In this order: an entry that another run adds in between is complete from the first moment.
    if folder.exists() and not is_sealed(folder):
        shutil.rmtree(folder)
    if folder.exists():
        return
    with new_folder(folder) as temporary:
        counts = _tokenise(sources, recipe, tools, temporary)
        (temporary / "counts.json").write_text(json.dumps(counts), encoding="utf-8")
        seal(temporary)


def content_of(sources: list[Source]) -> str:
    """Return a digest of file contents, in order. Raises UserError if one cannot be read."""
    digest = hashlib.sha256()
    try:
        for source in sources:
            digest.update(f"{source.format} {digest_of(source.path)}/".encode())
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}",
            do=f"--data PATH: {NEEDED}",
            code=ExitCode.DATA,
        ) from error
    return digest.hexdigest()[:24]


def _key(sources: list[Source], model_path: Path, recipe: Recipe) -> str:
    # on_bad_row is not part of the key: without bad rows both settings give the same data.
    recipe = replace(recipe, on_bad_row="stop")
    made_of = f"{_FORMAT} {sorted(asdict(recipe).items())} {content_of(sources)}"
    digest = hashlib.sha256(made_of.encode())
    digest.update(tokenizer_digest(model_path, recipe).encode())
    return digest.hexdigest()[:24]


def tokenizer_digest(model_path: Path, recipe: Recipe) -> str:
    """Return a digest of the tokenizer that is used, and of the chat template."""
    files = [model_path / name for name in _TOKENIZER_FILES]
    if recipe.chat_template:
        files.append(Path(recipe.chat_template))
    digests = [digest_of(file) if file.is_file() else "none" for file in files]
    if (model_class := served(model_path)).changes_ids:
        digests.append(model_class.digest)
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:24]


def _tokenise(sources: list[Source], recipe: Recipe, tools: Tools, folder: Path) -> dict[str, Any]:
    """Write the files of `folder`; return the counts."""
    sizes = [source.path.stat().st_size for source in sources]
    progress, source_at = ReadingProgress(sum(sizes)), {source.path: source for source in sources}
    done_bytes = dict.fromkeys(source_at, 0)
    blocks = _blocks(sources, recipe.max_samples)
    first = next(blocks, None)
    if first is None:
        raise UserError(
            f"{sources[0].path} has no rows", do=f"--data PATH: {NEEDED}", code=ExitCode.DATA
        )
    columns = columns_of_first(first, recipe, sources[0])
    end_token_id = end_token_id_of(columns, *tools)
    tokeniser = Tokeniser(*tools, recipe, columns)
    processes = num_processes() if sum(sizes) > _SMALL_BYTES else 1
    with (
        closing(in_order(tokeniser, chain([first], blocks), processes)) as all_made,
        Writer(folder, list(source_at), with_held_out=recipe.eval_fraction > 0) as writer,
    ):
        for made in all_made:
            if made.encoded.bad and recipe.on_bad_row == "stop":
                number, error = made.encoded.bad[0]
                raise bad_row(source_at[made.path], number, error.what, error.do)
            writer.add(made)
            done_bytes[made.path] = made.at_bytes
            progress.at(sum(done_bytes.values()), writer.num_rows)
        progress.end()
        counts: dict[str, Any] = writer.counts()
    return counts | {
        "end_token_id": end_token_id,
        "formats": sorted({source.name for source in sources}),
        "columns": str(columns),
        "remarks": remarks(writer.seen, columns, recipe, tools[1]),
    }


def remarks(seen: set[str], columns: Columns, recipe: Recipe, template: Template) -> list[str]:
    """Return remarks to print beside the counts: unused columns, and the template's note."""
    lines = []
    if left := unused(seen - {recipe.only_where}, columns, template.writes):
        lines.append(f"not used: {', '.join(left)}")
    if columns.kind in ("pair", "messages") and template.note:
        lines.append(template.note)
    return lines


def columns_of_first(first: Block, recipe: Recipe, source: Source) -> Columns:
    """Return the columns of the first readable row; no other row decides what is meant.

    Raises UserError if they are not known, or cannot be used as the recipe says.
    """
    columns = LINES
    for _, raw in first:
        try:
            row = parsed(raw)
        except BadRowError:
            continue
        try:
            columns = find_columns(row, recipe.columns, only_where=recipe.only_where)
        except BadRowError as error:
            raise bad_row(source, first.numbers[0], error.what, error.do) from error
        break
    check_settings(columns, recipe.on_long_row)
    return columns


def _blocks(sources: list[Source], max_samples: int) -> Iterator[Block]:
    """Yield all blocks of all files, or those of the first `max_samples` rows."""
    left = max_samples or sys.maxsize
    for source in sources:
        for block in read_blocks(source):
            yield block if len(block.numbers) <= left else block.cut(left)
            left -= len(block.numbers)
            if left <= 0:
                return


def end_token_id_of(columns: Columns, tokenizer: Any, template: Template) -> int:
    """Return the token after an answer, or after a text, at which generation ends.

    Raises UserError if there is none.
    """
    if columns.kind in ("text", "segments"):
        end = template.text_end_id(tokenizer)
        if end is not None:
            return end
    after = template.after_answer()
    ids: list[int] = tokenizer.encode(after, add_special_tokens=False).ids
    marks = tokenizer.get_added_tokens_decoder()
    end = next((token for token in ids if token in marks), None)
    if end is None:
        what = f"there is only {after!r}" if after else "there is nothing"
        raise UserError(
            f"no token marks the end of an answer, so none would ever end: after it {what}",
            do="set eos_token in tokenizer_config.json where the model has no template; else "
            "--set data.chat_template=FILE, one that writes an end token",
            code=ExitCode.DATA,
        )
    return end


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other runs from preparing the same data at the same time, as far as locks can."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    started, wait_s = time.monotonic(), 0.0
    while True:
        try:
            lock.acquire(timeout=wait_s, poll_interval=_POLL_S)
            break
        except Timeout:
            waited_s, wait_s = time.monotonic() - started, _REMIND_S
            what = "data: another run prepares the same: waiting for it"
            sys.stderr.write(f"{what}, {waited_s:.0f} s so far\n")
        except (NotImplementedError, OSError):
            break  # a file system without locks: see the module's docstring
    try:
        yield
    finally:
        lock.release()
