"""Limits on open files and on processes, set for a child that then checks them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from machine.cores.cores import usable_cores
from tests.cgroup_limits import few_pids
from tests.running import python

LOOK = """
import json, os, resource, sys
from launch.checks import system
from tests.launch.checks.conftest import context
about = context(*json.loads(sys.argv[1]))  # before it may be a user who cannot enter the clone
for first in sys.argv[2:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    exec(first)
    rows = [(row.level, row.text or row.warning, row.do) for row in system.check_limits(about)]
    print(json.dumps([rows, resource.getrlimit(resource.RLIMIT_NOFILE)]))
    break
"""
SETTINGS = ("tiny", "launch.threads_per_rank=4")


def check_after(
    *firsts: str, command: Sequence[str] = (), settings: tuple[str, ...] = SETTINGS
) -> list[tuple[Any, Any]]:
    """Return (findings, the limit on open files) of a process for each of `firsts`, done first."""
    out = python(LOOK, json.dumps(settings), *firsts, within=command)
    return [(rows, files) for rows, files in map(json.loads, out.splitlines())]


def test_a_low_limit_on_open_files_is_raised_and_one_that_cannot_be_is_a_warning() -> None:
    limits = ((256, 8192), (5000, 8192), (256, 1024))
    low, enough, fixed = check_after(
        *(f"resource.setrlimit(resource.RLIMIT_NOFILE, {limit})" for limit in limits)
    )
    assert low[0][0] == ["ok", "a process may open 8,192 files (raised from 256)", ""]
    assert low[1] == [8192, 8192]
    assert enough[0][0][1] == "a process may open 5,000 files"
    assert enough[1] == [5000, 8192]
    level, text, do = fixed[0][0]
    assert (level, fixed[1]) == ("warning", [1024, 1024])
    assert "may open 1,024 files, and the limit cannot be raised; a rank may need 4,096" in text
    assert "--ulimit nofile=65536" in do


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_limit_on_processes_that_leaves_too_few_threads_is_an_error() -> None:
    # The kernel exempts root, so it is tested as a user without other processes.
    as_other = "resource.setrlimit(resource.RLIMIT_NPROC, ({0}, {0})); os.setuid(61234)"
    few, enough = check_after(as_other.format(40), as_other.format(400))
    level, text, do = few[0][1]
    assert level == "error"
    assert "RLIMIT_NPROC) leaves 39 of 40 threads; 2 ranks start at least 56" in text
    assert do.startswith("ulimit -u")
    assert enough[0][1][0] == "ok"


def test_a_cgroup_that_leaves_too_few_threads_is_an_error() -> None:
    with few_pids(40) as inside:
        ((rows, _),) = check_after("", command=inside)
        (found,) = [row for row in rows if "/airlock-" in row[1]]
    assert found[0] == "error"
    assert "threads; 2 ranks start at least 56" in found[1]
    assert "--pids-limit=-1" in found[2]
    with few_pids(400) as inside:
        ((rows, _),) = check_after("", command=inside)
        assert [row[0] for row in rows if "/airlock-" in row[1]] == ["ok"]


def test_the_threads_of_a_rank_are_its_share_of_the_cores() -> None:
    share = max(1, usable_cores().number // 2)
    with few_pids(30) as inside:
        ((rows, _),) = check_after("", command=inside, settings=("tiny",))
    (text,) = [row[1] for row in rows if "/airlock-" in row[1]]
    assert text.endswith(f"2 ranks start at least {2 * (share + 8) + 32}")
