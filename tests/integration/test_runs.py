"""Runs of every kind: 1, 2 and 4 ranks, LoRA, a path with spaces, two at once, a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from machine.gpus.devices import installed_gpus
from machine.gpus.peaks import peak_of
from rundir.checkpoints import complete_checkpoints
from rundir.paths import RunDir
from rundir.status import read_status
from tests.running import (
    COLD,
    ENDLESS,
    SERIAL,
    SHORT,
    User,
    as_options,
    assert_nothing_left,
    events_of,
    finish,
    run_folder,
)
from tests.terminal import Terminal
from train.step.progress import DEVICE_PARTS, HOST_PARTS


def holds(run: RunDir) -> list[tuple[float, float, str]]:
    """Return (begin, end, rank) of every time a rank of `run` was inside the gate."""
    ends = {event["rank"]: event["mono"] for event in events_of(run, "end", "lock.hold")}
    return [
        (event["mono"], ends[event["rank"]], f"{run.run_id} rank {event['rank']}")
        for event in events_of(run, "start", "lock.hold")
    ]


def test_two_runs_at_once_share_the_gate_of_the_node(user: User) -> None:
    folders = [
        user.environ | {"AIRLOCK_RUNS_DIR": str(user.folder / name)} for name in ("one", "two")
    ]
    started = [user.airlock(*SHORT, *SERIAL, env=folder) for folder in folders]
    assert [finish(process)[0] for process in started] == [0, 0]
    inside = sorted(hold for folder in folders for hold in holds(run_folder(folder)))
    assert len(inside) == 6
    for one, other in pairwise(inside):
        assert one[1] <= other[0], (one, other)


@pytest.mark.long
def test_the_torchrun_line_in_the_run_folder_starts_the_same_ranks(user: User) -> None:
    assert user.finish(*SHORT)[0] == 0
    run = user.run()
    line = run.command.read_text().splitlines()[-1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-c", line], env=user.environ | {"PATH": path}, check=True, timeout=120)
    assert [event["result"] for event in events_of(run, "mark", "train.result")] == ["done"] * 2


def test_on_a_terminal_cold_ranks_pass_the_gate_one_by_one_and_the_log_is_as_complete_as_elsewhere(
    environ: dict[str, str],
) -> None:
    # Each stays there for a while.
    terminal = Terminal(120, 40, environ, *SHORT, *COLD, "--set", "launch.admit=auto")
    assert terminal.read_to_end() == 0, terminal.text
    parts = ("starting", "importing", "waiting", "private memory", "step 4/4", "loss", "done in")
    for part in parts:
        assert part in terminal.text
    *_, serve, last = terminal.text.rstrip().splitlines()
    assert serve.lstrip().startswith("llama.cpp ")
    assert last.lstrip().startswith("upload ")
    run = run_folder(environ)
    first, second = holds(run)
    assert first[2].endswith("rank 0")
    assert second[2].endswith("rank 1")
    assert first[1] <= second[0]
    text = run.run_log.read_text()
    for words in ("run ", "data: train.jsonl: ", "[Rank 1] LOCK: released", "step 4/4  loss ",
                  "checkpoint after step 4 saved", "tiny: done in ", "  upload  "):  # fmt: skip
        assert text.count(f"\n{words}") == 1, words
    assert "\x1b" not in text
    assert "\r" not in text


def test_a_loss_that_is_no_number_ends_the_run_told_and_last_on_the_screen_and_is_not_saved(
    user: User,
) -> None:
    bad = as_options("train.learning_rate=1e29", "train.warmup_steps=0")
    every = ("--set", "train.checkpoint_every_steps=1", "--on-event", f"cat >> {user.folder}/facts")
    terminal = Terminal(120, 40, user.environ, *SHORT, *bad, *every)
    assert terminal.read_to_end() == 10
    assert "importing transformers, once for all ranks" in terminal.text
    assert terminal.text.rstrip().splitlines()[-1].lstrip().startswith("→ look at these rows")
    run = user.run()
    said = run.run_log.read_text()
    loss = re.search(r"the loss is (nan|inf) at step (\d)", said)
    assert loss is not None
    assert "train.jsonl:" in said  # the samples of that step
    assert "train.learning_rate" in said
    facts = (user.folder / "facts").read_text().splitlines()
    told, failure, end = (json.loads(line) for line in facts)
    assert (told["event"], told["loss"], told["step"]) == ("bad-loss", loss[1], int(loss[2]))
    assert told["answer"] == "stop"
    assert len(told["samples"]) == 8
    assert all(one["row"] for one in told["samples"])
    assert loss[1] in told["what"]
    assert (failure["event"], end["event"], end["exit_code"]) == ("failure", "end", 10)
    assert not run.model.exists()
    assert_nothing_left(run)


@pytest.mark.parametrize(("num_lines", "code"), [(1, 21), (31, 20)])
def test_a_reader_that_goes_away_is_a_wish_to_stop_and_loses_nothing(
    user: User, num_lines: int, code: int
) -> None:
    started = f'"{sys.executable}" -P -m launch {" ".join(ENDLESS)}'
    command = f"{started} | head -n {num_lines}; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(
        ["bash", "-c", command],
        env=user.environ,
        cwd=user.folder,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert process.returncode == code, process.stderr
    assert "Traceback" not in process.stderr
    run = user.run()
    assert read_status(run)["exit_code"] == code
    assert bool(complete_checkpoints(run.checkpoints)) == (code == 20)
    assert_nothing_left(run)


@pytest.mark.long
def test_output_that_cannot_be_written_does_not_cost_the_run(user: User) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-P", "-m", "launch", *SHORT],
            env=user.environ | {"PYTHONIOENCODING": "ascii"},
            cwd=user.folder,
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert process.returncode == 0, process.stderr
    assert (user.run().model / "config.json").is_file()


def test_a_full_disk_ends_the_run_plainly_and_leaves_no_half_checkpoint(
    user: User, small_disk: Path
) -> None:
    out = user.output_of(*SHORT, "--force", env={"AIRLOCK_RUNS_DIR": str(small_disk)}, code=10)
    assert "No space left on device: the checkpoint after step 4 takes" in out
    run = run_folder(user.environ | {"AIRLOCK_RUNS_DIR": str(small_disk)})
    assert not list(run.checkpoints.glob("step_*"))
    assert not run.model.exists()
    assert_nothing_left(run)


@pytest.mark.long
def test_the_tests_asked_for_by_start_single_run_before_training(user: User) -> None:
    with user.training(*ENDLESS, env={"RUN_IMPORT_TEST": "1"}) as (process, _run):
        process.send_signal(2)
        code, out, err = finish(process)
    assert code == 20, err
    assert "ok    torch" in out[: out.index("[Rank 0]")]


@pytest.mark.gpu
@pytest.mark.parametrize("options", [(), as_options("model.dtype=bfloat16", "train.method=lora")])
def test_a_gpu_run_takes_every_visible_gpu_over_nccl_and_measures_its_memory(
    user: User, options: tuple[str, ...]
) -> None:
    out = user.output_of(*SHORT, *SERIAL, *options)
    assert "on cuda (every visible GPU)" in out
    run = user.run()
    marks = events_of(run, "mark", "mem.post_model")
    assert len(marks) == len(installed_gpus())
    assert all(mark["gpu_used_bytes"] > 0 for mark in marks)
    (result,) = events_of(run, "mark", "train.result")
    assert 0 < result["gpu_peak_bytes"] < 2 * 1024**3
    samples = events_of(run, "metric", "gpu")
    assert {one["index"] for one in samples} == {gpu.index for gpu in installed_gpus()}
    assert all(0 < one["used_bytes"] < one["total_bytes"] for one in samples)
    assert "GPUs          peak " in out
    peak = peak_of(installed_gpus()[0].name)
    is_known = peak is not None and (peak.bfloat16 is not None or not options)
    for metric in events_of(run, "metric", "train"):
        assert all(metric[f"time_{part}_s"] > 0 for part in (*HOST_PARTS, *DEVICE_PARTS))
        assert (metric["mfu"] is not None) == is_known
