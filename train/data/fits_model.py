"""Checks that a tokenizer and a model belong together, from files, before any rank starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rundir.config import TrainConfig
from rundir.errors import ExitCode, UserError
from train.chat.template_files import special_tokens
from train.files.served import line_about

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
_SMALL_SHARE = 0.5  # of the model's vocabulary; published models pad theirs by a few percent
_BELONGS = "use the tokenizer that came with the model"


def check_tokenizer(model_path: Path, tokenizer: Any) -> list[str]:
    """Check a model's tokenizer; return lines to print about it.

    Raises UserError if all special tokens that the model names are ordinary words of the tokenizer,
    or missing there: then it belongs to another model.
    """
    config = model_config(model_path)
    vocab_size = config.get("vocab_size")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    named = dict(_named(config))
    problems = {
        name: problem
        for name, token_id in named.items()
        if (problem := _problem(tokenizer, vocabulary, token_id, vocab_size))
    }
    if problems and len(problems) == len(named):
        name, problem = next(iter(problems.items()))
        raise UserError(
            f"the tokenizer of {model_path} is another model's: config.json has {name} = "
            f"{named[name]}, which {problem}",
            do=f"{_BELONGS}, or mend {name} in config.json",
            code=ExitCode.DATA,
        )
    lines = [f"{name} = {named[name]} of the model {problem}" for name, problem in problems.items()]
    if isinstance(vocab_size, int):
        lines += _size_lines(vocabulary, vocab_size, num_tokens(model_path, vocab_size))
    if line := line_about(model_path):
        lines.append(line)
    if pad_token_id(model_path, tokenizer) is None and named.get("pad_token_id") is None:
        lines.append(
            "the tokenizer has no padding token: training needs none, and generation_config.json "
            "of the trained model names its end token for it"
        )
    return lines


def _size_lines(vocabulary: dict[str, int], vocab_size: int, num_grown: int) -> Iterator[str]:
    most = max(vocabulary.values(), default=0)
    if len(vocabulary) < vocab_size * _SMALL_SHARE:
        yield (
            f"the tokenizer knows {len(vocabulary):,} tokens, the model {vocab_size:,}: is it the "
            "model's own?"
        )
    if num_grown:
        yield (
            f"the tokenizer has {num_grown - vocab_size} added tokens beyond the model's "
            f"{vocab_size:,}: the model gets embeddings for them, which begin as the mean of all"
        )
    elif most >= vocab_size:
        yield (
            f"the tokenizer has ids up to {most:,}, the model knows those below {vocab_size:,}: no "
            "sample may use more"
        )


def check_fits(model_path: Path, max_token_id: int, longest_kept: int) -> None:
    """Raise UserError for token ids or positions that the model has no embedding for."""
    model = model_config(model_path)
    vocab_size, num_positions = model.get("vocab_size"), model.get("max_position_embeddings")
    if isinstance(vocab_size, int):
        vocab_size = max(vocab_size, num_tokens(model_path, vocab_size))
    if isinstance(vocab_size, int) and max_token_id >= vocab_size:
        raise UserError(
            f"the tokenizer of {model_path} gives token id {max_token_id}, the model "
            f"knows ids below {vocab_size}: they do not belong together",
            do=_BELONGS,
            code=ExitCode.DATA,
        )
    if isinstance(num_positions, int) and longest_kept > num_positions:
        raise UserError(
            f"a sample has {longest_kept} tokens, the model takes {num_positions}",
            do=f"--set data.max_seq_length={num_positions} leaves longer ones out",
            code=ExitCode.DATA,
        )


def check_adapter(config: TrainConfig) -> None:
    """Raise UserError if `train.adapter` is not a folder of LoRA adapters."""
    if not config.adapter:
        return
    if config.method == "full":
        raise UserError(
            f"train.adapter = {config.adapter}: with train.method = full there are no adapters",
            do="--set train.method=lora",
            code=ExitCode.USAGE,
        )
    file = Path(config.adapter) / "adapter_config.json"
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("peft_type")
        what = None if kind == "LORA" else f"its adapters are {kind}, only LORA's can be trained on"
    except (OSError, ValueError, AttributeError) as error:
        what = f"no folder of adapters: {file.name}: {getattr(error, 'strerror', None) or error}"
    if what:
        raise UserError(
            f"train.adapter = {config.adapter}: {what}",
            do="a folder that peft has saved, such as runs/…/adapter",
            code=ExitCode.PREFLIGHT,
        )


def num_tokens(folder: Path, vocab_size: int) -> int:
    """Return how many embeddings the tokenizer in `folder` needs; 0 if `vocab_size` is enough.

    Only added tokens count: a vocabulary that is larger by itself belongs to another model.
    """
    try:
        made = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        added = {int(token["id"]) for token in made.get("added_tokens", ())}
        words = made["model"].get("vocab", ())
        own = words.values() if isinstance(words, dict) else range(len(words))
        most = max(set(own) - added, default=-1)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # reported where it is read
        return 0
    num = max(added, default=-1) + 1
    return num if most < vocab_size < num else 0


def model_config(model_path: Path) -> dict[str, Any]:
    """Return config.json; for a multimodal model, with the values of its text part."""
    config = raw_config(model_path)
    inner = config.get("text_config")
    return config | inner if isinstance(inner, dict) else config


def raw_config(model_path: Path) -> dict[str, Any]:
    """Return config.json unchanged."""
    config: dict[str, Any] = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    return config


def _named(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the special tokens that a model names; some configs have -1 for none."""
    for name in _SPECIAL:
        ids = config.get(name)
        for token_id in ids if isinstance(ids, list) else [ids]:
            if isinstance(token_id, int) and token_id >= 0:
                yield name, token_id


def _problem(
    tokenizer: Any, vocabulary: dict[str, int], token_id: int, vocab_size: Any
) -> str | None:
    """Return what is wrong with the id of a special token; None if nothing is."""
    if isinstance(vocab_size, int) and token_id >= vocab_size:
        return f"is beyond the model's own vocabulary of {vocab_size}"
    token = tokenizer.id_to_token(token_id)
    if token is None:
        return f"is no token of the {len(vocabulary):,} there"
    marked = token_id in tokenizer.get_added_tokens_decoder()
    if marked or (token[:1], token[-1:]) in (("<", ">"), ("[", "]")):
        return None
    return f"is the ordinary word {token!r} there"


def pad_token_id(model_path: Path, tokenizer: Any) -> int | None:
    """Return the id of the padding token that a tokenizer names; None if it names none."""
    pad_id: int | None = tokenizer.token_to_id(special_tokens(model_path)["pad_token"])
    return pad_id
