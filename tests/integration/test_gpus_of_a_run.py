"""What `launch` tells of the GPUs of a run, from a pretended driver to the end of the run."""

from __future__ import annotations

import json

import pytest

from tests import fake_drivers
from tests.conftest import HAS_GPU
from tests.running import User, events_of
from tests.scripts import JOIN, script

pytestmark = pytest.mark.skipif(HAS_GPU, reason="here torch would ask the pretended driver too")


def test_the_gpus_of_a_script_are_sampled_while_it_runs_and_a_lost_one_is_told(user: User) -> None:
    """The ranks compute on the CPU; the launcher, which knows of two GPUs, watches these."""
    path = script(user.folder, JOIN + "import time\ntime.sleep(8)\n")
    env = fake_drivers.nvml(user.folder) | {"NVML_USED_MIB_0": "72908", "NVML_LOST_BY_UUID_1": "15"}
    out = user.output_of("run", "--force", path, env=env)
    run = user.run()
    samples = events_of(run, "metric", "gpu")
    assert len(samples) >= 2  # again and again
    assert {one["index"] for one in samples} == {0}
    assert samples[0]["used_bytes"] == 72908 << 20
    assert (samples[0]["utilization_percent"], samples[0]["power_w"]) == (98, 690.4)
    assert [one["index"] for one in events_of(run, "mark", "gpu.silent")] == [1]
    assert out.count("airlock: GPU 1 does not answer any more") == 1
    assert "GPUs          peak 71.2 of 79.6 GiB; 98% busy in training; up to 40 °C" in out
    variables = json.loads(run.environment.read_text())["variables"]
    order = next(one for one in variables if one["name"] == "CUDA_DEVICE_ORDER")
    assert order["value"] == "PCI_BUS_ID"
