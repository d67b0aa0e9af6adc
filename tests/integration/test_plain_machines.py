"""`python -m train` on machines of several kinds: with GPUs, without, and like a Mac."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from rundir.config_file import read_config
from rundir.paths import ROOT
from tests import fake_drivers
from tests.conftest import HAS_GPU
from tests.integration.test_plain import AIRLOCK, EIGHT, ONE, done, weights
from tests.running import Start, Typed, User, ended, events_of, finish, wait_for


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_a_profile_that_needs_a_gpu_says_so_where_there_is_none(typed: Typed) -> None:
    err = typed.error_of("run", "--plain", "14b", code=4)
    assert "14b needs an NVIDIA GPU" in err


def test_of_eight_gpus_the_first_visible_is_used_and_the_command_for_all_is_said(
    user: User,
) -> None:
    env = fake_drivers.nvml(user.folder) | {"NVML_COUNT": "8", "CUDA_VISIBLE_DEVICES": "5,6,7"}
    with ended(user.plain(*ONE, "--set", "train.seed=1", env=env)) as process:
        run = user.run()
        wait_for(lambda: events_of(run, "start", "prepare"), why="it has not begun")
        process.send_signal(signal.SIGINT)
        _, out, _ = finish(process)
    assert "tiny, 1 rank on cuda" in out
    more = f"airlock: 1 of 3 GPUs is used; all: CUDA_VISIBLE_DEVICES=5,6,7 {AIRLOCK} run tiny"
    assert more in out
    variables = json.loads(run.environment.read_text())["variables"]
    values = {variable["name"]: variable["value"] for variable in variables}
    assert values["CUDA_VISIBLE_DEVICES"] == "GPU-5"
    assert read_config(run.config).launch.num_ranks == 1


@pytest.mark.long
def test_a_plain_run_from_the_clones_root_needs_no_environment_and_ignores_a_world_of_one(
    environ: dict[str, str],
) -> None:
    own = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    env = own | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "train", *ONE],
        cwd=ROOT,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    done(process, environ)


# What macOS lacks: /proc, for all but psutil (which does without it there), and Linux-only calls.
_LIKE_MACOS = """
import io, os, sys, types
import psutil  # looks, as it is imported, at what there is
whole_open, whole_stat = io.open, os.stat
def no_proc(call):
    def inner(path, *args, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return call(path, *args, **options)
    return inner
io.open, os.stat = no_proc(whole_open), no_proc(whole_stat)
import resource, select, signal
for name in ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate",
             "pidfd_open", "memfd_create", "eventfd", "splice", "copy_file_range", "getrandom"):
    if hasattr(os, name):
        delattr(os, name)
del select.epoll, resource.prlimit, signal.sigtimedwait, signal.sigwaitinfo, signal.SIGRTMIN
"""
_DARWIN = "import types\nmodule.sys = types.SimpleNamespace(platform='darwin', argv=[])"


def test_a_plain_run_needs_nothing_that_only_linux_has(user: User) -> None:
    (user.folder / "sitecustomize.py").write_text(_LIKE_MACOS)
    env = user.hooked("machine.processes.parent", _DARWIN)
    env |= {"AIRLOCK_CACHE_DIR": str(user.folder / "cache")}
    run, out = done(user.plain(*ONE, env=env), user.environ)
    assert "step 1/1" in out
    assert events_of(run, "mark", "mem.post_model")[0]["pss_anon_bytes"] > 1 << 20


@pytest.mark.gpu
def test_a_plain_run_trains_on_the_gpu(plain: Start, environ: dict[str, str]) -> None:
    run, out = done(plain(*EIGHT), environ)
    assert "1 rank on cuda" in out
    assert events_of(run, "mark", "mem.post_model")[0]["gpu_used_bytes"] > 0
    assert weights(run)
