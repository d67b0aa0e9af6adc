"""The child process that loads a model's tokenizer, whatever happens to it or to the cache."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.model_tokenizers import TEXTS, auto, ids, of_bytes, saved
from train.files import served as served_module
from train.files.served import tokenizer_of

ASK = """
import sys
from pathlib import Path
from train.files.served import served, tokenizer_of
print(tokenizer_of(Path(sys.argv[1])).encode("in 2024", add_special_tokens=False).ids)
assert not {"transformers", "torch"} & set(sys.modules)
"""


def start(folder: Path, environ: dict[str, str], **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", ASK, str(folder)],
        env=environ | env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=100)
    return process.returncode, out, errors


@pytest.mark.long
def test_a_child_that_is_killed_ends_the_run_the_next_two_ask_at_once_and_later_ones_nobody(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    folder = saved(tmp_path / "model", of_bytes(), "qwen3_5")
    env = {"AIRLOCK_CACHE_DIR": str(tmp_path / "cache")}
    process = start(folder, environ, **env)
    os.kill(child_of(process), signal.SIGKILL)
    code, _, errors = ended(process)
    assert code == 1
    assert "UserError: the process that loads the model's tokenizer was killed" in errors
    assert not (tmp_path / "cache").exists()
    both = [start(folder, environ, **env) for _ in range(2)]
    expected = (0, f"{ids(auto(folder), 'in 2024')}\n", "")
    assert [ended(process) for process in both] == [expected] * 2
    (note,) = (tmp_path / "cache" / "tokenizers").iterdir()  # and nothing half written
    before = note.stat().st_mtime_ns
    (folder / "tokenizer.json").touch()  # the content counts
    process = start(folder, environ, **env)
    watched = psutil.Process(process.pid)
    children = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            children += len(watched.children())
    assert ended(process) == expected
    assert children == 0
    assert note.stat().st_mtime_ns == before


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "model", of_bytes(), "qwen3_5")
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    served_module._answer.cache_clear()
    assert ids(tokenizer_of(folder), TEXTS[0]) == ids(auto(folder), TEXTS[0])


def child_of(process: subprocess.Popen[str]) -> int:
    """Return the pid of the child that loads the class, once it runs."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for one in psutil.Process(process.pid).children():
            if "train.files.ask_class" in one.cmdline():
                return one.pid
        time.sleep(0.005)
    raise AssertionError("it has started no child")
