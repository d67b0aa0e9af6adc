"""Data are read, checked and tokenised once; errors in them are reported with their place."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.events import read_events
from rundir.paths import RunDir, create_run
from rundir.prepared import PreparedData, read_prepared
from tests.forked import run_module
from train.data.dataset import SampleFile
from train.data.path_samples import prepare_path
from train.data.samples import Recipe
from train.files import served as served_module
from train.files.served import served
from train.model.make_checkpoint import byte_tokenizer


@pytest.fixture(scope="session")
def saved_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    make: Any = byte_tokenizer
    make().save_pretrained(folder)
    (folder / "config.json").write_text('{"vocab_size": 260}', encoding="utf-8")
    return folder


@pytest.fixture
def model(saved_tokenizer: Path, tmp_path: Path) -> Path:
    """Return a model folder of the test's own, with everything that preparation reads."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in saved_tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def asked(model: Path, cache: Path, environ: dict[str, str]) -> dict[str, str]:
    """Return the environment of programs that need not ask how the model's class tokenises."""
    served_module._answer.cache_clear()
    assert not served(model).problem  # asked here, where transformers is loaded
    return environ | {"AIRLOCK_CACHE_DIR": str(cache.parent)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def prepare_file(
    path: Path, model_path: Path, max_samples: int, max_seq_length: int
) -> PreparedData:
    """Return training data by the default recipe, with the texts of rows."""
    recipe = Recipe(max_samples=max_samples, max_seq_length=max_seq_length, with_texts=True)
    return prepare_path(path, model_path, recipe)[0]


def prepared_by_program(
    run: RunDir, model: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Prepare the data of a run as its launcher has them prepared: in a child."""
    child = ("machine.processes.child", str(os.getpid()), "train.prepare")
    return run_module(*child, str(run.path), str(model), env=env, is_forked=False)


def rows(*pairs: tuple[str, str], **more: Any) -> str:
    return "".join(json.dumps({"prompt": p, "response": r} | more) + "\n" for p, r in pairs)


def decoded(prepared: PreparedData, model: Path) -> list[tuple[str, str]]:
    """Return (prompt, answer) of each sample, as the model sees them."""

    tokenizer, samples = Tokenizer.from_file(str(model / "tokenizer.json")), SampleFile(prepared)
    return [
        (
            tokenizer.decode(tokens[: ranges[0, 0]].tolist(), skip_special_tokens=False),
            tokenizer.decode(
                tokens[ranges[0, 0] : ranges[0, 1]].tolist(), skip_special_tokens=False
            ),
        )
        for tokens, ranges in (samples[i] for i in range(len(samples)))
    ]


PAIRS = [("2 + 5", "7"), ("größe 你好", "🚀"), (" \n spaces \t", "\n a")]


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_rows_become_the_tokens_of_prompt_and_answer_in_their_order(
    file: Path, model: Path, ensure_ascii: bool
) -> None:
    lines = [
        json.dumps({"response": r, "id": 7, "prompt": p}, ensure_ascii=ensure_ascii)
        for p, r in PAIRS
    ]
    file.write_text("\ufeff" + "\n\n \n".join(lines), encoding="utf-8")  # gaps, no last newline
    prepared = prepare_file(file, model, 0, 100)
    assert (prepared.num_samples, prepared.num_too_long) == (3, 0)
    assert decoded(prepared, model) == [
        (f"<|user|>{p}<|assistant|>", f"{r}<|end|>") for p, r in PAIRS
    ]
    assert [SampleFile(prepared).texts(i) for i in range(3)] == PAIRS


def test_marks_that_the_template_writes_are_not_added_again(file: Path, model: Path) -> None:

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single="<|user|> $A <|end|>", special_tokens=[("<|user|>", 257), ("<|end|>", 259)]
    )
    tokenizer.save(str(model / "tokenizer.json"))
    file.write_text(rows(("a", "b")), encoding="utf-8")
    assert decoded(prepare_file(file, model, 0, 100), model) == [
        ("<|user|>a<|assistant|>", "b<|end|>")
    ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{'prompt': 1}", "is not valid JSON"),
        ("\xff\xfe", "is not UTF-8: it has the byte 0xff"),
        ('{"prompt": "a", "answer": "b"}', "no column `response`; its columns: answer, prompt"),
        ("{}", "its columns: none"),
        ('{"prompt": "a", "response": " \\n"}', "no text in `response`"),
    ],
)
def test_a_bad_row_is_named_with_its_file_and_line(
    file: Path, model: Path, row: str, says: str
) -> None:
    file.write_bytes(rows(*PAIRS).encode() + b"\n" + row.encode("latin-1") + b"\n")
    with pytest.raises(UserError) as raised:
        prepare_file(file, model, 0, 100)
    assert str(raised.value).startswith(f"{file}:5: the row ")
    assert says in str(raised.value)
    assert raised.value.code == ExitCode.DATA
    assert raised.value.do.startswith((f"cat {file} | sed -n '5{{p;q}}' | head -c 2000", "iconv"))


def test_rows_that_are_too_long_are_left_out_and_counted(file: Path, model: Path) -> None:
    pairs = [("a" * n, "b") for n in (1, 50, 6, 7, 8)]  # and 3 tokens for marks, 1 for the answer
    file.write_text(rows(*pairs), encoding="utf-8")
    prepared = prepare_file(file, model, 0, 11)
    assert (prepared.num_samples, prepared.num_too_long) == (3, 2)
    samples = SampleFile(prepared)
    assert [len(samples.texts(i)[0]) for i in range(3)] == [1, 6, 7]


def test_when_every_row_is_too_long_the_length_that_would_do_is_said(
    file: Path, model: Path
) -> None:
    file.write_text(rows(("a" * 20, "b"), ("a" * 30, "b")), encoding="utf-8")
    with pytest.raises(UserError, match="all 2 samples are longer than 8 tokens") as raised:
        prepare_file(file, model, 0, 8)
    setting = raised.value.do.removeprefix("--set data.max_seq_length=")
    assert prepare_file(file, model, 0, int(setting)).num_samples == 2


@pytest.mark.parametrize(("limit", "kept"), [(0, 3), (1, 1), (2, 2), (9, 3)])
def test_only_the_first_samples_are_used_if_so_asked(
    file: Path, model: Path, limit: int, kept: int
) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    samples = SampleFile(prepare_file(file, model, limit, 100))
    assert [samples.texts(i) for i in range(len(samples))] == PAIRS[:kept]


def test_the_second_time_nothing_is_made_again(file: Path, model: Path, cache: Path) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    first = prepare_file(file, model, 0, 100)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    file.rename(file.with_name("moved.jsonl"))  # the content counts, not the name
    assert prepare_file(file.with_name("moved.jsonl"), model, 0, 100) == first
    after = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    assert after == before  # the time of the folder itself tells when it was last used


def test_whatever_the_tokens_depend_on_makes_another_file(file: Path, model: Path) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    made = [prepare_file(file, model, limit, longest) for limit in (0, 2) for longest in (90, 100)]
    (model / "chat_template.jinja").write_text(
        "{{ messages[0].content }}{% for m in messages[1:] %}{{ m.content }}<|end|>{% endfor %}"
    )
    made.append(prepare_file(file, model, 0, 100))
    file.write_text(rows(*PAIRS[::-1]), encoding="utf-8")
    made.append(prepare_file(file, model, 0, 100))
    assert len({prepared.path for prepared in made}) == 6
    assert decoded(made[4], model)[0] == (PAIRS[0][0], PAIRS[0][1] + "<|end|>")


def test_a_tokenizer_of_another_model_is_noticed_even_on_a_cached_file(
    file: Path, model: Path
) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    for _ in range(2):
        assert prepare_file(file, model, 0, 100).num_samples == 3  # the highest id is 259
        (model / "config.json").write_text('{"vocab_size": 255}', encoding="utf-8")
        with pytest.raises(UserError, match="token id 259, the model knows ids below 255"):
            prepare_file(file, model, 0, 100)
        (model / "config.json").write_text('{"vocab_size": 260}', encoding="utf-8")


def test_a_sample_longer_than_the_model_takes_is_answered_with_the_length_that_would_do(
    file: Path, model: Path
) -> None:
    file.write_text(rows(("a" * 20, "b"), ("a" * 30, "b")), encoding="utf-8")
    settings = '{"vocab_size": 260, "max_position_embeddings": 30}'
    (model / "config.json").write_text(settings, encoding="utf-8")
    with pytest.raises(UserError, match="a sample has 34 tokens, the model takes 30") as raised:
        prepare_file(file, model, 0, 100)
    setting = raised.value.do.removeprefix("--set data.max_seq_length=").split()[0]
    assert prepare_file(file, model, 0, int(setting)).num_samples == 1


def test_a_model_without_a_fast_tokenizer_is_answered_with_how_to_make_one(
    file: Path, model: Path
) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    (model / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer\.json") as raised:
        prepare_file(file, model, 0, 100)
    assert "save_pretrained" in raised.value.do


@pytest.mark.parametrize("broken", [False, True])
def test_the_program_prepares_a_run_or_says_in_two_lines_why_not(
    file: Path,
    model: Path,
    asked: dict[str, str],
    broken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", asked["AIRLOCK_RUNS_DIR"])
    run, plain = create_run("tiny"), RunConfig(profile="tiny")
    file.write_text("{" if broken else rows(*PAIRS), encoding="utf-8")
    data = replace(plain.data, path=str(file), eval_path=str(file), max_samples=2)
    run.config.write_text(config_text(replace(plain, data=data), {}), encoding="utf-8")
    done = prepared_by_program(run, model, asked)
    kinds = [event["kind"] for event in read_events(run.events)]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert {*kinds[1:-1]} <= {"metric"}  # of its progress, each second
    if broken:
        assert done.returncode == ExitCode.DATA
        assert len(done.stderr.splitlines()) == 2
        assert done.stderr.startswith(f"airlock: {file}:1: the row is not valid JSON")
        return
    assert (done.returncode, done.stderr) == (0, "")
    prepared = read_prepared(run)
    assert prepared.evaluation is not None
    assert (prepared.train.num_samples, prepared.evaluation.num_samples) == (2, 3)
    assert (prepared.model_path, prepared.resume_from) == (str(model), None)


def test_what_a_tokenizer_was_last_used_with_neither_cuts_nor_pads_samples(
    file: Path, model: Path
) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    plain = SampleFile(prepare_file(file, model, 0, 100))
    used = Tokenizer.from_file(str(model / "tokenizer.json"))
    used.enable_truncation(max_length=4)
    used.enable_padding(length=40)
    used.save(str(model / "tokenizer.json"))
    after = SampleFile(prepare_file(file, model, 0, 100))
    for i in range(len(plain)):
        assert after[i][0].tolist() == plain[i][0].tolist()
        assert after[i][1].tolist() == plain[i][1].tolist()


@pytest.mark.parametrize("damage", ["counts.json", "samples.arrow"])
def test_a_cached_file_that_was_damaged_is_made_anew(file: Path, model: Path, damage: str) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    folder = Path(prepare_file(file, model, 0, 100).path).parent
    if damage == "counts.json":
        (folder / damage).unlink()
    else:
        (folder / damage).write_bytes((folder / damage).read_bytes()[:100])
    assert len(SampleFile(prepare_file(file, model, 0, 100))) == len(PAIRS)


def test_a_model_without_a_template_gets_the_bos_that_its_tokenizer_adds_and_an_end(
    file: Path, model: Path
) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    (model / "chat_template.jinja").unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    settings.pop("chat_template", None)
    text = json.dumps(settings | {"bos_token": "<|user|>"})
    (model / "tokenizer_config.json").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    bos, end = tokenizer.token_to_id("<|user|>"), tokenizer.token_to_id("<|end|>")
    tokenizer.post_processor = TemplateProcessing(
        single="<|user|> $A", special_tokens=[("<|user|>", bos)]
    )
    tokenizer.save(str(model / "tokenizer.json"))
    prepared = prepare_file(file, model, 0, 100)
    assert prepared.end_token_id == end
    ids, ((num_prompt_tokens, _),) = SampleFile(prepared)[0]
    assert (ids[0], ids[-1]) == (bos, end)
    assert ids.tolist().count(bos) == 1
    assert num_prompt_tokens == 1 + len(f"{PAIRS[0][0]}\n".encode())


def test_a_model_that_marks_no_end_of_an_answer_is_refused(file: Path, model: Path) -> None:
    file.write_text(rows(*PAIRS), encoding="utf-8")
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(UserError, match="no token marks the end of an answer"):
        prepare_file(file, model, 0, 100)
