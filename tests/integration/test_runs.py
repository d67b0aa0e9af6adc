"""Runs of every kind: 1, 2 and 4 ranks, LoRA, a path with spaces, two at once, a terminal."""

from __future__ import annotations

import os
import pty
import resource
import select
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from machine.gpus.devices import installed_gpus
from rundir.checkpoints import complete_checkpoints
from rundir.paths import RunDir
from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import (
    COLD,
    ENDLESS,
    SERIAL,
    SHORT,
    Start,
    assert_nothing_left,
    events_of,
    finish,
    run_folder,
    training,
)
from train.step.mfu import peak_of
from train.step.progress import DEVICE_PARTS, HOST_PARTS


def holds(run: RunDir) -> list[tuple[float, float, str]]:
    """Return (begin, end, rank) of every time a rank of `run` was inside the gate."""
    ends = {event["rank"]: event["mono"] for event in events_of(run, "end", "lock.hold")}
    return [
        (event["mono"], ends[event["rank"]], f"{run.run_id} rank {event['rank']}")
        for event in events_of(run, "start", "lock.hold")
    ]


@pytest.mark.long
def test_the_number_of_ranks_changes_the_speed_and_not_the_training(
    airlock: Start, environ: dict[str, str]
) -> None:
    curves = []
    for num_ranks in (1, 2, 4):
        code, out, err = finish(airlock(*SHORT, *SERIAL, env={"NUM_GPUS": str(num_ranks)}))
        assert code == 0, err
        assert f"tiny, {num_ranks} rank" in out
        run = run_folder(environ)
        assert len(read_status(run)["ranks"]) == num_ranks
        inside = sorted(holds(run))
        assert len(inside) == 1 + num_ranks  # the zygote, and then each rank
        assert all(a[1] <= b[0] for a, b in pairwise(inside))
        curves.append([event["loss"] for event in events_of(run, "metric", "train")])
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-4)


def test_cold_ranks_are_inside_the_gate_one_at_a_time_and_in_order(
    airlock: Start, environ: dict[str, str]
) -> None:
    code, _, err = finish(airlock(*SHORT, *COLD, "--set", "launch.admit=auto"))
    assert code == 0, err
    first, second = holds(run_folder(environ))
    assert first[2].endswith("rank 0")
    assert second[2].endswith("rank 1")
    assert first[1] <= second[0]


