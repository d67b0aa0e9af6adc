"""A fork after CUDA was initialised is reported with its place; an earlier one is not."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest

from ranks import forks
from tests.running import python

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def fork_here() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_a_fork_is_said_once_for_each_place_if_cuda_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    in_use = False
    monkeypatch.setattr(forks, "_said", set())
    monkeypatch.setattr(forks, "cuda_is_initialized", lambda: in_use)  # no GPU here
    forks.watch_forks(said.append)
    fork_here()
    assert said == []
    in_use = True
    fork_here()
    fork_here()
    (line,) = said
    number = fork_here.__code__.co_firstlineno + 1
    assert f"{__file__}:{number} (in fork_here: child = os.fork())" in line
    assert "forkserver" in line
    worker = multiprocessing.get_context("fork").Process(target=int)
    worker.start()
    worker.join()
    assert len(said) == 2
    assert f"{__file__}:" in said[1]
    assert "worker.start()" in said[1]
    forks.watch_forks(lambda _: None)


@pytest.mark.gpu
def test_on_a_gpu_it_is_known_when_cuda_is_in_use() -> None:
    program = """
import json, os, torch
from ranks.forks import watch_forks
said = []
watch_forks(said.append)
def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()
fork()
before = len(said)
torch.zeros(1, device="cuda")
fork()
print(json.dumps([before, len(said)]))
"""
    assert json.loads(python(program)) == [0, 1]
