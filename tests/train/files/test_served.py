"""The tokenizer of a model is the one that serves it, whatever its tokenizer.json says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tokenizers import decoders

from rundir.data_paths import DataPath
from rundir.errors import ExitCode, UserError
from tests.model_tokenizers import MARKS, QWEN2_SPLIT, TEXTS, auto, ids, of_bytes, of_pieces, saved
from train.data.cache import tokenizer_digest
from train.data.dataset import SampleFile
from train.data.path_samples import load_text_tools, prepare_path
from train.data.samples import Recipe
from train.describe import describe
from train.files import served as served_module
from train.files.content import digest_of
from train.files.served import file_tokenizer, line_about, served, tokenizer_of
from train.model.make_checkpoint import byte_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    served_module._answer.cache_clear()
    yield tmp_path / "cache" / "tokenizers"
    served_module._answer.cache_clear()


LLAMA = {"tokenizer_class": "LlamaTokenizer"}
QWEN2 = {"tokenizer_class": "Qwen2Tokenizer"}
# A tokenizer, the model's type, settings, and whether the class gives other ids than the file.
KINDS: dict[str, tuple[Any, str, dict[str, Any], bool | None]] = {
    "qwen3_5": (of_bytes, "qwen3_5", QWEN2, True),
    "qwen2": (of_bytes, "qwen2", QWEN2, True),
    "gpt2": (lambda: of_bytes(normalize=True), "gpt2", {}, True),
    "llama legacy": (of_pieces, "llama", LLAMA | {"legacy": True}, True),
    "llama": (of_pieces, "llama", LLAMA | {"legacy": False}, True),
    "llama without space": (
        of_pieces,
        "llama",
        LLAMA | {"add_prefix_space": False, "add_bos_token": False},
        True,
    ),
    "gemma": (of_pieces, "gemma", {"tokenizer_class": "GemmaTokenizer"}, True),
    "split marks": (of_bytes, "qwen3", {"split_special_tokens": True}, True),
    # Versions of transformers take different classes.
    "llama of bytes": (of_bytes, "llama", LLAMA, None),
    "plain": (of_bytes, "qwen3", {"tokenizer_class": "TokenizersBackend"}, False),
    "of no type": (of_pieces, "", {}, False),
    # As published, but for the words: the class makes the same, with other settings of offsets.
    "published": (lambda: of_bytes(QWEN2_SPLIT, normalize=True), "qwen2", QWEN2, False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_get_the_ids_that_the_model_is_served_with(tmp_path: Path, kind: str) -> None:
    make, model_type, settings, changes_ids = KINDS[kind]
    made = make()
    made.enable_truncation(3)
    made.enable_padding(length=50, pad_token=made.id_to_token(0))
    folder = saved(tmp_path / "model", made, model_type, **settings)
    ours, theirs = tokenizer_of(folder), auto(folder)
    for text in TEXTS:
        assert ids(ours, text) == ids(theirs, text)
        found, skip = ids(ours, text), {"skip_special_tokens": True}
        assert ours.decode(found, **skip) == theirs.decode(found, **skip)
    assert ours.encode("a").ids == theirs("a")["input_ids"]
    of_file = file_tokenizer(folder)
    assert changes_ids in (None, served(folder).changes_ids)
    assert line_about(folder) is None
    if changes_ids is False:
        assert all(ids(ours, text) == ids(of_file, text) for text in TEXTS)
        assert served(folder).backend == ""


def test_numbers_are_split_into_digits_where_the_models_class_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "model", of_bytes(), "qwen3_5")
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    samples = SampleFile(prepare_path(file, folder, Recipe(max_seq_length=200))[0])
    end, theirs = [file_tokenizer(folder).token_to_id(MARKS[2])], auto(folder)
    ends = [[] if one.rstrip().endswith(MARKS[2]) else end for one in TEXTS]
    expected = [ids(theirs, one) + own for one, own in zip(TEXTS, ends, strict=True)]
    assert [samples[at][0].tolist() for at in range(4)] == expected
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "other tokens" in one)
    assert line.startswith("airlock: data.jsonl: 4 of 4 texts get other tokens from Qwen3_5Token")
    assert "|1|2|3|4|" in line.partition(" becomes ")[2].partition(", not ")[0]
    assert "|1234|" in line.partition(", not ")[2].replace("Ġ", "")
    tools, path = load_text_tools(folder), DataPath(path=str(file), weight=1)
    described = describe(file, folder, Recipe(max_seq_length=200), tools, path)
    assert f"airlock: data.jsonl: {described.counts['remarks'][-1]}" == line


def test_nothing_is_said_where_the_texts_get_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "model", of_bytes(QWEN2_SPLIT), "qwen3_5")
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "in 2024"}\n', encoding="utf-8")
    prepare_path(file, folder, Recipe(max_seq_length=200))
    assert served(folder).changes_ids  # it composes characters, and Indic words are whole
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_tokenizer_of_tiny_is_its_file_and_its_digest_is_that_of_the_files(
    tmp_path: Path,
) -> None:
    make: Any = byte_tokenizer
    make().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    assert served(tmp_path).class_name == "TokenizersBackend"
    assert served(tmp_path).backend == ""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    digests = [*(digest_of(tmp_path / name) for name in names), "none"]
    before = sha256(" ".join(digests).encode()).hexdigest()[:24]  # as runs of earlier versions have
    assert tokenizer_digest(tmp_path, Recipe(max_seq_length=1)) == before


def test_the_digest_changes_with_the_class_and_not_with_the_way_back(tmp_path: Path) -> None:
    made, recipe = of_bytes(QWEN2_SPLIT, normalize=True), Recipe(max_seq_length=1)
    made.decoder = decoders.Fuse()
    folder = saved(tmp_path / "model", made, "qwen2")
    assert served(folder).backend  # it decodes as the class does
    assert not served(folder).changes_ids
    before = tokenizer_digest(folder, recipe)
    (folder / "config.json").write_text('{"model_type": "qwen3_5"}', encoding="utf-8")
    assert served(folder).changes_ids
    assert tokenizer_digest(folder, recipe) != before


def test_a_class_that_cannot_be_loaded_is_said_and_asked_again(tmp_path: Path, cache: Path) -> None:
    settings: dict[str, Any] = {"auto_map": {"AutoTokenizer": ["own.Own", None]}}
    folder = saved(tmp_path / "model", of_bytes(), "", **settings)
    line = line_about(folder)
    assert line is not None
    assert "contains custom code" in line
    assert not list(cache.glob("*"))
    text = TEXTS[0]
    assert ids(tokenizer_of(folder), text) == ids(file_tokenizer(folder), text)


def test_a_class_that_only_python_has_must_agree_with_the_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", of_bytes(), "", tokenizer_class="ByT5Tokenizer")
    with pytest.raises(UserError, match=r"ByT5Tokenizer, .* tokenises 'a' as") as raised:
        tokenizer_of(folder)
    assert raised.value.code == ExitCode.DATA
    assert "TokenizersBackend" in raised.value.do
    settings = json.dumps({"eos_token": MARKS[2], "tokenizer_class": "TokenizersBackend"})
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    assert ids(tokenizer_of(folder), "a") == ids(auto(folder), "a")