def test_two_runs_at_once_share_the_gate_of_the_node(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    folders = [environ | {"AIRLOCK_RUNS_DIR": str(tmp_path / name)} for name in ("one", "two")]
    started = [airlock(*SHORT, *SERIAL, env=folder) for folder in folders]
    assert [finish(process)[0] for process in started] == [0, 0]
    inside = sorted(hold for folder in folders for hold in holds(run_folder(folder)))
    assert len(inside) == 6
    for one, other in pairwise(inside):
        assert one[1] <= other[0], (one, other)


def test_adapters_are_trained_and_merged_into_the_exported_model(
    airlock: Start, environ: dict[str, str]
) -> None:
    options = ("--set", "train.method=lora", "--set", "model.gradient_checkpointing=true")
    code, _, err = finish(airlock(*SHORT, *options))
    assert code == 0, err
    run = run_folder(environ)
    plan = events_of(run, "mark", "train.plan")[0]
    assert 0 < plan["num_trainable"] < plan["num_parameters"] / 2
    checkpoint = complete_checkpoints(run.checkpoints)[-1]
    check = (
        "import sys\n"
        "from safetensors import safe_open\n"
        "from transformers import AutoModelForCausalLM\n"
        "AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "saved = safe_open(sys.argv[1] + '/model.safetensors', 'pt').keys()\n"
        "adapters = safe_open(sys.argv[2] + '/model.safetensors', 'pt').keys()\n"
        "assert not any('lora' in key for key in saved), saved\n"
        "assert adapters and all('lora' in key for key in adapters), adapters\n"
    )
    subprocess.run([sys.executable, "-c", check, run.model, checkpoint], check=True)


@pytest.mark.long
def test_a_limit_on_address_space_is_set_in_every_rank_and_written_down(
    airlock: Start, environ: dict[str, str]
) -> None:
    code, _, err = finish(airlock(*SHORT, env={"AIRLOCK_RLIMIT_AS_GIB": "24"}))
    assert code == 0, err
    limits = events_of(run_folder(environ), "mark", "limits")
    assert [event["rlimit_as_bytes"] for event in limits] == [24 * 2**30] * 2
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert {event["rlimit_nofile"] for event in limits} == {hard}


@pytest.mark.long
def test_the_torchrun_line_in_the_run_folder_starts_the_same_ranks(
    airlock: Start, environ: dict[str, str]
) -> None:
    assert finish(airlock(*SHORT))[0] == 0
    run = run_folder(environ)
    line = run.command.read_text().splitlines()[-1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-c", line], env=environ | {"PATH": path}, check=True, timeout=120)
    assert [event["result"] for event in events_of(run, "mark", "train.result")] == ["done"] * 2


def test_a_clone_whose_path_has_a_space_works_from_any_folder(
    environ: dict[str, str], tmp_path: Path
) -> None:
    clone = tmp_path / "a clone with spaces"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    kept = {key: value for key, value in environ.items() if not key.startswith("AIRLOCK_")}
    process = subprocess.run(
        [clone / "start.sh", *SHORT[1:]],
        cwd="/",
        env=kept | {"AIRLOCK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert (clone / "runs" / "latest" / "model" / "config.json").is_file()


def on_a_terminal(environ: dict[str, str], *args: str) -> tuple[int, str]:
    """Return (exit code, everything written) of a run whose output is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "launch", *args],
        env=environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 120)
        assert ready, "the run fell silent"
        try:
            written += os.read(ours, 65536)
        except OSError:  # the terminal is closed once the run has ended
            break
    os.close(ours)
    return process.wait(), written.decode(errors="replace")


def test_on_a_terminal_ranks_are_seen_passing_the_gate_and_then_the_progress(
    environ: dict[str, str],
) -> None:
    code, text = on_a_terminal(environ, *SHORT, *SERIAL, *COLD)  # each stays there for a while
    assert code == 0, text
    for part in (
        "starting",
        "importing",
        "waiting",
        "private memory",
        "step 4/4",
        "loss",
        "done in",
    ):
        assert part in text
    *_, serve, last = text.rstrip().splitlines()
    assert serve.lstrip().startswith("llama.cpp ")
    assert last.lstrip().startswith("upload ")


def test_on_a_terminal_the_zygote_is_seen_and_last_what_ended_a_rank(
    environ: dict[str, str],
) -> None:
    bad = ("--set", "train.learning_rate=1e29", "--set", "train.warmup_steps=0")
    code, text = on_a_terminal(environ, *SHORT, *bad)
    assert code == 10
    assert "importing transformers, once for all ranks" in text
    assert text.rstrip().splitlines()[-1].lstrip().startswith("→ look at these rows")


@pytest.mark.parametrize(("num_lines", "code"), [(1, 21), (31, 20)])
def test_a_reader_that_goes_away_is_a_wish_to_stop_and_loses_nothing(
    environ: dict[str, str], tmp_path: Path, num_lines: int, code: int
) -> None:
    started = f'"{sys.executable}" -P -m launch {" ".join(ENDLESS)}'
    command = f"{started} | head -n {num_lines}; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(
        ["bash", "-c", command],
        env=environ,
        cwd=tmp_path,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert process.returncode == code, process.stderr
    assert "Traceback" not in process.stderr
    run = run_folder(environ)
    assert read_status(run)["exit_code"] == code
    assert bool(complete_checkpoints(run.checkpoints)) == (code == 20)
    assert_nothing_left(run)


def test_output_that_cannot_be_written_does_not_cost_the_run(
    environ: dict[str, str], tmp_path: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-P", "-m", "launch", *SHORT],
            env=environ | {"PYTHONIOENCODING": "ascii"},
            cwd=tmp_path,
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert process.returncode == 0, process.stderr
    assert (run_folder(environ).model / "config.json").is_file()


def test_a_full_disk_ends_the_run_plainly_and_leaves_no_half_checkpoint(
    airlock: Start, environ: dict[str, str], small_disk: Path
) -> None:
    code, out, _ = finish(airlock(*SHORT, "--force", env={"AIRLOCK_RUNS_DIR": str(small_disk)}))
    assert code == 10
    assert "No space left on device: the checkpoint after step 4 takes" in out
    run = run_folder(environ | {"AIRLOCK_RUNS_DIR": str(small_disk)})
    assert not list(run.checkpoints.glob("step_*"))
    assert not run.model.exists()
    assert_nothing_left(run)


@pytest.mark.long
def test_the_tests_asked_for_by_start_single_run_before_training(
    airlock: Start, environ: dict[str, str]
) -> None:
    with training(airlock(*ENDLESS, env={"RUN_IMPORT_TEST": "1"}), environ) as (process, _run):
        process.send_signal(2)
        code, out, err = finish(process)
    assert code == 20, err
    assert "ok    torch" in out[: out.index("[Rank 0]")]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [(), ("--set", "model.dtype=bfloat16", "--set", "train.method=lora")]
)
def test_a_gpu_run_takes_every_visible_gpu_over_nccl_and_measures_its_memory(
    airlock: Start, environ: dict[str, str], options: tuple[str, ...]
) -> None:
    code, out, err = finish(airlock(*SHORT, *SERIAL, *options))
    assert code == 0, err
    assert "on cuda (every visible GPU)" in out
    run = run_folder(environ)
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
