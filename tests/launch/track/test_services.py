"""The real W&B and trackio, if installed: offline, and on a local database."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from launch.track.tracking_process import track_once
from machine.processes.signals import Signals
from rundir.errors import UserError
from tests.launch.track.runs import HOST, MadeRun
from tests.launch.track.test_tracking_process import Beside
from tests.running import processes_of, wait_for
from tests.tensorboard_files import scalars


def needs(package: str) -> pytest.MarkDecorator:
    is_there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not is_there, reason=f"{package} is not installed")


pytestmark = pytest.mark.long


@pytest.fixture
def at_home(tmp_path: Path, environ: dict[str, str]) -> dict[str, str]:
    """Return an environment in which the services find no key and stay in the test's folder."""
    kept = {k: v for k, v in environ.items() if not k.startswith(("WANDB_", "TRACKIO_", "HF_"))}
    return kept | {
        "HOME": str(tmp_path),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
    }


def rows_of_wandb(path: Path) -> list[dict[str, Any]]:
    """Return the history in W&B's own file: blocks of 32 KiB, with records that may span them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, body, rows = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        body += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record, body = Record.FromString(body), b""
            if record.HasField("history"):
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                rows.append(row)
    return rows


NOWHERE = {
    "WANDB_BASE_URL": "http://127.0.0.1:9",
    "WANDB_API_KEY": "0" * 40,
    "WANDB_INIT_TIMEOUT": "5",
}


def followed(folder: Path, environ: dict[str, str], service: str) -> Beside:
    """Return the tracking of a run of three steps so far, once the service has said something."""
    beside = Beside(MadeRun(folder), environ, service)
    beside.made.steps(1, 3)
    beside.look()
    wait_for(beside.says, why=f"{service} said nothing")
    return beside


@needs("wandb")
def test_wandb_offline_has_every_step_with_its_time(
    tmp_path: Path, at_home: dict[str, str]
) -> None:
    beside = followed(tmp_path, at_home, "wandb")
    beside.made.steps(4, 5)
    beside.made.launch.emit("metric", "host", **HOST)
    beside.tracking.end(Signals())
    (kept,) = beside.run.path.glob("wandb/offline-run-*/*.wandb")
    rows = rows_of_wandb(kept)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [1, 2, 3, 4, 5]
    assert [row["train/global_step"] for row in rows] == [1, 2, 3, 4, 5, 5]
    assert rows[-1]["host/num_processes"] == 5
    times = [t for _, t, _ in scalars(beside.run.tensorboard)["train/loss"]]
    assert [row["_timestamp"] for row in rows[:5]] == times
    assert any("W&B: offline; `wandb sync " in line for line in beside.lines)
    assert processes_of(beside.run) == []


@needs("wandb")
@pytest.mark.parametrize(("env", "why"), [({}, "No API key configured"), (NOWHERE, "refused: off")])
def test_wandb_without_a_key_or_that_cannot_be_reached_keeps_the_run_for_later(
    tmp_path: Path, at_home: dict[str, str], env: dict[str, str], why: str
) -> None:
    del at_home["WANDB_MODE"]
    beside = followed(tmp_path, at_home | env, "wandb")
    beside.tracking.end(Signals())
    assert why in beside.lines[0]
    assert "offline; `wandb sync " in beside.lines[0]
    (kept,) = beside.run.path.glob("wandb/offline-run-*/*.wandb")
    assert len(rows_of_wandb(kept)) == 3


@needs("wandb")
def test_by_hand_wandb_without_a_key_is_an_error(
    tmp_path: Path, at_home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del at_home["WANDB_MODE"]
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = MadeRun(tmp_path)
    with pytest.raises(UserError, match="W&B: No API key configured"):
        track_once(made.run, "wandb", print)


@needs("wandb")
def test_wandb_leaves_no_process_when_its_own_hangs(
    tmp_path: Path, at_home: dict[str, str]
) -> None:
    beside = followed(tmp_path, at_home, "wandb")
    core = next(each for each in processes_of(beside.run) if "wandb-core" in each.name())
    core.suspend()
    signals = Signals()
    signals.end_now = True
    beside.tracking.end(signals)
    assert processes_of(beside.run) == []


@needs("trackio")
def test_trackio_has_every_step_in_its_database(tmp_path: Path, at_home: dict[str, str]) -> None:
    beside = followed(tmp_path, at_home, "trackio")
    beside.made.rank0.emit("metric", "eval", step=3, loss=float("nan"), exact_match=None)
    beside.tracking.end(Signals())
    with sqlite3.connect(tmp_path / "trackio" / "airlock.db") as database:
        rows = database.execute(
            "select run_name, step, metrics from metrics order by id"
        ).fetchall()
    losses = [(name, step, json.loads(metrics).get("train/loss")) for name, step, metrics in rows]
    assert losses == [(beside.run.run_id, step, float(step)) for step in (1, 2, 3)]
    assert processes_of(beside.run) == []
