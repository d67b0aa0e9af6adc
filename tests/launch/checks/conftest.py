"""A way to run the checks as a user would, on a machine on which something is wrong."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from launch.checks.context import Context
from launch.config.resolve import resolve
from machine.gpus.devices import Gpu, Placement
from tests import fake_drivers
from tests.forked import run_module

Row = dict[str, Any]
ON_CPU = Placement("cpu", 2, "a test", ())


def on_gpus(number: int) -> Placement:
    """Return a placement on the fake driver's GPUs."""
    gpus = (Gpu(index, f"GPU-{index}", "NVIDIA Pretence", 81559 << 20) for index in range(number))
    return Placement("cuda", number, "a test", tuple(gpus))


def context(
    profile: str = "tiny",
    *settings: str,
    placement: Placement = ON_CPU,
    environ: Mapping[str, str] = os.environ,
) -> Context:
    """Return the context that a check gets."""
    config, sources = resolve(profile, settings, {})
    return Context(
        config=config, sources=sources, placement=placement, environ=environ, driver=lambda: None
    )


class Machine:
    """`airlock preflight`, run after something has been done to the machine."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    def rows(
        self,
        *args: str,
        first: str = "",
        profile: str = "tiny",
        env: Mapping[str, str] = {},
    ) -> dict[str, list[Row]]:
        """Return the findings of each check; a shell first runs `first` in its own namespace."""
        words, env = ["preflight", profile, "--json", *args], self.environ | dict(env)
        if first:
            program = shlex.join([sys.executable, "-P", "-m", "launch", *words])
            command = in_namespace(f"{first}\nexec {program}")
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        else:
            done = run_module("launch", *words, env=env)
        assert done.stdout, done.stderr
        found: dict[str, list[Row]] = {}
        answer = json.loads(done.stdout)
        for row in answer["findings"]:
            found.setdefault(row["check"], []).append(row)
        assert done.returncode == (0 if answer["ok"] else 4)
        return found


def in_namespace(script: str) -> list[str]:
    """Return a command that runs `script` as root of its own mounts and network, if permitted."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-e", "-c"]
    allowed = subprocess.run(
        [*unshare, "mount -t tmpfs none /mnt"], capture_output=True, text=True, check=False
    )
    if allowed.returncode:
        pytest.skip(f"no namespaces of one's own here: {allowed.stderr.strip()}")
    return [*unshare, script]


@pytest.fixture
def machine(environ: dict[str, str]) -> Machine:
    """Return this machine."""
    return Machine(environ)


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a fake driver with two GPUs."""
    return fake_drivers.nvml(tmp_path_factory.mktemp("nvml"))
