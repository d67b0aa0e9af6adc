"""Texts, prompts with answers, conversations: what is trained on, has loss, is left out."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from rundir.errors import UserError
from rundir.paths import RunDir
from tests.train.data.test_prepare_data import asked, cache, file, model, saved_tokenizer
from train.data.cache import cached
from train.data.dataset import SampleFile, marked, short
from train.data.path_samples import load_text_tools, prepare_path
from train.data.samples import Recipe
from train.data.sources import find_sources

__all__ = ["asked", "cache", "file", "model", "saved_tokenizer"]  # their fixtures

# The byte tokenizer's chat template writes <|user|>…<|assistant|>…<|end|>.
TURNS = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "bc"},
    {"role": "user", "content": "d"},
    {"role": "assistant", "content": "e"},
]
# Like Qwen3's, it leaves something out of all answers but the last.
REWRITING = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}<|assistant|>"
    "{% if loop.last %}(think){% endif %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write(file: Path, *rows: Any) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def shown(file: Path, model: Path, **recipe: Any) -> list[str]:
    """Return every training sample as text, with loss in double brackets."""
    prepared, _ = prepare_path(file, model, Recipe(**({"max_seq_length": 100} | recipe)))
    return of_file(SampleFile(prepared), model)


def of_file(samples: SampleFile, model: Path) -> list[str]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [marked(*samples[i], tokenizer=tokenizer) for i in range(len(samples))]


PAIR = "<|user|>p<|assistant|>[[r<|end|>]]"


def test_a_pair_is_taken_before_a_text_and_named_columns_whatever_else_there_is(
    file: Path, model: Path
) -> None:
    chat = {"chat": TURNS[:2]}
    write(file, {"prompt": "x", "text": "t", "response": "y", "q": "p", "a": "r"} | chat)
    assert shown(file, model) == ["<|user|>x<|assistant|>[[y<|end|>]]"]
    assert shown(file, model, columns="q, a") == [PAIR]
    assert shown(file, model, columns="a") == ["[[r<|end|>]]"]
    assert shown(file, model, columns="chat") == ["<|user|>a<|assistant|>[[bc<|end|>]]"]
    with pytest.raises(UserError, match="no column `b`; its columns: a, chat, prompt, q"):
        shown(file, model, columns="q,b")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("text", "text in `messages`, not a list"),
        ([{"content": "a"}], "no `role` in `messages[0]`"),
        ([*TURNS[:1], {"role": "assistant", "content": " "}], "no text in `messages[1].content`"),
    ],
)
def test_a_bad_conversation_is_named_with_its_place(
    file: Path, model: Path, messages: Any, says: str
) -> None:
    write(file, {"messages": TURNS}, {"messages": messages})
    with pytest.raises(UserError) as raised:
        shown(file, model)
    assert str(raised.value).startswith(f"{file}:2: the row has ")
    assert says in str(raised.value)


def test_a_template_that_writes_earlier_turns_anew_makes_a_sample_of_each_answer(
    file: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "chat_template.jinja").write_text(REWRITING)
    write(file, {"messages": TURNS}, {"messages": TURNS[:2]})
    assert shown(file, model) == [
        "<|user|>a<|assistant|>[[(think)bc<|end|>]]",
        "<|user|>a<|assistant|>bc<|end|><|user|>d<|assistant|>[[(think)e<|end|>]]",
        "<|user|>a<|assistant|>[[(think)bc<|end|>]]",
    ]
    assert "1 conversations split into several samples" in capsys.readouterr().out


def test_a_conversation_that_the_template_refuses_is_a_bad_row(file: Path, model: Path) -> None:
    refuse = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text(refuse + template)
    write(file, {"messages": TURNS}, {"messages": [{"role": "system", "content": "s"}, *TURNS]})
    with pytest.raises(
        UserError, match=r":2: the row cannot be rendered by the chat template: .*no system"
    ):
        shown(file, model)
    assert len(shown(file, model, on_bad_row="skip")) == 1


def test_long_texts_are_cut_into_pieces_if_so_asked(
    file: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, {"text": "abcdefghij" * 2}, {"text": "short"}, {"text": "abcdefghijklmnop"})
    assert shown(file, model, max_seq_length=8) == ["[[short<|end|>]]"]
    assert "2 left out: more than 8 tokens" in capsys.readouterr().out
    assert shown(file, model, max_seq_length=8, on_long_row="split") == [
        "[[abcdefgh]]",
        "[[ijabcdef]]",
        "[[ghij<|end|>]]",
        "[[short<|end|>]]",
        "[[abcdefgh]]",
        "[[ijklmnop]]",  # the end mark alone would predict nothing
    ]
    assert "2 long rows split" in capsys.readouterr().out
    write(file, {"prompt": "p", "response": "r"})
    with pytest.raises(UserError, match="on_long_row is split, which is for texts"):
        shown(file, model, on_long_row="split")


def test_bad_rows_are_skipped_counted_and_listed_if_so_asked(
    file: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(b'{"text": "a"}\n{"text": true}\n{"tex\n\xff\n{"text": "b"}\n')
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    for _ in range(2):  # the second time from the cache
        prepared, _ = prepare_path(file, model, Recipe(max_seq_length=9, on_bad_row="skip"), run)
        assert prepared.num_samples == 2
        (listed,) = run.data.iterdir()
        rows = [json.loads(line) for line in listed.read_text().splitlines()]
        assert [row["row"] for row in rows] == [2, 3, 4]
        what = "has a boolean in `text`, not text"
        assert rows[0] == {"file": str(file), "row": 2, "problem": what}
        assert f"3 bad rows were left out; they are listed in {listed}" in capsys.readouterr().out
        listed.unlink()
    file.write_text('{"text": true}\n')
    with pytest.raises(UserError, match="all rows are bad"):
        prepare_path(file, model, Recipe(max_seq_length=9, on_bad_row="skip"))


def test_the_same_rows_are_held_out_whatever_else_is_in_the_data(file: Path, model: Path) -> None:
    rows = [{"prompt": f"p{i}", "response": f"r{i}"} for i in range(400)]

    def held_out(chosen: list[dict[str, str]], seed: int = 0) -> set[str]:
        write(file, *chosen)
        recipe = Recipe(max_seq_length=99, eval_fraction=0.25, seed=seed)
        train, evaluation = prepare_path(file, model, recipe)
        assert evaluation is not None
        samples = SampleFile(evaluation)
        asked = {samples.texts(i)[0] for i in range(len(samples))}
        trained = set(of_file(SampleFile(train), model))
        assert train.num_samples + evaluation.num_samples == len(chosen)
        assert not trained & set(of_file(samples, model))
        return asked

    whole = held_out(rows)
    assert 60 < len(whole) < 140
    assert held_out(rows[::-1] + rows[:50]) == whole  # a row that occurs twice is not on both sides
    assert held_out(rows[200:]) == {f"p{i}" for i in range(200, 400)} & whole
    assert held_out(rows, seed=1) != whole


def test_rows_that_are_there_twice_are_counted(
    file: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, *({"text": text} for text in "abcaab"))
    assert len(shown(file, model)) == 6
    assert "3 rows are the same as an earlier one" in capsys.readouterr().out


@pytest.mark.runs
def test_all_cores_make_the_same_file_as_one_process(
    file: Path, model: Path, asked: dict[str, str], tmp_path: Path
) -> None:
    program = """
