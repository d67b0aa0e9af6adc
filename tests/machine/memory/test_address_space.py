"""The limit on a rank's address space: predicted from named parts, and tried out for real."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.address_limit import rank_limit
from launch.start.rank.reporter import last_words
from machine.memory.address_probe import LimitTrial, probe
from machine.memory.address_space import Prediction, mapped_files, predict
from machine.memory.host_memory import HostMemory
from machine.memory.limits import RLIMIT_VARIABLE, apply_limits, check_limits, is_out_of_memory
from rundir.config import LimitsConfig
from rundir.errors import ExitCode, UserError
from rundir.prepared import Prepared, PreparedData
from rundir.units import GIB, MIB
from tests.running import python

SMALL = predict([], "2", [])


def test_what_is_predicted_is_all_of_the_memory_and_what_is_reserved_besides() -> None:
    total = HostMemory().now().total_bytes
    assert SMALL.most_bytes > total + 4 * GIB
    assert SMALL.most_bytes == sum(part.most_bytes for part in SMALL.parts)
    assert SMALL.least_bytes < 2 * GIB  # the tiny profile runs in that
    for part in SMALL.parts:
        assert part.least_bytes <= part.most_bytes
        assert part.what in SMALL.in_words()


def test_files_that_are_mapped_add_their_size(tmp_path: Path) -> None:
    sizes = (3 * GIB, GIB)
    files = [tmp_path / str(size) for size in sizes]
    for file, size in zip(files, sizes, strict=True):
        with file.open("wb") as sparse:
            sparse.truncate(size)
    with_files = predict(files, "2", [])
    assert with_files.least_bytes - SMALL.least_bytes == 7 * GIB  # twice the largest
    assert with_files.most_bytes - SMALL.most_bytes == 8 * GIB


def test_gpus_and_threads_add_what_is_reserved_for_them() -> None:
    assert predict([], "2,4", []).num_threads == SMALL.num_threads  # nested: the first counts
    assert predict([], "many", []).num_threads >= len(os.sched_getaffinity(0))
    assert predict([], "50", []).most_bytes > SMALL.most_bytes + 2 * 48 * 64 * MIB
    with_gpus = predict([], "2", [80 * GIB] * 8)
    gpus = 8 * 80 * GIB
    assert with_gpus.most_bytes > SMALL.most_bytes + 3 * gpus * 9 // 8 + gpus
    assert with_gpus.least_bytes == SMALL.least_bytes  # nothing of it is certain


def test_the_weights_the_data_and_the_checkpoint_are_what_is_mapped(tmp_path: Path) -> None:
    model, checkpoint, data = (tmp_path / name for name in ("model", "step_1", "data"))
    for folder in (model, checkpoint, data):
        folder.mkdir()
    wanted = [model / "model.safetensors", checkpoint / "model.safetensors", data / "tokens"]
    for path in (*wanted, model / "pytorch_model.bin", model / "config.json"):
        path.write_bytes(b"x")
    train = PreparedData(path=str(data), num_samples=1, num_too_long=0, longest=9, end_token_id=0)
    prepared = Prepared(
        model_path=str(model), train=train, evaluation=None, resume_from=str(checkpoint)
    )
    assert mapped_files(prepared) == wanted
    (model / "model.safetensors").unlink()
    assert mapped_files(prepared)[0] == model / "pytorch_model.bin"


def test_the_prediction_passes_its_trial_and_is_handed_on_unless_a_user_has_set_one() -> None:
    limit = rank_limit(LimitsConfig(), SMALL)
    assert (limit.name, limit.source) == (RLIMIT_VARIABLE, "predicted")
    assert limit.value == str(SMALL.most_bytes)
    assert limit.reason == SMALL.in_words()
    assert rank_limit(LimitsConfig(rlimit_as_gib=3), SMALL).value == str(3 * GIB)
    assert rank_limit(LimitsConfig(rlimit_as_gib=0), SMALL).value == "0"


def test_a_users_limit_that_is_too_low_is_refused_and_the_one_that_is_named_will_do() -> None:
    with pytest.raises(UserError) as caught:
        rank_limit(LimitsConfig(rlimit_as_gib=1), SMALL)
    assert caught.value.code == ExitCode.PREFLIGHT
    assert "1.00 GiB" in str(caught.value)
    assert "AIRLOCK_RLIMIT_AS_GIB=0" in str(caught.value) or "0 is none" in str(caught.value)
    named = re.search(r"AIRLOCK_RLIMIT_AS_GIB=(\d+)", caught.value.do)
    assert named is not None
    assert rank_limit(LimitsConfig(rlimit_as_gib=int(named[1])), SMALL).source.startswith("limits")


def test_a_prediction_that_fails_its_trial_is_not_applied_and_says_why() -> None:
    needs_more = replace(SMALL.parts[0], least_bytes=SMALL.most_bytes)
    wrong = Prediction([needs_more, *SMALL.parts[1:]], SMALL.num_threads, SMALL.stack_bytes)
    limit = rank_limit(LimitsConfig(), wrong)
    assert (limit.value, limit.source) == ("0", "predicted")
    assert "none" in limit.reason
    assert "Cannot allocate memory" in limit.reason


@pytest.mark.parametrize(
    ("limit_bytes", "reserved_bytes", "num_threads", "failure"),
    [
        # A load of 1.6 GB has failed under 2.5 GiB, so the probe must report it beforehand.
        (5 * GIB // 2, 3 * GIB, 4, "reserve"),
        (4 * GIB, 3 * GIB, 4, None),
        # Too little room for threads fails the trial in bounded time.
        (GIB + 10 * MIB, GIB, 64, "thread|reserve"),
        (GIB + 40 * MIB, GIB, 64, "thread|reserve"),
        (GIB + 100 * MIB, GIB, 64, "thread|reserve"),
    ],
)
def test_a_trial_fails_where_the_limit_leaves_no_room_for_what_is_reserved(
    limit_bytes: int, reserved_bytes: int, num_threads: int, failure: str | None
) -> None:
    result = probe(
        LimitTrial(limit_bytes=limit_bytes, reserved_bytes=reserved_bytes, num_threads=num_threads)
    )
    assert (result.failure is None) == (failure is None)
    assert failure is None or re.search(failure, result.failure or "")


LIMITED = """
from launch.config.address_limit import rank_limit
from launch.start.rank.reporter import last_words
from machine.memory.address_space import predict
from machine.memory.limits import check_limits
from rundir.config import LimitsConfig
try:
    check_limits(LimitsConfig(rlimit_as_gib={gib}))
    print(rank_limit(LimitsConfig(rlimit_as_gib={gib}), predict([], "2", [])).value)
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("ulimit_gib", "gib", "printed"),
    [
        pytest.param(3, -1, rf"^{3 * GIB}$", id="kept, as ranks can start with it"),
        pytest.param(1, -1, r"ulimit -v: no rank starts with 1\.00 GiB", id="too low for a rank"),
        pytest.param(3, 5, r"hard limit is 3\.0 GiB", id="more than the hard limit"),
    ],
)
def test_a_ulimit_is_kept_if_ranks_can_start_with_it_and_else_refused(
    ulimit_gib: int, gib: int, printed: str
) -> None:
    limited = ("sh", "-c", f'ulimit -v {ulimit_gib << 20}; exec "$0" "$@"')
    text = python(LIMITED.format(gib=gib), within=limited)
    assert re.search(printed, text, re.MULTILINE)
    assert ("ulimit -v 2097152" in text) == (ulimit_gib == 1)


