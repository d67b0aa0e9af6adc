"""A run has a name, and a profile may be a file of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.job import Job, make_job
from launch.config.records import banner, make_folder
from launch.config.request import Request
from launch.config.resolve import resolve
from launch.config.script_request import read_script
from machine.gpus.devices import Placement
from rundir.paths import create_run, find_run
from tests.conftest import ROOT
from tests.running import Typed, User, here


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


def test_a_profile_can_be_a_file_and_its_data_lie_beside_it(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, sources = resolve(str(own), [], {})
    assert config.profile == "my-own"
    assert config.data.path == str(own.parent / "train.jsonl")
    assert config.architecture["hidden_size"] == 128
    assert sources["train.max_steps"].startswith("profile ")
    monkeypatch.chdir(ROOT)
    by_name, _ = resolve("tiny", (), {})
    for path in ("profiles/tiny.toml", "./profiles/../profiles/tiny.toml"):  # one of Airlock's own
        assert resolve(path, (), {})[0] == by_name


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("27b", ["./start.sh 27b-gemma --data 'a b'", "./start.sh 27b-qwen --data 'a b'"]),
        ("mistral", ["./start.sh 24b-mistral --data 'a b'"]),
        ("33b", ["./start.sh 32b --data 'a b'"]),
        ("ax.yaml", ["./start.sh ax.toml --data 'a b'"]),
        ("none.toml", ["./start.sh 14b --data 'a b'"]),
        ("help", ["./start.sh --help"]),
    ],
)
def test_a_word_that_is_no_profile_is_answered_with_those_that_may_be_meant(
    typed: Typed, word: str, expected: list[str]
) -> None:
    err = typed.error_of("run", word, "--data", "a b")
    assert ("there is no file " in err) == (word == "none.toml")
    assert [do.partition("   #")[0].strip() for do in err.split("\n  → ")[1:]] == expected


def test_the_name_of_a_run_is_in_its_folders_name_and_in_what_is_repeated(
    typed: Typed, own: Path
) -> None:
    err = typed.error_of("run", str(own), "--name", "a/b")
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
    ("num_gpus", "batch", "micro_batch", "expected"),
    [
        (4, 64, 2, "64 samples a step = 4 ranks x 8"),
        (1, 3, 1, "= 1 rank x 3 micro-batches x 1 s"),
        (2, 3, 9, "in at most 2 ranks x 1 micro-bat"),
    ],
)
def test_the_banner_shows_the_batch_as_a_product(
    num_gpus: int, batch: int, micro_batch: int, expected: str
) -> None:
    sizes = (f"train.global_batch_size={batch}", f"train.micro_batch_size={micro_batch}")
    config, sources = resolve("tiny", sizes, {})
    ranks = Placement("cpu", num_gpus, "--num-gpus", ())
    job = Job(config=config, sources=sources, placement=ranks, resume_from=None)
    first, *_ = banner(job).splitlines()
    assert expected in first.replace("\N{MULTIPLICATION SIGN}", "x")


def test_a_scripts_run_is_not_resumed_and_what_is_advised_is_what_was_typed(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user.folder / "job.py").write_text("print(1)")
    script = ("job.py", "--lr", "1")
    monkeypatch.chdir(user.folder)
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", user.environ["AIRLOCK_RUNS_DIR"])
    launch = str(ROOT / "launch/__main__.py")
    monkeypatch.setattr("sys.argv", [launch, "run", "--num-gpus", "1", *script])
    request = Request(profile="", num_gpus=1, script=read_script("job.py", script[1:], ()))
    make_folder(make_job(request, user.environ), user.environ)
    err = user.typed.error_of("run", "tiny", "--resume", "latest")
    assert f"is of the script {user.folder}/job.py" in err
    assert f"→ {here('start.sh')} --num-gpus 1 job.py --lr 1" in err
