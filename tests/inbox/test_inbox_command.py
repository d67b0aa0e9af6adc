"""`./airlock inbox`, as it is typed: what it answers, and the commands that it proposes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from inbox import inbox_command as command
from rundir.errors import UserError
from tests.conftest import mounted
from tests.inbox.serving import Served
from tests.running import Start, finish, wait_for


@pytest.mark.parametrize(
    ("typed", "folder", "words"),
    [
        ("box --profile tiny", "box", "serve --profile tiny"),
        ("box serve --profile tiny", "box", "serve --profile tiny"),
        ("box status --json", "box", "status --json"),
        ("box", "box", "serve"),
        ("./status status", "status", "status"),
        ("status --help", None, "status --help"),
        ("--help", None, "--help"),
        ("", None, "--help"),
    ],
)
def test_the_folder_stands_first_and_serving_is_the_default(
    typed: str, folder: str | None, words: str
) -> None:
    found, rest = command.split(typed.split())
    assert (found and str(found), " ".join(rest)) == (folder, words)


def test_inside_an_inbox_it_need_not_be_named(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRLOCK_INBOX_DIR", raising=False)
    monkeypatch.chdir(served.layout.queue)
    with pytest.raises(UserError, match=r"./airlock inbox FOLDER skip 3"):
        command.split(["skip", "3"])
    served.layout.lock.touch()
    assert command.split(["status"]) == (served.layout.path, ["status"])
    monkeypatch.setenv("AIRLOCK_INBOX_DIR", "/box")
    assert command.split(["status"]) == (Path("/box"), ["status"])


@pytest.mark.parametrize(
    ("typed", "error", "do"),
    [
        ("box", "missing option '--profile'", "./airlock inbox box --profile 14b"),
        ("box stauts --json", "no command 'stauts'", "./airlock inbox box status --json"),
        ("box --profile tiny --nope", "no such option", "./airlock inbox box serve --help"),
        ("box list --profile tiny", "no such option", "./airlock inbox box list --help"),
        ("box retry", "missing argument 'JOB'", "./airlock inbox box retry --help"),
    ],
)
def test_words_that_it_cannot_read_are_answered_with_a_command(
    capsys: pytest.CaptureFixture[str], typed: str, error: str, do: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(typed.split())
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"airlock: {error}")
    assert second == f"  → {do}"
    assert not Path("box").exists()


def test_airlock_becomes_the_program_with_its_words_and_signals(
    airlock: Start, served: Served
) -> None:
    code, out, _ = finish(airlock("inbox", str(served.layout.path), "serve", "--help"))
    assert code == 0
    assert "--min-free-gib" in out
    process = airlock("inbox", str(served.layout.path), "--profile", "tiny")
    wait_for(lambda: served.status()["is_running"], why="it does not serve")
    assert f"process {process.pid} " in served.status()["held_by"]
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 0


def test_status_has_the_fields_that_programs_read(served: Served) -> None:
    served.plan_long("a.jsonl")
    served.start()
    wait_for(lambda: served.status()["current_step"], why="it does not train")
    state = json.loads(served.ask("status", "--json").stdout)
    assert (state["status"], state["current_file"]) == ("training", "a.jsonl")
    assert 0 < state["current_step"] <= state["total_steps"] == 1000000
    assert state["error"] is None
    assert "now: a.jsonl" in served.ask("status").stdout


def test_list_tells_what_became_of_each_and_added_files_stay(
    served: Served, tmp_path: Path
) -> None:
    assert "nothing was dropped yet" in served.ask("list").stdout
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"steps": 2}')
    added = served.ask("add", str(mine), "--priority", "high").stdout
    assert "waits in the queue, high priority" in added
    served.drop("b.jsonl", "no data")
    served.start()
    served.wait_for(mine="done", b="failed")
    assert mine.exists()
    rows = {row["name"]: row for row in json.loads(served.ask("list", "--json").stdout)}
    assert (rows["mine.jsonl"]["result"], rows["b.jsonl"]["result"]) == ("done", "failed")
    assert "cannot be read or used" in served.ask("list").stdout


@pytest.mark.parametrize(
    ("typed", "error", "do"),
    [
        ("stop", "no inbox runs in", "--profile PROFILE"),
        ("skip nothing", "there is no job 'nothing'", "list"),
        ("add not-there.jsonl", "not-there.jsonl is not there", "ls -l"),
    ],
)
def test_what_cannot_be_done_is_answered_with_what_to_type(
    served: Served, capsys: pytest.CaptureFixture[str], typed: str, error: str, do: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main([str(served.layout.path), *typed.split()])
    first, second = capsys.readouterr().err.splitlines()
    assert error in first
    assert do in second


def test_a_folder_that_is_no_inbox_is_not_made_one_by_a_look(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main([str(tmp_path / "none"), "status"])
    assert "is no inbox" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(SystemExit, match="4"):
            command.main([str(disk / "box"), "--profile", "tiny"])
    assert "Read-only file system" in capsys.readouterr().err


def test_what_is_asked_while_nobody_serves_is_done_by_the_next(served: Served) -> None:
    served.plan("a.jsonl")
    served.ask("pause")
    served.start()
    wait_for(served.states, why="it is not taken")
    served.end()
    assert "done when an inbox runs here again" in served.ask("skip", "a.jsonl").stdout
    served.start()
    served.wait_for(a="failed")
    wait_for(
        lambda: [path.name for path in served.layout.control.iterdir()] == ["pause"],
        why="a request that is done stays",
    )
