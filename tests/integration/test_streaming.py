"""Whole runs that stream: killed and resumed, with bad rows, with files that change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rundir.checkpoints import complete_checkpoints, step_of
from rundir.errors import ExitCode
from tests.integration.test_exact_resume import curve, kill_at, trained
from tests.running import (
    ENDLESS,
    SHORT,
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    output_of,
)

STREAMING = ("--set", "data.streaming=true")


def rows_file(path: Path, num_rows: int) -> Path:
    rows = [json.dumps({"prompt": f"{i} + 1", "response": f"{i + 1}"}) for i in range(num_rows)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_run_that_streams_and_was_killed_is_to_the_last_bit_one_that_was_not(user: User) -> None:
    clean = trained(user, *STREAMING)
    env = user.hooked(*kill_at("step", 0))
    killed = trained(user, *STREAMING, "--max-restarts", "1", env=env)
    plans = events_of(killed, "mark", "train.plan")
    assert [plan["first_step"] for plan in plans] == [0, 12]
    assert curve(killed) == curve(clean)
    assert sorted(curve(killed)) == list(range(1, 21))
    weights = [(run.model / "model.safetensors").read_bytes() for run in (killed, clean)]
    assert weights[0] == weights[1]


@pytest.mark.long
def test_a_bad_row_ends_all_ranks_and_is_named_and_can_be_left_out_when_it_goes_on(
    user: User,
) -> None:
    path = user.folder / "rows.csv"  # the launcher does not look into its rows
    lines = ["prompt,response", *(f"{i} + 1,{i + 1}" for i in range(300))]
    lines[289] = "half"
    path.write_text("\n".join(lines))
    options = ("--data", str(path), "--set", "train.max_steps=1000", "--num-gpus", "2")
    with ended(user.airlock(*SHORT, *STREAMING, *options)) as process:
        code, out, err = finish(process)
    assert code == ExitCode.DATA, out + err
    assert f"{path}:290: the row has 1 fields, the first row has 2" in out + err
    assert "Traceback" not in out + err
    killed = user.run()
    assert_nothing_left(killed)
    (checkpoint,) = complete_checkpoints(killed.checkpoints)
    last = str(step_of(checkpoint) + 2)
    more = as_options("data.on_bad_row=skip", f"train.max_steps={last}")
    out = user.output_of("run", "tiny", "--resume", killed.run_id, *more)
    run = user.run()
    (mark,) = events_of(run, "mark", "data.streamed")
    assert (mark["num_rows"], mark["num_bad"]) == (16, 1)  # the very next step has it
    assert "16 rows streamed; 1 bad ones left out" in out
    (listed,) = run.data.glob("rows.rank*.bad_rows.jsonl")
    (line,) = [json.loads(line) for line in listed.read_text().splitlines()]
    assert (line["file"], line["row"]) == (str(path), 290)
    assert line["step"] == step_of(checkpoint) + 1


def test_a_file_that_is_cut_while_it_is_trained_on_ends_the_run_with_its_name(user: User) -> None:
    path = rows_file(user.folder / "rows.jsonl", 40)
    options = ("--data", str(path), "--num-gpus", "2")
    with user.training(*ENDLESS, *STREAMING, *options) as (process, run):
        path.write_bytes(path.read_bytes()[:-30])
        code, out, err = finish(process)
    assert code == ExitCode.DATA, out + err
    assert f"{path} has" in out + err
    assert_nothing_left(run)


@pytest.mark.long
def test_a_plain_run_streams_the_steps_of_a_launched_one(user: User) -> None:
    options = (*SHORT[1:], *STREAMING)
    output_of(user.plain(*options))
    alone = user.run()
    user.output_of("run", *options, "--num-gpus", "1")
    assert curve(user.run()) == curve(alone)
