"""Listing runs: newest first, ten thousand of them, and folders that come, go and are odd."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import pytest

from monitor.http.json_api import NotFoundError
from monitor.runs.run_list import Runs
from tests.monitor.serving import Server, make_run, served


def _ids(count: int) -> list[str]:
    return [f"20260101-{n // 3600:02}{n // 60 % 60:02}{n % 60:02}-tiny-0001" for n in range(count)]


@pytest.mark.long
def test_ten_thousand_runs_are_listed_by_reading_only_those_shown_and_served_within_the_memory(
    folder: Path, environ: dict[str, str]
) -> None:
    for name in _ids(10_000):
        (folder / name).mkdir()
        (folder / name / "status.json").write_text('{"exit_code": 0, "phase": "done"}')
    old = time.time() - 60
    os.utime(folder, (old, old))  # nothing was added lately
    done: Counter[str] = Counter()
    runs = Runs(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "scandir", "listdir"):
            real = getattr(os, name)
            patch.setattr(
                os, name, lambda *a, _n=name, _r=real, **k: (done.update([_n]), _r(*a, **k))[1]
            )
        rows, total = runs.page(limit=50)
        assert (len(rows), total) == (50, 10_000)
        assert rows[0].id == _ids(10_000)[-1]
        assert done["scandir"] == 1
        assert done["open"] <= 50 * 6  # folder and file of each that is read
        done.clear()
        assert runs.page(limit=50, offset=0)[1] == 10_000
        assert done == {}, "nothing has changed, so nothing is read"
        runs.page(limit=50, offset=5_000, search="TINY")
        assert done["scandir"] == 0
        assert done["open"] <= 50 * 6
    with served(folder, environ) as server:
        assert server.json("/api/runs?limit=1000&state=done")["total"] == 10_000
        assert server.json("/api/runs?state=running") == {"runs": [], "total": 0}
        assert server.peak_bytes < 120 << 20


def test_a_new_run_is_seen_at_once_and_one_that_is_gone_is_not(folder: Path) -> None:
    runs = Runs(folder)
    assert runs.page() == ([], 0)
    for number in range(50):  # many within one tick of the file system's clock
        make_run(folder, f"20260101-0000{number:02}-tiny-0001")
        assert runs.page()[1] == number + 1
    shutil.rmtree(folder / "20260101-000007-tiny-0001")
    assert runs.page()[1] == 49
    with pytest.raises(NotFoundError):
        runs.find("20260101-000007-tiny-0001")


def test_a_folder_of_runs_that_is_not_there_has_none_until_it_is(folder: Path) -> None:
    runs = Runs(folder / "later")
    assert runs.page() == ([], 0)
    with pytest.raises(NotFoundError, match="no runs in"):
        runs.find("latest")
    make_run(folder / "later")
    assert runs.page()[1] == 1


def test_a_run_that_was_renamed_is_listed_by_its_time(folder: Path) -> None:
    make_run(folder, "20260101-000000-tiny-0001")
    renamed = make_run(folder, "my-best")
    (folder / "no-run").mkdir()
    (folder / ".hidden").mkdir()
    late = time.mktime((2026, 3, 1, 0, 0, 0, 0, 0, 0))
    os.utime(renamed / "config.toml", (late, late))
    assert [row.id for row in Runs(folder).page()[0]] == ["my-best", "20260101-000000-tiny-0001"]


def test_names_with_control_characters_are_shown_and_break_no_format(server: Server) -> None:
    names = {"a\nb", "bell\x07", "\x1b[31mred", 'quote"\\', "ünï", "tab\tand space", "%2e%2e"}
    for name in names:
        make_run(server.folder, name)
    odd = os.fsencode(server.folder) + b"/20260101-000000-\xff-0001"
    os.mkdir(odd)  # noqa: PTH102 - no UTF-8
    listed = {row["id"] for row in server.json("/api/runs?limit=1000")["runs"]}
    assert names <= listed
    assert not any(name.endswith("\xff-0001") for name in listed)
    for name in names:
        assert server.json(f"/api/runs/{quote(name, safe='')}/status")["id"] == name
    lines = server.get("/metrics").text.splitlines()
    assert all(line.startswith(("airlock_", "# ")) for line in lines)
    assert sum("airlock_run_step{" in line for line in lines) == min(len(listed), 50)
    assert "\x1b" not in server.get("/api/runs/%1b%5b31mno/status").text


def test_a_run_folder_that_is_deleted_while_it_is_read_is_gone_and_no_fault(
    server: Server,
) -> None:
    paths = ("status", "events", "logs", "config", "incidents", "metrics?series=train.loss")
    for number in range(12):
        run = make_run(server.folder, f"20260101-0000{number:02}-deleted-0001")
        assert server.json(f"/api/runs/{run.name}/status")["id"] == run.name
        left = sorted(run.rglob("*"), reverse=True)
        for count, path in enumerate(left):
            path.rmdir() if path.is_dir() else path.unlink()
            if count % 4 == number % 4:
                asked = f"/api/runs/{run.name}/{paths[number % len(paths)]}"
                assert server.get(asked).status_code in (200, 404)
                assert server.get("/api/runs").status_code == 200
        run.rmdir()
        assert server.get(f"/api/runs/{run.name}/status").status_code == 404
