"""kill -9 while data are prepared: the next run succeeds, and nothing torn is ever used.

Every process is a fork of one that has imported what it needs; it prepares data in forks of its
own, which must end with it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rundir.seal import is_sealed
from tests.train.data.test_prepare_data import cache, file, model, saved_tokenizer
from train.data import cache as data_cache
from train.data.dataset import SampleFile
from train.data.path_samples import prepare_path
from train.data.samples import Recipe

__all__ = ["cache", "file", "model", "saved_tokenizer"]  # their fixtures

NUM_ROWS, NUM_KILLS = 3000, 5
RECIPE = Recipe(max_seq_length=1000)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_cache, "_SMALL_BYTES", 0)
    monkeypatch.setattr("train.data.formats.text_format.BLOCK_ROWS", 50)
    monkeypatch.setattr(data_cache, "num_processes", lambda: 2)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # these are forks of a busy process


def fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def remove_all(cache: Path) -> None:
    """Remove what has been prepared; half-made folders stay."""
    for folder in cache.glob("[!.]*"):
        shutil.rmtree(folder)


def alive(group: int) -> list[psutil.Process]:
    """Return the processes of a group that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.runs
def test_whenever_it_is_killed_the_next_run_has_whole_data(
    file: Path, model: Path, cache: Path
) -> None:
    draw, num_torn = random.Random(NUM_KILLS), 0
    rows = [{"text": f"{i} " * (i % 60 + 1)} for i in range(NUM_ROWS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def whole() -> None:
        """Fail unless what is in the cache, or is made now, is complete."""
        prepared, _ = prepare_path(file, model, RECIPE)
        samples = SampleFile(prepared)
        assert len(samples) == NUM_ROWS
        for i in (0, 1, NUM_ROWS // 2, NUM_ROWS - 1):
            text = bytes(rows[i]["text"], "ascii")
            assert len(samples[i][0]) == len(text) + 1

    def is_torn() -> bool:
        return any(path.is_dir() for path in cache.glob(".*"))

    started = time.monotonic()
    assert wait(fork(whole)) == 0
    took_s = time.monotonic() - started
    remove_all(cache)
    for kill in range(NUM_KILLS):
        pid = fork(lambda: prepare_path(file, model, RECIPE))
        if kill == 0:  # one of them is certain to be hit in the middle
            while not is_torn():
                time.sleep(0.0005)
        else:
            time.sleep(draw.uniform(0, took_s))
        os.kill(pid, signal.SIGKILL)
        wait(pid)
        deadline = time.monotonic() + 10
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not alive(pid), "forks outlive the one that was killed"
        num_torn += is_torn()
        for folder in cache.glob("[!.]*"):
            assert is_sealed(folder)
            assert wait(fork(whole)) == 0
        remove_all(cache)  # so that there is something to kill
    assert num_torn > 0  # some were hit in the middle
    assert wait(fork(whole)) == 0
    assert not is_torn(), "litter of the killed"


def test_of_two_that_want_the_same_one_waits_and_has_it_too(
    file: Path, model: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text("".join(json.dumps({"text": f"{i} " * 50}) + "\n" for i in range(NUM_ROWS)))
    pids = [fork(lambda: prepare_path(file, model, RECIPE)) for _ in range(3)]
    assert [wait(pid) for pid in pids] == [0, 0, 0]
    assert len(list(cache.glob("[!.]*"))) == 1
    assert not [path for path in cache.glob(".*") if path.is_dir()]
    assert "another run prepares the same: waiting for it" in capfd.readouterr().err


def test_without_locks_both_prepare_and_have_it(
    file: Path, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_args: object, **_named: object) -> None:
        raise NotImplementedError("as on a file system that has none")

    monkeypatch.setattr("filelock.FileLock.acquire", none)
    file.write_text("".join(json.dumps({"text": f"{i} " * 50}) + "\n" for i in range(NUM_ROWS)))
    pids = [fork(lambda: prepare_path(file, model, RECIPE)) for _ in range(3)]
    assert [wait(pid) for pid in pids] == [0, 0, 0]
    (folder,) = cache.glob("[!.]*")
    assert is_sealed(folder)
    assert len(SampleFile(prepare_path(file, model, RECIPE)[0])) == NUM_ROWS


def test_a_killed_helper_is_told_and_nothing_waits_for_it(
    file: Path, model: Path, cache: Path
) -> None:
    file.write_text("".join(json.dumps({"text": f"{i} " * 90}) + "\n" for i in range(40_000)))
    pid = fork(lambda: prepare_path(file, model, RECIPE))
    deadline = time.monotonic() + 60
    while len(alive(pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    helpers = [process for process in alive(pid) if process.pid != pid]
    os.kill(helpers[0].pid, signal.SIGKILL)
    assert wait(pid) == 1
    assert not list(cache.glob("[!.]*"))
