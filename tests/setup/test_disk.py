"""A disk that is too full for the environment, or cannot be written to."""

import re
import shutil
import subprocess

import pytest

from tests.clone import Clone, torch_for_cpu, torch_with_cuda


def on_a_disk_of_its_own(clone: Clone, then: str) -> subprocess.CompletedProcess[str]:
    """Run the clone on a file system of 60 MiB, after running THEN there."""
    root = clone.root
    script = f"""set -e
        PATH=/usr/sbin:/usr/bin:/sbin:/bin
        cp -a '{root}' '{root}.copy'
        mount -t tmpfs -o size=60m none '{root}'
        cp -a '{root}.copy/.' '{root}'
        cd '{root}'
        {then}
        PATH='{clone.bin}' exec ./start.sh tiny"""
    unshare = shutil.which("unshare", path="/usr/bin:/bin") or "no unshare"
    namespaces = [unshare, "--user", "--map-root-user", "--mount", "/bin/sh", "-c"]
    try:
        clone.execute([*namespaces, "/bin/mount -t tmpfs none /tmp"]).check_returncode()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mounts of one's own here: {error}")
    return clone.execute([*namespaces, script])


def test_a_disk_with_no_room_for_torch_is_refused_before_anything_is_fetched(clone: Clone) -> None:
    clone.pin(torch_with_cuda(clone))
    result = on_a_disk_of_its_own(clone, "export AIRLOCK_TORCH=cuda")
    assert result.returncode == 4
    own = re.escape(f"{clone.root}/.venv")
    free = rf"too full for \.venv: 8 GiB needed, free are .*0\.0\d GiB in {own}\n"
    assert re.search(free, result.stderr), result.stderr
    assert "installing" not in result.stderr
    shutil.rmtree(f"{clone.root}.copy")
    clone.pin(torch_for_cpu(clone))
    assert ": 3 GiB needed" in on_a_disk_of_its_own(clone, "").stderr


def test_a_disk_that_is_full_is_named_as_the_cause(clone: Clone) -> None:
    result = on_a_disk_of_its_own(clone, "head -c 100M /dev/zero >zeros || true")
    assert result.returncode == 4
    assert f"cannot make .venv in {clone.root}, where 0.00 GiB are free: " in result.stderr
    assert "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cache_that_fills_up_is_named_as_the_cause_with_the_way_out(clone: Clone) -> None:
    clone.pin(clone.wheels("1.0", 20))
    setting = "mkdir cache; mount -t tmpfs -o size=8m none cache; export UV_CACHE_DIR=$PWD/cache"
    result = on_a_disk_of_its_own(clone, setting)
    assert result.returncode == 4
    assert "No space left on device" in result.stderr
    assert f"; free are 0.01 GiB in {clone.root}/cache and " in result.stderr
    assert "UV_CACHE_DIR=DIR a disk with more room" in result.stderr


def test_a_clone_that_cannot_be_written_to_is_named_as_the_cause(clone: Clone) -> None:
    result = on_a_disk_of_its_own(clone, f"mount -o remount,bind,ro '{clone.root}'")
    assert result.returncode == 4
    assert f"cannot make .venv in {clone.root}, where " in result.stderr
    assert "Read-only file system: " in result.stderr
    assert (
        "AIRLOCK_PYTHON=PATH before it uses a Python that has all that is needed" in result.stderr
    )


@pytest.mark.long
def test_a_clone_that_cannot_be_written_to_runs_once_it_is_whole(started: Clone) -> None:
    result = on_a_disk_of_its_own(started, f"mount -o remount,bind,ro '{started.root}'")
    assert result.returncode == 0, result.stderr
