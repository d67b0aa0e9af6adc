"""A tokenizer of another model is found before anything starts; oddities are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from rundir.errors import ExitCode, UserError
from tests.train.data.test_prepare_data import saved_tokenizer
from train.data.fits_model import check_tokenizer

__all__ = ["saved_tokenizer"]  # their fixture


def check(folder: Path, model: Path, *, tokens: dict[str, Any] | None = None, **config: Any) -> str:
    """Check the byte tokenizer (260 ids, the last four special) against that config."""
    folder.mkdir(exist_ok=True)
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps({"vocab_size": 260} | config))
    if tokens is not None:
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        settings = {key: value for key, value in (settings | tokens).items() if value is not None}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return "\n".join(check_tokenizer(folder, tokenizer))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"eos_token_id": 259},
        {"eos_token_id": [259, 258], "pad_token_id": 256},
        {"bos_token_id": None, "pad_token_id": -1},
        {"vocab_size": 300},
        {"vocab_size": 3, "text_config": {"vocab_size": 260, "eos_token_id": 259}},
    ],
)
def test_a_tokenizer_that_belongs_to_its_model_is_nothing_to_speak_of(
    tmp_path: Path, saved_tokenizer: Path, config: dict[str, Any]
) -> None:
    assert check(tmp_path, saved_tokenizer, **config) == ""


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"eos_token_id": 65}, "eos_token_id = 65, which is the ordinary word"),
        ({"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 32000}, "bos_token_id = 1"),
        ({"eos_token_id": 151643, "vocab_size": 152064}, "is no token of the 260 there"),
        ({"eos_token_id": 50256, "vocab_size": 300}, "beyond the model's own vocabulary of 300"),
    ],
)
def test_the_tokenizer_of_another_model_is_refused(
    tmp_path: Path, saved_tokenizer: Path, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says) as raised:
        check(tmp_path, saved_tokenizer, **config)
    assert "is another model's" in str(raised.value)
    assert raised.value.code == ExitCode.DATA


def test_one_wrong_token_beside_a_right_one_is_said_and_no_more(
    tmp_path: Path, saved_tokenizer: Path
) -> None:
    said = check(tmp_path, saved_tokenizer, bos_token_id=65, eos_token_id=259)
    assert "bos_token_id = 65 of the model is the ordinary word" in said


def test_a_vocabulary_of_quite_another_size_is_said(tmp_path: Path, saved_tokenizer: Path) -> None:
    said = check(tmp_path, saved_tokenizer, vocab_size=1000)
    assert "knows 260 tokens, the model 1,000" in said
    said = check(tmp_path, saved_tokenizer, vocab_size=250)
    assert "ids up to 259, the model knows those below 250" in said
    said = check(tmp_path, saved_tokenizer, vocab_size=256)
    assert "4 added tokens beyond the model's 256: the model gets embeddings for them" in said
    assert check(tmp_path, saved_tokenizer, vocab_size=400) == ""


def test_a_missing_padding_token_is_said_not_to_matter(
    tmp_path: Path, saved_tokenizer: Path
) -> None:
    without = {"pad_token": None}
    assert "training needs none" in check(tmp_path, saved_tokenizer, tokens=without)
    assert check(tmp_path, saved_tokenizer, tokens=without, pad_token_id=259) == ""
