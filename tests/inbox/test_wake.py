"""Waiting ends when something happens, whatever tells of it."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from inbox import wake
from inbox.recorded_process import Recorded, recorded, start

FOR_LONG_S = 100.0


def test_a_file_ends_the_wait_by_inotify(tmp_path: Path) -> None:
    pytest.importorskip("watchdog")
    waiting = wake.Wake([tmp_path], poll_s=1.0)
    assert waiting.means == "inotify"
    (tmp_path / "a.jsonl").write_text("x")
    began = time.monotonic()
    waiting.wait(FOR_LONG_S)
    assert time.monotonic() - began < FOR_LONG_S
    waiting.close()


def test_looking_at_the_folder_does_not_end_the_wait(tmp_path: Path) -> None:
    pytest.importorskip("watchdog")
    (tmp_path / "a.jsonl").write_text("x")
    waiting = wake.Wake([tmp_path], poll_s=1.0)
    (tmp_path / "a.jsonl").read_text()
    list(tmp_path.iterdir())
    began = time.monotonic()
    waiting.wait(0.5)
    assert time.monotonic() - began >= 0.5
    waiting.close()


@pytest.mark.parametrize(
    ("lack", "value"), [("HAS_WATCHDOG", False), ("filesystem_of", lambda _: "nfs4")]
)
def test_where_inotify_does_not_tell_of_changes_the_folder_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: str, value: object
) -> None:
    monkeypatch.setattr(wake, lack, value)
    waiting = wake.Wake([tmp_path], poll_s=1.0)
    assert (waiting.means, waiting.idle_s) == ("polling", 1.0)


def test_the_end_of_a_process_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "watched").mkdir()
    waiting = wake.Wake([tmp_path / "watched"], poll_s=1.0)
    kept: list[Recorded] = []
    process = start(["sleep", "0.2"], dict(os.environ), tmp_path / "log", kept.append)
    record = recorded(asdict(kept[0]))
    assert record is not None
    with record.opened() as descriptor:
        waiting.wait(FOR_LONG_S, descriptor)
    assert not record.is_alive
    process.wait()
