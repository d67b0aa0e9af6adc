"""Events while the environment is being made: a kill, half a download, another start, Ctrl-C."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clone import Clone, make_wheel
from tests.setup.index import Index, stub_uv


def begin(clone: Clone) -> subprocess.Popen[str]:
    """Start in the background, in a separate session, as in a separate terminal."""
    return subprocess.Popen(
        [clone.root / "start.sh", "tiny"],
        env=clone.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_of(clone: Clone) -> dict[int, str]:
    """Return the processes whose command line names the clone, by pid."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if str(clone.root) in command:
            processes[int(folder.name)] = command
    return processes


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # the timeout of the test is the limit
        time.sleep(0.02)


def installer(clone: Clone) -> int:
    processes = processes_of(clone)
    return next(pid for pid, command in processes.items() if "setup/make.py" in command)


@pytest.mark.runs
@pytest.mark.parametrize("holds", [pytest.param("uv", marks=pytest.mark.long), ".whl", "compiling"])
def test_an_install_that_was_killed_is_not_taken_for_whole_and_the_next_start_completes_it(
    clone: Clone, index: Index, holds: str
) -> None:
    index.holds = holds
    if holds == "uv":  # the first thing fetched if there is none
        index.holds = stub_uv(clone).name
        clone.env["PIP_INDEX_URL"] = index.url
    elif holds == "compiling":
        many = "\n".join(f"x{i} = [{i}, '{i}']" for i in range(30_000))
        make_wheel(clone.root.parent / "wheels/airlock_tiny-1.0-py3-none-any.whl", code=many)
    first = begin(clone)
    if holds == "compiling":
        wait_until(lambda: any("pip_compileall" in one for one in processes_of(clone).values()))
    assert holds == "compiling" or index.was_asked.wait(60)
    os.kill(installer(clone), signal.SIGKILL)
    _, errors = first.communicate()
    assert first.returncode == 128 + signal.SIGKILL
    assert not clone.marker.exists()
    wait_until(lambda: not processes_of(clone))  # its child processes do not outlive it

    index.may_answer.set()
    torn = clone.write(".venv/lib/torn.py", "")
    result = clone.run("tiny")
    assert result.returncode == 0, errors + result.stderr
    assert json.loads(result.stdout)["prefix"] == str(clone.root / ".venv")
    assert not torn.exists()


@pytest.mark.long
def test_half_a_download_is_an_error_after_which_the_next_start_completes_it(
    clone: Clone, index: Index
) -> None:
    index.torn = True
    index.may_answer.set()
    result = clone.run("tiny", UV_HTTP_RETRIES="1")
    assert result.returncode == 4, result.stderr
    assert "airlock: uv cannot install what is pinned, as it says above; free are " in result.stderr
    assert f" (log: {clone.root}/.venv/install.log):\n" in result.stderr
    assert f"\n  '{clone.root}/start.sh' tiny\n      tries again" in result.stderr
    index.torn = False
    assert clone.stub("tiny")["prefix"] == str(clone.root / ".venv")


def test_of_two_starts_at_once_the_second_waits_for_the_first_and_uses_its_work(
    clone: Clone, index: Index
) -> None:
    first = begin(clone)
    assert index.was_asked.wait(60)
    holder = installer(clone)
    second = begin(clone)
    assert second.stderr
    line = second.stderr.readline()
    assert line == f"airlock: waiting for process {holder}, which is installing .venv\n"
    index.may_answer.set()
    for process in (first, second):
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        assert json.loads(output)["prefix"] == str(clone.root / ".venv")
        assert ("airlock: .venv is ready" in errors) == (process is first)


@pytest.mark.parametrize("whom", ["the terminal", pytest.param("start.sh", marks=pytest.mark.long)])
def test_an_interrupted_install_ends_pip_and_says_how_to_go_on(
    clone: Clone, index: Index, whom: str
) -> None:
    process = begin(clone)
    assert index.was_asked.wait(60)
    if whom == "the terminal":
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    else:
        process.terminate()
    _, errors = process.communicate()
    assert process.returncode == (21 if whom == "the terminal" else -signal.SIGTERM)
    assert errors.splitlines()[-2:] == [
        "airlock: interrupted; .venv is not complete yet. To go on:",
        f"  '{clone.root}/start.sh' tiny",
    ]
    assert not processes_of(clone)
    assert not clone.marker.exists()


def test_what_is_pinned_anew_during_an_install_is_installed_next(
    clone: Clone, index: Index
) -> None:
    clone.wheels("1.1")
    process = begin(clone)
    assert index.was_asked.wait(60)
    clone.pin(f"--index-url {index.url}\nairlock-tiny==1.1\n")
    index.may_answer.set()
    assert process.communicate()[0]
    assert airlock_tiny(clone) == ["1.0"]
    clone.stub()
    assert airlock_tiny(clone) == ["1.1"]


def airlock_tiny(clone: Clone) -> list[str]:
    folders = clone.root.glob(".venv/lib/*/site-packages/airlock_tiny-*.dist-info")
    return [path.name.split("-")[1].removesuffix(".dist") for path in folders]
