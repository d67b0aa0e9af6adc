"""`airlock plan` as a user types it, with the real tracer and a real cache."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rundir.units import GIB
from tests.conftest import HAS_GPU
from tests.running import Typed, User, ended, wait_for

H100 = ("--gpu", "H100-80G", "--num-gpus", "8")


@pytest.fixture
def cache(shared_cache: Path, tmp_path: Path) -> dict[str, str]:
    """Return the session's cache, with no model in the Hub's."""
    return {"AIRLOCK_CACHE_DIR": str(shared_cache), "HF_HOME": str(tmp_path / "hf")}


def plan_of(typed: Typed, *args: str, env: dict[str, str], expected: int = 0) -> dict[str, Any]:
    code, out, err = typed("plan", *args, "--json", env=env)
    assert (code, err) == (expected, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_32b_run_on_eight_h100_is_told_part_by_part(typed: Typed, cache: dict[str, str]) -> None:
    plan = plan_of(typed, "32b", *H100, env=cache)
    rank = plan["rank"]
    assert rank["num_parameters"] - rank["num_trainable"] == 32_763_876_352
    assert rank["num_trainable"] == 134_217_728
    parts = ("weights", "gradients", "optimizer", "ddp", "activations", "logits")
    assert sum(rank[f"{part}_bytes"] for part in parts) == rank["peak_bytes"]
    assert 60 * GIB < rank["least_bytes"] < rank["most_bytes"] < 80 * GIB
    assert (plan["gpu"]["name"], plan["gpu"]["verdict"]) == ("H100-80G", "fits")
    assert (plan["num_ranks"], plan["verdict"], plan["instead"]) == (8, "fits", None)
    assert not plan["host"]["would_run_here"]
    # Of 32 billion weights each token takes four times as many GFLOP and more, of 989.5 TFLOP/s.
    assert 0.4 < plan["roofline"]["tokens_per_s"] / (989.5e12 / (4 * 32.8e9)) < 0.8
    assert [phase["name"] for phase in plan["host"]["phases"]][-1] == "saving"


@pytest.mark.long
def test_the_same_question_again_starts_no_child(user: User, cache: dict[str, str]) -> None:
    first = plan_of(user.typed, "14b", *H100, env=cache)
    broken = user.hooked("train.trace.step_trace", "os._exit(9)")
    again = plan_of(user.typed, "14b", "--gpu", "48G", "--num-gpus", "4", env=cache | broken)
    # The smaller GPU has some blocks recomputed, of the same two traces.
    assert 0 == first["recomputed_blocks"] < again["recomputed_blocks"] < 48
    assert again["rank"]["peak_bytes"] < first["rank"]["peak_bytes"]
    assert again["verdict"] == first["verdict"] == "fits"
    new = ("14b", "--set", "train.lora_rank=3")
    err = user.typed.error_of("plan", *new, code=4, env=cache | broken)
    assert "exit code 9" in err


@pytest.mark.long
def test_what_does_not_fit_exits_with_3_and_says_what_would(
    typed: Typed, cache: dict[str, str]
) -> None:
    args = ("14b", *H100, "--set", "data.max_seq_length=131072")
    plan = plan_of(typed, *args, env=cache, expected=3)
    assert plan["verdict"] == "does not fit"
    first = plan["instead"][0]["command"]
    assert first.startswith("./airlock plan 14b --num-gpus 8 --gpu H100-80G --set data.max_seq")
    assert plan_of(typed, *first.split()[2:], env=cache)["verdict"] == "fits"
    code, out, err = typed("plan", *args, env=cache)
    assert (code, err) == (3, "")
    assert first in out
    assert "does not fit: a rank needs" in out


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_gpus_a_gpu_profile_is_held_against_the_catalogue(
    typed: Typed, cache: dict[str, str]
) -> None:
    plan = plan_of(typed, "32b", env=cache)
    verdicts = {gpu["name"]: gpu["verdict"] for gpu in plan["gpus"]}
    assert verdicts["24G"] == "does not fit"
    assert verdicts["H100-80G"] == verdicts["B200-180G"] == "fits"
    assert plan["verdict"] is None
    out = typed.output_of("plan", "32b", env=cache)
    assert "no GPU here, and none named" in out


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
@pytest.mark.runs
def test_on_cpu_the_device_is_the_host(typed: Typed, cache: dict[str, str]) -> None:
    plan = plan_of(typed, "tiny", "--num-gpus", "4", env=cache)
    assert (plan["device"], plan["gpu"], plan["gpus"]) == ("cpu", None, [])
    training = {phase["name"]: phase for phase in plan["host"]["phases"]}["training"]
    assert training["anonymous_bytes"] > 4 * plan["rank"]["peak_bytes"]
    assert plan["host"]["would_run_here"]


@pytest.mark.parametrize(
    ("args", "expected", "words"),
    [
        (["32b", "--gpu", "H101"], 2, ["no GPU 'H101'", "--gpu H100-80G"]),
        (["33b"], 2, ["no profile '33b'", "32b"]),
        (["32b", "--set", "model.path=Some/Model", *H100], 4, ["Some/Model", "hf download"]),
        (["32b", "--num-gpus", "0", "--gpu", "H100"], 2, ["0 ranks"]),
        (["my_train.py"], 2, ["no plan of a script"]),
        (["32b", "--set", "launch.load=random", "--set", "launch.start=warm"], 2, ["together"]),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(
    typed: Typed, cache: dict[str, str], args: list[str], expected: int, words: list[str]
) -> None:
    code, out, err = typed("plan", *args, env=cache)
    assert (code, out) == (expected, "")
    assert all(word in err for word in words), err
    assert "→" in err
    assert "Traceback" not in err


@pytest.mark.long
def test_a_cache_that_cannot_be_written_is_no_reason_not_to_answer(
    user: User, cache: dict[str, str]
) -> None:
    (user.folder / "cache").write_text("no folder")
    env = cache | {"AIRLOCK_CACHE_DIR": str(user.folder / "cache")}
    assert plan_of(user.typed, "tiny", env=env)["verdict"] is not None


@pytest.mark.runs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_tracer_too(user: User, cache: dict[str, str], number: int) -> None:
    env = cache | user.hooked("train.trace.step_trace", "__import__('time').sleep(1000)")
    new = ("--set", "data.max_seq_length=77")  # no other test asks that
    with ended(user.airlock("plan", "tiny", *new, env=env)) as process:
        (child,) = wait_for(psutil.Process(process.pid).children, why="no tracer")
        time.sleep(0.5)
        os.kill(process.pid, number)
        assert process.wait(20) == 21
        assert not child.is_running()
