"""The run folder: made once, found again, and its status, requests and checkpoints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from rundir.checkpoints import MARKER, checkpoint_name, complete_checkpoints, step_of
from rundir.control import ask, is_asked
from rundir.paths import RunDir, cache_folder, create_run, find_run, runs_folder, shown
from rundir.prepared import Prepared, PreparedData, read_prepared, write_prepared
from rundir.schema import PHASES, RANK_PHASES, VERSION
from rundir.status import RankStatus, Status, read_status, write_status

# Makes ten runs as soon as its stdin closes, and prints their ids.
CREATOR = """
import sys
from rundir.paths import create_run
sys.stdin.read()
for _ in range(10):
    print(create_run("tiny").run_id)
"""


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


def made(run: RunDir) -> RunDir:
    """Complete a run far enough to be found."""
    run.config.touch()
    return run


def test_a_new_run_has_a_name_of_its_own_and_its_folders_and_is_the_latest(runs: Path) -> None:
    run = create_run("tiny")
    assert re.fullmatch(r"\d{8}-\d{6}-tiny-[0-9a-f]{4}", run.run_id)
    for folder in (run.events, run.control, run.checkpoints, run.agent_log.parent):
        assert folder.is_dir()
    for newest in (run, create_run("tiny"), create_run("14b")):
        assert newest.path.parent == runs
    assert (runs / "latest").resolve() == newest.path
    assert not (runs / "latest").readlink().is_absolute()  # the folder can be moved as a whole


def test_a_name_that_is_taken_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("rundir.paths.secrets.token_hex", lambda _: next(names))
    monkeypatch.setattr("rundir.paths.time.strftime", lambda _: "20261121-120000")
    assert [create_run("tiny").run_id[-4:] for _ in range(2)] == ["aaaa", "bbbb"]


def test_runs_made_at_once_are_distinct_and_latest_is_one_of_the_last(
    environ: dict[str, str], runs: Path
) -> None:
    earlier = create_run("tiny").run_id
    creators = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", CREATOR],
            env=environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.close()
        creator.stdin = None
    while any(creator.poll() is None for creator in creators):
        assert (runs / "latest").resolve(strict=True).is_dir()  # it never dangles
    ids = [creator.communicate()[0].split() for creator in creators]
    assert [creator.returncode for creator in creators] == [0] * 4
    assert len({run_id for own in ids for run_id in own}) == 40
    assert (runs / "latest").resolve().name in {own[-1] for own in ids}
    assert sorted(path.name for path in runs.iterdir()) == sorted(
        [*(run_id for own in ids for run_id in own), earlier, "latest"]
    )


def test_a_run_is_found_by_path_by_id_and_as_latest(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = made(create_run("tiny")), made(create_run("14b"))
    monkeypatch.chdir(runs)
    for name in (str(first.path), first.run_id, f"./{first.run_id}", f"{first.path}/"):
        assert find_run(name).path == first.path
    assert find_run("latest").path == second.path
    assert find_run(str(runs / "latest")).run_id == second.run_id


@pytest.mark.parametrize("name", ["latest", "none", "/nowhere/at/all", "../runs"])
def test_a_run_that_is_not_there_is_an_error_that_names_the_folder(runs: Path, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no run {name!r}")) as raised:
        find_run(name)
    assert str(runs) in str(raised.value)


def test_runs_and_cache_lie_in_the_clone_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clone = Path(__file__).resolve().parents[2]
    for empty in ("", None):
        for name in ("AIRLOCK_RUNS_DIR", "AIRLOCK_CACHE_DIR"):
            monkeypatch.delenv(name, raising=False)
            if empty is not None:
                monkeypatch.setenv(name, empty)
        assert (runs_folder(), cache_folder()) == (clone / "runs", clone / ".cache")
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", "there")
    assert cache_folder() == Path.cwd() / "there"


def test_no_two_things_of_a_run_share_a_path(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    named = [path for name in vars(RunDir) if isinstance(path := getattr(run, name), Path)]
    named.remove(run.path)
    assert len(named) > 20
    named += [run.event_file("launch"), run.event_file("rank0"), run.event_file("rank1")]
    named += [run.rank_log(rank, attempt) for rank in (0, 1) for attempt in (0, 1)]
    named += [run.evolution("a", 1), run.evolution("a", 2), run.evolution("b", 1)]
    assert len(set(named)) == len(named)
    assert all(path.is_relative_to(tmp_path) for path in named)


def test_what_is_written_as_status_is_read_again() -> None:
    run = create_run("tiny")
    ranks = [RankStatus(rank=0, phase="training", pid=7, rss_bytes=1), RankStatus(rank=1)]
    status = Status(run_id=run.run_id, profile="tiny", phase="training", loss=0.5, ranks=ranks)
    write_status(run, status)
    table = read_status(run)
    assert table.pop("v") == VERSION
    assert table == asdict(status)
    assert [set(row) for row in table["ranks"]] == [{item.name for item in fields(RankStatus)}] * 2


def test_every_phase_of_the_table_can_be_written_and_no_other() -> None:
    run, ranks = create_run("tiny"), [RankStatus(rank=0, phase="preparing")]
    for phase in (*sorted({*RANK_PHASES} - {*PHASES}), "", "Training"):
        with pytest.raises(AssertionError):
            write_status(run, Status(run_id="", profile="", phase=phase))
    with pytest.raises(AssertionError):
        write_status(run, Status(run_id="", profile="", ranks=ranks))
    with pytest.raises(FileNotFoundError):  # nothing was written yet
        read_status(run)
    for phase in PHASES:
        write_status(run, Status(run_id="", profile="", phase=phase))
        assert read_status(run)["phase"] == phase


def test_only_whole_checkpoints_count_oldest_first(tmp_path: Path) -> None:
    for step in (100, 20, 3, 99_999_999):
        (tmp_path / checkpoint_name(step)).mkdir()
        (tmp_path / checkpoint_name(step) / MARKER).touch()
    (tmp_path / checkpoint_name(200)).mkdir()  # torn: without its marker
    (tmp_path / f".{checkpoint_name(300)}.abc").mkdir()  # still being made
    (tmp_path / f".{checkpoint_name(300)}.abc" / MARKER).touch()
    steps = [step_of(path) for path in complete_checkpoints(tmp_path)]
    assert steps == [3, 20, 100, 99_999_999]
    assert complete_checkpoints(tmp_path / "none") == []


def test_a_request_stands_once_it_is_made() -> None:
    run = create_run("tiny")
    assert not is_asked(run, "pause")
    for _ in range(2):
        ask(run, "pause")
    assert [path.name for path in run.control.iterdir()] == ["pause"]
    assert is_asked(run, "pause")
    assert not is_asked(run, "stop")


@pytest.mark.parametrize("with_evaluation", [True, False])
def test_what_was_prepared_is_read_again(with_evaluation: bool) -> None:
    run = create_run("tiny")
    data = PreparedData(path="/größe", num_samples=5, num_too_long=2, longest=3, end_token_id=9)
    held_out, resumed = (data, None) if with_evaluation else (None, "/c")
    prepared = Prepared(model_path="/m", train=data, evaluation=held_out, resume_from=resumed)
    write_prepared(run, prepared)
    assert read_prepared(run) == prepared
    assert json.loads(run.prepared.read_text(encoding="utf-8"))["model_path"] == "/m"


def test_a_path_is_shown_though_the_working_directory_has_been_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert shown(folder / "train.py") == "train.py"
    folder.rmdir()
    assert shown(folder / "train.py") == str(folder / "train.py")