def test_a_guard_that_would_keep_all_memory_free_is_refused() -> None:
    check_limits(LimitsConfig(guard_gib=0.1))
    with pytest.raises(UserError, match="guard_gib asks for 1e\\+06 GiB"):
        check_limits(LimitsConfig(guard_gib=1e6))


@pytest.mark.parametrize(
    ("gib", "handed", "applied"),
    [
        (-1, str(40 * GIB), 40 * GIB),
        (-1, "0", None),
        (-1, "", None),
        (50, str(40 * GIB), 50 * GIB),
        (0, str(40 * GIB), None),
    ],
)
def test_a_rank_applies_what_it_is_handed_unless_one_was_asked_for(
    gib: float, handed: str, applied: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setenv(RLIMIT_VARIABLE, handed)
    try:
        assert apply_limits(LimitsConfig(rlimit_as_gib=gib))["rlimit_as_bytes"] == applied
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (RuntimeError("unable to mmap 1600 bytes from file: Cannot allocate memory (12)"), True),
        (RuntimeError("std::bad_alloc"), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), True),
        (RuntimeError("Unexpected error from cudaGetDeviceCount() Error 2: out of memory"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronous"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("cudaGetDeviceCount(). Error 803: system has unsupported driver"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_a_failed_allocation_is_known_by_what_it_says(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one
    assert (last_words(error)["exit_code"] == ExitCode.OUT_OF_MEMORY) is is_one
