"""How the clone's own environment is made on first use, and what is said when it cannot be."""

import contextlib
import http.server
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import packaging
import pytest

from tests.clone import (
    BASE_PYTHON,
    Clone,
    environment,
    installed_in,
    make_wheel,
    start_before,
    tool,
)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture
def started(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return start_before(clone, tmp_path_factory.getbasetemp())


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return installed_in(tmp_path_factory.getbasetemp())


def links_to_the_base(clone: Clone) -> list[Path]:
    links = (clone.root / ".venv/bin").glob("python*")
    return [link for link in links if link.readlink().is_absolute()]


def marker(clone: Clone) -> Path:
    return clone.root / ".venv/.airlock-installed"


def test_the_first_start_installs_what_is_pinned_and_runs_with_it(installed: Clone) -> None:
    python = installed.root / ".venv/bin/python"
    command = [str(python), "-I", "-c", "import airlock_tiny; print(airlock_tiny.version)"]
    assert installed.execute(command).stdout == "1.0\n"
    assert "Successfully installed" in (installed.root / ".venv/install.log").read_text()
    assert not (installed.root / ".venv/.airlock-installing").exists()


def test_the_second_start_starts_no_python_but_the_program(started: Clone) -> None:
    log = started.root.parent / "starts"
    record = f'#!/bin/sh\necho "$0 $*" >>{log}\n'
    python = started.root / ".venv/bin/python"
    tool(started.bin / "python3", record)
    tool(python, f'{record}exec {BASE_PYTHON} "$@"\n')
    started.stub("tiny")
    assert log.read_text() == f"{python} -P -m launch run tiny\n"


def test_changed_requirements_are_installed_in_place(started: Clone) -> None:
    kept = started.write(".venv/kept", "")
    started.pin(started.wheels("1.1"))
    started.stub()
    assert list(started.root.glob(".venv/lib/*/site-packages/airlock_tiny-1.1.dist-info"))
    assert not list(started.root.glob(".venv/lib/*/site-packages/airlock_tiny-1.0.dist-info"))
    assert kept.exists()


@pytest.mark.long
def test_changed_constraints_are_installed_as_well(started: Clone) -> None:
    started.write("constraints.txt", "# other\n")
    assert ".venv is ready" in started.run().stderr
    assert started.run().stderr == ""


def test_the_development_tools_come_with_the_first_test_and_stay(started: Clone) -> None:
    started.write("requirements-dev.txt", "-r requirements.txt\n")
    started.write(".venv/lib/stub", "")
    site = next(started.root.glob(".venv/lib/python*/site-packages"))
    (site / "pytest.py").write_text("print('the tests')")
    first = started.run(script="test.sh")
    assert (first.stdout, ".venv is ready" in first.stderr) == ("the tests\n", True)
    second = started.run(script="test.sh")
    assert (second.stdout, second.stderr) == ("the tests\n", "")
    assert started.run().stderr == ""


def test_a_failed_update_leaves_an_environment_that_does_not_count_as_whole(
    started: Clone,
) -> None:
    started.pin("--no-index\nairlock-tiny==7\n")
    result = started.run()
    assert result.returncode == 4
    assert "pip install failed: ERROR: No matching distribution found for airlock" in result.stderr
    assert f"less '{started.root}/.venv/install.log'" in result.stderr
    assert not marker(started).exists()
    # Also not for python3, when the environment is active and has a version within the range.
    own = started.root / ".venv"
    site = next(own.glob("lib/python*/site-packages"))
    shutil.copytree(Path(packaging.__file__).parent, site / "packaging")
    result = started.run(VIRTUAL_ENV=str(own), PATH=f"{own}/bin:{started.bin}")
    assert result.returncode == 4

    started.pin(started.wheels("1.0"))
    started.stub()


def test_an_environment_whose_base_python_is_gone_is_made_anew(started: Clone) -> None:
    for link in links_to_the_base(started):
        link.unlink()
        link.symlink_to("/no/longer/python3.11")
    assert started.stub()["prefix"] == str(started.root / ".venv")


def test_the_environment_names_its_base_python_by_version(installed: Clone) -> None:
    # So that an upgrade of python3 leaves a dangling link, not an interpreter without packages.
    assert [link.readlink() for link in links_to_the_base(installed)] == [BASE_PYTHON]


@pytest.mark.parametrize("active", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_venv_that_is_not_ours_is_never_touched(clone: Clone, active: bool) -> None:
    theirs = environment(clone.root / ".venv", airlock_tiny="1.0" if active else "0.1")
    before = {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")}
    if active:  # then it is an environment like any other
        assert clone.stub(VIRTUAL_ENV=str(theirs))["prefix"] == str(theirs)
    else:
        result = clone.run("tiny")
        assert result.returncode == 4
        assert f"AIRLOCK_PYTHON='{theirs}/bin/python' '{clone.root}/start.sh' tiny" in result.stderr
        assert f"rm -r '{theirs}'" in result.stderr
    assert {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")} == before


# What goes wrong while it is made


class Index:
    """A package index on this machine that keeps whoever asks for the package waiting."""

    def __init__(self, wheel: Path) -> None:
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.wheel = wheel
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
                if self.path.endswith(".whl"):
                    index.asked.set()
                    index.may_answer.wait(60)
                    body = wheel.read_bytes()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # its pip may have been killed meanwhile
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def requirements(self) -> str:
        return f"--index-url http://127.0.0.1:{self.server.server_port}/simple\nairlock-tiny==1.0\n"


@pytest.fixture
def index(clone: Clone) -> Iterator[Index]:
    """An index from which the clone's requirements are to come."""
    served = Index(clone.root.parent / "wheels/airlock_tiny-1.0-py3-none-any.whl")
    clone.pin(served.requirements())
    yield served
    served.may_answer.set()
    served.server.shutdown()
    served.server.server_close()


def begin(clone: Clone) -> subprocess.Popen[str]:
    """Start in the background, in a session of its own as in a terminal of its own."""
    return subprocess.Popen(
        [clone.root / "start.sh", "tiny"],
        env=clone.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_of(clone: Clone) -> dict[int, str]:
    """The processes whose command line names the clone, by id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if str(clone.root) in command:
            found[int(folder.name)] = command
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # the time-out of the test is the limit
        time.sleep(0.02)


def installer(clone: Clone) -> int:
    processes = processes_of(clone)
    return next(pid for pid, command in processes.items() if "launch.setup_env" in command)


def test_an_install_that_was_killed_is_not_taken_for_whole_and_the_next_start_completes_it(
    clone: Clone, index: Index
) -> None:
    first = begin(clone)
    assert index.asked.wait(60)
    os.kill(installer(clone), signal.SIGKILL)
    _, errors = first.communicate()
    assert first.returncode == 128 + signal.SIGKILL
    assert not marker(clone).exists()
    wait_until(lambda: not processes_of(clone))  # pip does not outlive it

    index.may_answer.set()
    torn = next(clone.root.glob(".venv/lib/python*/site-packages")) / "torn.py"
    torn.touch()
    result = clone.run("tiny")
    assert result.returncode == 0, errors + result.stderr
    assert json.loads(result.stdout)["prefix"] == str(clone.root / ".venv")
    assert not torn.exists()


def test_of_two_starts_at_once_the_second_waits_for_the_first_and_uses_its_work(
    clone: Clone, index: Index
) -> None:
    first = begin(clone)
    assert index.asked.wait(60)
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
        assert ("installing what is pinned" in errors) == (process is first)


@pytest.mark.parametrize("whom", ["the terminal", pytest.param("start.sh", marks=pytest.mark.long)])
def test_an_interrupted_install_ends_pip_and_says_how_to_go_on(
    clone: Clone, index: Index, whom: str
) -> None:
    process = begin(clone)
    assert index.asked.wait(60)
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
    assert not marker(clone).exists()


def test_without_a_network_the_error_says_so_and_how_to_go_on(clone: Clone, index: Index) -> None:
    index.server.shutdown()
    index.server.server_close()
    result = clone.run("tiny", PIP_RETRIES="1")
    assert result.returncode == 4
    assert f"no network: pip cannot reach its package index ({clone.root}/.venv" in result.stderr
    assert f"\n  '{clone.root}/start.sh' tiny\n" in result.stderr
    assert "PIP_INDEX_URL=" in result.stderr
    assert "Traceback" not in result.stderr


def on_a_disk_of_its_own(clone: Clone, then: str) -> subprocess.CompletedProcess[str]:
    """Run the clone on a file system of 60 MiB, after THEN has been done to it."""
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
    clone.pin("--no-index\ntorch==2.13.0\n")
    result = on_a_disk_of_its_own(clone, "export AIRLOCK_TORCH=cuda")
    assert result.returncode == 4
    free = rf"the disk is too full for .venv: 0\.0\d GiB free in {clone.root}, 8 GiB needed\n"
    assert re.search(free, result.stderr)
    assert "installing" not in result.stderr
    clone.env["PIP_EXTRA_INDEX_URL"] = "https://download.pytorch.org/whl/cpu"
    shutil.rmtree(f"{clone.root}.copy")
    assert ", 3 GiB needed" in on_a_disk_of_its_own(clone, "").stderr


@pytest.mark.parametrize(("megabytes", "filler"), [(100, ""), (0, "head -c 50M /dev/zero >zeros")])
def test_a_disk_that_fills_up_meanwhile_is_named_as_the_cause(
    clone: Clone, megabytes: int, filler: str
) -> None:
    clone.pin(clone.wheels("1.0", megabytes))
    result = on_a_disk_of_its_own(clone, filler)
    assert result.returncode == 4
    assert "airlock: the disk is too full for .venv: 0.0" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.long
@pytest.mark.parametrize("size", ["64k", "8m"])  # too little to make .venv; to fetch the package
def test_a_full_folder_for_temporary_files_is_named_as_the_cause(
    clone: Clone, index: Index, size: str
) -> None:
    make_wheel(index.wheel, "1.0", 12, zipfile.ZIP_STORED)
    index.may_answer.set()
    setting = f"mkdir small; mount -t tmpfs -o size={size} none small; export TMPDIR=$PWD/small"
    result = on_a_disk_of_its_own(clone, setting)
    assert result.returncode == 4
    assert f"GiB in {clone.root}/small, which pip uses meanwhile" in result.stderr


def test_a_clone_that_cannot_be_written_to_is_named_as_the_cause(clone: Clone) -> None:
    result = on_a_disk_of_its_own(clone, f"mount -o remount,bind,ro '{clone.root}'")
    assert result.returncode == 4
    assert f"cannot write .venv in {clone.root} (Read-only file system)" in result.stderr


@pytest.mark.long
def test_a_clone_that_cannot_be_written_to_runs_once_it_is_whole(started: Clone) -> None:
    result = on_a_disk_of_its_own(started, f"mount -o remount,bind,ro '{started.root}'")
    assert result.returncode == 0, result.stderr


def test_on_a_terminal_what_is_at_work_is_shown_with_the_time_it_has_taken(clone: Clone) -> None:
    terminal, theirs = pty.openpty()
    command = [str(clone.root / "start.sh"), "tiny"]
    with subprocess.Popen(command, env=clone.env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while data := os.read(terminal, 1 << 16):
                shown += data
    os.close(terminal)
    assert process.returncode == 0
    assert b"\r\x1b[Kairlock: making .venv  0:00" in shown
    assert b"\r\x1b[Kairlock: installing 1 packages  0:" in shown
    assert b"\r\x1b[Kairlock: .venv is ready  0:" in shown
