"""The things a process must not have when it is forked, found in processes that have them."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import ROOT
from tests.running import User, python

LOOK = """
import dataclasses, json
from launch.start.rank.fork_safety import inspect
inspection = inspect(with_a_fork=True)
print(json.dumps(dataclasses.asdict(inspection) | {"why": inspection.why_not_to_fork}))
"""


def look(environ: dict[str, str], before: str = "") -> dict[str, object]:
    """Return what `inspect` finds in a process that has run `before`."""
    inspection: dict[str, object] = json.loads(python(before + LOOK, env=environ))
    return inspection


def test_a_plain_process_is_safe(environ: dict[str, str]) -> None:
    inspection = look(environ)
    assert inspection["num_threads"] == 1
    assert not inspection["cuda_touched"]
    assert inspection["why"] is None


def test_a_thread_is_found_however_idle(environ: dict[str, str]) -> None:
    before = """
import threading, time
threading.Thread(target=time.sleep, args=[5], daemon=True).start()
"""
    inspection = look(environ, before)
    assert inspection["num_threads"] == 2
    assert "2 threads" in str(inspection["why"])


def test_a_thread_that_has_just_ended_is_none(environ: dict[str, str]) -> None:
    before = """
import threading
many = [threading.Thread(target=sum, args=[range(1000)]) for _ in range(20)]
for thread in many: thread.start()
for thread in many: thread.join()
"""
    assert look(environ, before)["why"] is None


@pytest.mark.runs
def test_the_threads_of_a_parallel_region_are_found_after_it_has_ended(
    environ: dict[str, str],
) -> None:
    before = "import torch\ntorch.set_num_threads(4)\ntorch.ones(1 << 22).exp_()"
    inspection = look(environ | {"OPENBLAS_NUM_THREADS": "1"}, before)
    assert re.match(r"it has (\d+) threads \(python\)", str(inspection["why"]))
    assert int(str(inspection["num_threads"])) >= 4  # torch keeps more than it was told to use
    before = "import torch\ntorch.set_num_threads(1)\ntorch.ones(1 << 22).exp_()"
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    assert look(environ | one, before)["why"] is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("before", "touched"),
    [
        ("import torch; torch.cuda.init()", True),
        ("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)", True),
        ("import torch; assert torch.cuda.is_available()", False),  # asked through NVML
    ],
)
def test_cuda_is_found_whoever_initialised_it(
    environ: dict[str, str], before: str, touched: bool
) -> None:
    environ = environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    assert look(environ, before)["cuda_touched"] is touched


# One process, since importing torch takes long. As after torch has counted the devices by the CUDA
# runtime, for want of NVML; then as after an import that has initialised CUDA.
_WITH_TORCH = """
import os
from pathlib import Path
import torch
from launch.start.rank.fork_safety import inspect
from launch.start.rank.script_preload import UnfitError
from launch.start.rank.zygote import import_libraries
from rundir.events import EventWriter

print(inspect(with_a_fork=True).why_not_to_fork)
torch.cuda._is_in_bad_fork = lambda pid=os.getpid(): os.getpid() != pid
for is_available in (False, True):
    torch.cuda.is_available = lambda: is_available
    print(inspect(with_a_fork=True).cuda_touched)
print(inspect(with_a_fork=True).why_not_to_fork)
libraries = [(name, lambda name=name: __import__(name)) for name in ("torch", "apex", "never")]
try:
    import_libraries(libraries, EventWriter(Path("/dev/null")))
except UnfitError as error:
    print(error)
"""


def test_what_torch_tells_only_a_fork_is_found_where_there_is_a_gpu_and_an_import_is_named(
    user: User,
) -> None:
    (user.folder / "apex.py").write_text("import torch; torch.cuda._initialized = True\n")
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = user.environ | dict.fromkeys(names, "1") | {"PYTHONPATH": f"{ROOT}:{user.folder}"}
    assert python(_WITH_TORCH, env=env).splitlines() == [
        "None",
        "False",
        "True",
        "CUDA was initialised in it, which no fork can use again",
        "importing apex (with apex) has initialised CUDA in it, which no fork can use again",
    ]
