"""A run has a name, and a profile may be a file of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.request import Request
from launch.config.resolve import resolve
from rundir.paths import create_run, find_run
from tests.conftest import ROOT
from tests.running import Start, finish, here


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a profile in a folder of its own, with data beside it."""
    folder = tmp_path / "my files"
    folder.mkdir()
    text = (ROOT / "profiles/tiny.toml").read_text().replace("examples/tiny/", "")
    (folder / "my own.toml").write_text(text)
    for name in ("train.jsonl", "heldout.jsonl"):
        (folder / name).write_text('{"prompt": "a", "response": "b"}\n')
    return folder / "my own.toml"


def test_a_profile_can_be_a_file_and_its_data_lie_beside_it(own: Path) -> None:
    config, sources = resolve(str(own), [], {})
    assert config.profile == "my-own"
    assert config.data.path == str(own.parent / "train.jsonl")
    assert config.architecture["hidden_size"] == 128
    assert sources["train.max_steps"].startswith("profile ")


def test_a_file_that_is_not_there_is_answered_with_all_that_was_typed(airlock: Start) -> None:
    code, _, err = finish(airlock("run", "none.toml", "--data", "a b"))
    assert code == 2
    assert "there is no file " in err
    assert "→ ./start.sh 14b --data 'a b'" in err


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("27b", ["./start.sh 27b-gemma --data a", "./start.sh 27b-qwen --data a"]),
        ("mistral", ["./start.sh 24b-mistral --data a"]),
        ("33b", ["./start.sh 32b --data a"]),
        ("ax.yaml", ["./start.sh ax.toml --data a"]),
        ("help", ["./start.sh --help"]),
    ],
)
def test_a_word_that_is_no_profile_is_answered_with_those_that_may_be_meant(
    airlock: Start, word: str, expected: list[str]
) -> None:
    code, _, err = finish(airlock("run", word, "--data", "a"))
    assert code == 2
    assert [line.partition("   #")[0] for line in err.split("\n  → ")[1:]][:-1] == expected[:-1]
    assert err.split("\n  → ")[-1].partition("   #")[0].strip() == expected[-1]


def test_the_name_of_a_run_is_in_its_folders_name_and_in_what_is_repeated(
    airlock: Start, own: Path
) -> None:
    code, _, err = finish(airlock("run", str(own), "--name", "a/b"))
    assert code == 2
    assert f"→ ./start.sh '{own}' --name a-b" in err
    assert Request(profile="tiny", name="x").command("./start.sh", {}).endswith("tiny --name x")


def test_a_run_is_found_by_its_name_and_two_of_a_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path / "runs"))
    first, other = create_run("short"), create_run("short-text")
    for run in (first, other):
        run.config.touch()
    assert find_run("short").run_id == first.run_id
    assert find_run("short-text").run_id == other.run_id
    again = create_run("short")
    again.config.touch()
    with pytest.raises(ValueError, match="2 runs are called short: ") as raised:
        find_run("short")
    assert again.run_id in str(raised.value)


@pytest.mark.parametrize(
    ("num_gpus", "settings", "expected"),
    [
        ("4", {"global_batch_size": 64, "micro_batch_size": 2}, "64 samples a step = 4 ranks x 8"),
        ("1", {"global_batch_size": 3, "micro_batch_size": 1}, "= 1 rank x 3 micro-batches x 1 s"),
        ("2", {"global_batch_size": 3, "micro_batch_size": 9}, "in at most 2 ranks x 1 micro-bat"),
    ],
)
def test_the_banner_shows_the_batch_as_a_product(
    airlock: Start, num_gpus: str, settings: dict[str, int], expected: str
) -> None:
    typed = [word for key, value in settings.items() for word in ("--set", f"train.{key}={value}")]
    code, out, err = finish(airlock("run", "tiny", "--dry-run", "--num-gpus", num_gpus, *typed))
    assert code == 0, err
    assert expected in out.splitlines()[0].replace("\N{MULTIPLICATION SIGN}", "x")


def test_a_scripts_run_is_not_resumed_and_what_is_advised_is_what_was_typed(
    airlock: Start, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text("print(1)")
    assert finish(airlock("run", "--num-gpus", "1", "job.py", "--lr", "1"))[0] == 0
    code, _, err = finish(airlock("run", "tiny", "--resume", "latest"))
    assert code == 2
    assert f"is of the script {tmp_path}/job.py" in err
    assert f"→ {here('start.sh')} --num-gpus 1 job.py --lr 1" in err


def test_a_profile_of_airlocks_own_may_be_given_by_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    by_name, _ = resolve("tiny", (), {})
    for path in ("profiles/tiny.toml", "./profiles/../profiles/tiny.toml"):
        assert resolve(path, (), {})[0] == by_name