import sys
from pathlib import Path
from train.data import cache as data_cache
from train.data.formats import text_format
from train.data.path_samples import prepare_path
from train.data.samples import Recipe
data_cache._SMALL_BYTES, text_format.BLOCK_ROWS = 0, 100
recipe = Recipe(max_seq_length=20, eval_fraction=0.1, max_samples=3450)
for processes in (3, 1):  # it forks before it has threads
    data_cache.num_processes = lambda: processes
    made = Path(prepare_path(Path(sys.argv[1]), Path(sys.argv[2]), recipe)[0].path)
    made.parent.rename(Path(sys.argv[3]) / str(processes))  # so that it is made again
"""
    write(
        file, *({"prompt": "p" * (i % 23), "response": f"r{i}"} for i in range(1, 4000) if i % 23)
    )
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", program, str(file), str(model), str(tmp_path)],
        env=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(line.startswith("data: ") for line in done.stderr.splitlines())  # its progress
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / processes).iterdir()}
        for processes in ("1", "3")
    ]
    assert contents[0].keys() == {
        "samples.arrow",
        "held_out.arrow",
        "held_out.jsonl",
        "bad_rows.jsonl",
        "counts.json",
        ".seal.json",
    }
    assert contents[0] == contents[1]
    assert json.loads(contents[0]["counts.json"])["num_rows"] == 3450


def test_a_sample_file_is_pickled_as_its_name(file: Path, model: Path) -> None:
    write(file, *({"text": f"text {i}"} for i in range(1000)))
    samples = SampleFile(prepare_path(file, model, Recipe(max_seq_length=99))[0])
    pickled = pickle.dumps(samples)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)  # noqa: S301 - our own
    assert np.array_equal(again[999][0], samples[999][0])


def test_a_sample_on_a_terminal_is_one_short_line_that_moves_no_cursor() -> None:
    line = short("a\x1b[2Jb\n" + "größe " * 1000)
    assert line.startswith("a\\x1b[2Jb\\ngröße ")
    assert len(line) < 200
    assert line.isprintable()


def test_bad_rows_are_told_by_the_names_that_their_files_have_now(
    tmp_path: Path, model: Path
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    write(before / "1.jsonl", {"text": "a"}, {"text": "longer than the others"})
    write(before / "2.jsonl", {"text": "b"}, {"text": ""})
    shown(before, model, on_bad_row="skip")
    before.rename(after)
    with pytest.raises(UserError, match=f"{after}/2.jsonl:2: the row has no text") as raised:
        shown(after, model)
    assert f"cat {after}/2.jsonl" in raised.value.do
    tools = load_text_tools(model)
    recipe = Recipe(max_seq_length=100, on_bad_row="skip")
    _, counts = cached(find_sources(after), model, recipe, tools)
    assert counts["longest_rows"][0][:2] == (f"{after}/1.jsonl", 2)


def test_each_of_two_files_of_one_name_has_its_list_of_bad_rows(
    tmp_path: Path, model: Path
) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x.jsonl", {"text": name}, {"text": ""})
        recipe = Recipe(max_seq_length=9, on_bad_row="skip")
        prepare_path(tmp_path / name / "x.jsonl", model, recipe, run)
    listed = sorted(run.data.iterdir())
    assert [file.name for file in listed] == ["x.bad_rows.jsonl", "x1.bad_rows.jsonl"]
    files = [json.loads(file.read_text())["file"] for file in listed]
    assert files == [str(tmp_path / name / "x.jsonl") for name in ("a", "b")]


def test_what_is_too_long_is_cut_off_if_so_asked_unless_nothing_with_loss_is_left(
    file: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, {"prompt": "p", "response": "r" * 50}, {"prompt": "p" * 50, "response": "r"})
    assert shown(file, model, max_seq_length=10, on_long_row="truncate") == [
        "<|user|>p<|assistant|>[[rrrrrrr]]"
    ]
    said = capsys.readouterr().out
    assert "1 left out: more than 10 tokens" in said
    assert "1 cut off at 10 tokens" in said


def test_another_template_or_tokenizer_makes_other_samples(file: Path, model: Path) -> None:
    write(file, {"prompt": "p", "response": "r"})
    recipe = Recipe(max_seq_length=100)
    before = prepare_path(file, model, recipe)[0].made_of
    assert prepare_path(file, model, recipe)[0].made_of == before
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{# new #}")
    after = prepare_path(file, model, recipe)[0].made_of
    assert {key for key in after if after[key] != before[key]} == {"tokenizer"}
