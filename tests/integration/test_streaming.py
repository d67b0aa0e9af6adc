"""Whole runs that stream: killed and resumed, with bad rows, with files that change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rundir.checkpoints import complete_checkpoints, step_of
from rundir.exit_codes import ExitCode
from tests.integration.test_exact_resume import KILLS, curve, trained
from tests.running import (
    ENDLESS,
    SHORT,
    Start,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    hooked,
    run_folder,
    training,
)

STREAMING = ("--set", "data.streaming=true")


def rows_file(path: Path, num_rows: int, bad: int = 0) -> Path:
    """Write rows of which number `bad` is malformed."""
    rows = [json.dumps({"prompt": f"{i} + 1", "response": f"{i + 1}"}) for i in range(num_rows)]
    if bad:
        rows[bad - 1] = '{"prompt": "half'
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_run_that_streams_and_was_killed_is_to_the_last_bit_one_that_was_not(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    env = {"AIRLOCK_RUNS_DIR": str(tmp_path / "clean")}
    clean = trained(airlock, environ | env, *STREAMING, env=env)
    module, body = KILLS["step"]
    killed = trained(
        airlock,
        environ,
        *STREAMING,
        "--max-restarts",
        "1",
        env=hooked(environ, tmp_path, module, body),
    )
    plans = events_of(killed, "mark", "train.plan")
    assert [plan["first_step"] for plan in plans] == [0, 12]
    assert curve(killed) == curve(clean)
    assert sorted(curve(killed)) == list(range(1, 21))
    weights = [(run.model / "model.safetensors").read_bytes() for run in (killed, clean)]
    assert weights[0] == weights[1]


def test_a_bad_row_ends_all_ranks_and_is_named(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"  # the launcher does not look into its rows
    lines = ["prompt,response", *(f"{i} + 1,{i + 1}" for i in range(300))]
    lines[289] = "half"
    path.write_text("\n".join(lines))
    options = ("--data", str(path), "--set", "train.max_steps=1000", "--num-gpus", "2")
    with ended(airlock(*SHORT, *STREAMING, *options)) as process:
        code, out, err = finish(process)
    assert code == ExitCode.DATA, out + err
    assert f"{path}:290: the row has 1 fields, the first row has 2" in out + err
    assert "Traceback" not in out + err
    killed = run_folder(environ)
    assert_nothing_left(killed)
    (checkpoint,) = complete_checkpoints(killed.checkpoints)
    last = str(step_of(checkpoint) + 2)
    more = ("--set", "data.on_bad_row=skip", "--set", f"train.max_steps={last}")
    with ended(airlock("run", "tiny", "--resume", killed.run_id, *more)) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    (mark,) = events_of(run_folder(environ), "mark", "data.streamed")
    assert (mark["num_rows"], mark["num_bad"]) == (16, 1)  # the very next step has it


def test_bad_rows_that_are_left_out_keep_no_rank_waiting_and_are_said(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    path = rows_file(tmp_path / "rows.jsonl", 32, bad=7)  # an epoch
    options = ("--data", str(path), "--set", "data.on_bad_row=skip", "--num-gpus", "2")
    with ended(airlock(*SHORT, *STREAMING, *options)) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    run = run_folder(environ)
    (mark,) = events_of(run, "mark", "data.streamed")
    assert (mark["num_rows"], mark["num_bad"]) == (32, 1)
    assert "32 rows streamed; 1 bad ones left out" in out
    (listed,) = run.data.glob("rows.rank*.bad_rows.jsonl")
    (line,) = [json.loads(line) for line in listed.read_text().splitlines()]
    assert (line["file"], line["row"]) == (str(path), 7)
    assert line["step"] in range(1, 5)


def test_a_file_that_is_cut_while_it_is_trained_on_ends_the_run_with_its_name(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    path = rows_file(tmp_path / "rows.jsonl", 40)
    options = ("--data", str(path), "--num-gpus", "2")
    with training(airlock(*ENDLESS, *STREAMING, *options), environ) as (process, run):
        path.write_bytes(path.read_bytes()[:-30])
        code, out, err = finish(process)
    assert code == ExitCode.DATA, out + err
    assert f"{path} has" in out + err
    assert_nothing_left(run)


@pytest.mark.long
def test_a_plain_run_streams_the_steps_of_a_launched_one(
    airlock: Start, plain: Start, environ: dict[str, str]
) -> None:
    options = (*SHORT[1:], *STREAMING)
    with ended(plain(*options)) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    alone = run_folder(environ)
    with ended(airlock("run", *options, "--num-gpus", "1")) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    assert curve(run_folder(environ)) == curve(alone)
