"""What a rank says of CUDA's own out-of-memory errors: its address space, or a full GPU."""

from __future__ import annotations

import json
from pathlib import Path

from tests import fake_drivers
from tests.running import python

# Last words of a process with a limit and a number of its GPU; without a limit where that is 0.
PROGRAM = """
import json, os, resource, sys
from machine.memory.limits import apply_limits
from launch.start.rank.reporter import last_words
from rundir.config import LimitsConfig
for gib, env in json.loads(sys.argv[1]):
    os.environ.update({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"} | env)
    apply_limits(LimitsConfig(rlimit_as_gib=gib))
    error = RuntimeError("CUDA driver error: out of memory")
    print(json.dumps(last_words(error)["traceback"]))
    for name in env:
        del os.environ[name]
"""


def test_a_limit_is_named_with_the_address_space_and_a_full_gpu_as_such(tmp_path: Path) -> None:
    cases: list[tuple[int, dict[str, str]]] = [
        (0, {}),
        (16, {}),
        (16, {"NVML_FREE_MIB_1": "310"}),
        (16, {"NVML_FREE_MIB_0": "310"}),
        (16, {"LOCAL_RANK": "5", "NVML_FREE_MIB_1": "310"}),
    ]
    text = python(PROGRAM, json.dumps(cases), env=fake_drivers.nvml(tmp_path))
    unlimited, limited, full, neighbour_full, unknown = map(json.loads, text.splitlines())
    assert "RLIMIT_AS" not in unlimited
    assert "RLIMIT_AS of this process is 16.0 GiB" in limited
    assert "AIRLOCK_RLIMIT_AS_GIB=0 removes the limit; CUDA reserves more" in limited
    assert "the GPU is full: 310 MiB are free" in full
    assert "RLIMIT_AS" not in full
    assert "RLIMIT_AS" in neighbour_full
    assert "RLIMIT_AS" in unknown  # a GPU that cannot be found is not called full
