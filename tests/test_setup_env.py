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

from launch.setup import uv
from tests.clone import (
    BASE_PYTHON,
    UV,
    Clone,
    environment,
    installed_in,
    make_wheel,
    start_before,
    tool,
    torch_for_cpu,
    torch_with_cuda,
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
    show = "import airlock_tiny; print(airlock_tiny.version, airlock_tiny.__cached__)"
    version, cached = installed.execute([str(python), "-I", "-c", show]).stdout.split(maxsplit=1)
    assert version == "1.0"
    assert Path(cached.strip()).exists(), "it was not compiled"
    assert "airlock-tiny==1.0" in (installed.root / ".venv/install.log").read_text()
    left = {path.name for path in (installed.root / ".venv").glob(".*")}
    assert left.isdisjoint({".airlock-installing", ".uv"})


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
    assert "airlock: uv cannot resolve what is pinned (log: " in result.stderr
    assert "airlock-tiny was not found in the provided package locations" in result.stderr
    assert f"\n  '{started.root}/start.sh'\n      tries again; " in result.stderr
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
    """A package index on this machine that keeps whoever asks for `holds` waiting.

    It answers with each file below `folder`, and with a wheel's metadata at NAME.whl.metadata.
    """

    def __init__(self, folder: Path, holds: str) -> None:
        self.holds = holds
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.torn = False  # of what it holds it sends half, and ends the connection
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                if name.endswith(index.holds):
                    index.asked.set()
                    index.may_answer.wait(60)
                if not name:
                    body = index.page(folder, self.path.split("/")[-2])
                elif name.endswith(".metadata"):
                    body = metadata(folder / name.removesuffix(".metadata"))
                else:
                    body = (folder / name).read_bytes()
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if index.torn and name.endswith(index.holds):
                    body = body[: len(body) // 2]
                with contextlib.suppress(OSError):  # who asked may have been killed meanwhile
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def page(folder: Path, package: str) -> bytes:
        """The page of a package: a link to each of its wheels."""
        names = [wheel.name for wheel in folder.glob(f"{package.replace('-', '_')}-*.whl")]
        links = (f'<a href="/{name}" data-core-metadata="true">{name}</a>' for name in names)
        return "".join(links).encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"

    def close(self) -> None:
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()


def metadata(wheel: Path) -> bytes:
    """The metadata of a wheel, which an index may serve by itself."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if "METADATA" in name))


@pytest.fixture
def index(clone: Clone) -> Iterator[Index]:
    """An index from which the clone's requirements are to come, that holds the package back."""
    served = Index(clone.root.parent / "wheels", ".whl")
    clone.pin(f"--index-url {served.url}\nairlock-tiny==1.0\n")
    yield served
    served.close()


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
    return next(pid for pid, command in processes.items() if "launch/setup/make.py" in command)


def stub_uv(clone: Clone) -> Path:
    """A wheel of uv, from which pip installs the real one, by a link; no uv is on PATH then."""
    (clone.bin / "uv").unlink()
    version = uv.WHEEL.partition("==")[2]
    wheel = clone.root.parent / f"wheels/uv-{version}-py3-none-any.whl"
    return make_wheel(wheel, script=f'#!/bin/sh\nexec "{UV}" "$@"\n')


@pytest.mark.parametrize("holds", ["uv", ".metadata", ".whl", "compiling"])
def test_an_install_that_was_killed_is_not_taken_for_whole_and_the_next_start_completes_it(
    clone: Clone, index: Index, holds: str
) -> None:
    index.holds = holds
    if holds == "uv":  # what is fetched first, where there is none
        index.holds = stub_uv(clone).name
        clone.env["PIP_INDEX_URL"] = index.url
    elif holds == "compiling":
        many = "\n".join(f"x{i} = [{i}, '{i}']" for i in range(200_000))
        make_wheel(clone.root.parent / "wheels/airlock_tiny-1.0-py3-none-any.whl", code=many)
    first = begin(clone)
    if holds == "compiling":
        wait_until(lambda: any("launch.setup.compile" in one for one in processes_of(clone).values()))
    assert holds == "compiling" or index.asked.wait(60)
    os.kill(installer(clone), signal.SIGKILL)
    _, errors = first.communicate()
    assert first.returncode == 128 + signal.SIGKILL
    assert not marker(clone).exists()
    wait_until(lambda: not processes_of(clone))  # what it has started does not outlive it

    index.may_answer.set()
    torn = clone.write(".venv/lib/torn.py", "")
    result = clone.run("tiny")
    assert result.returncode == 0, errors + result.stderr
    assert json.loads(result.stdout)["prefix"] == str(clone.root / ".venv")
    assert not torn.exists()


@pytest.mark.parametrize("holds", ["uv", ".whl"])
def test_half_a_download_is_an_error_after_which_the_next_start_completes_it(
    clone: Clone, index: Index, holds: str
) -> None:
    if holds == "uv":
        index.holds = stub_uv(clone).name
        clone.env["PIP_INDEX_URL"] = index.url
    index.torn = True
    index.may_answer.set()
    result = clone.run("tiny", UV_HTTP_RETRIES="1", PIP_RETRIES="0")
    assert result.returncode == 4, result.stderr
    what = "pip cannot get uv" if holds == "uv" else "uv cannot install what is pinned"
    assert f"airlock: {what} (log: {clone.root}/.venv/install.log):\n    " in result.stderr
    assert f"\n  '{clone.root}/start.sh' tiny\n      tries again" in result.stderr
    index.torn = False
    assert clone.stub("tiny")["prefix"] == str(clone.root / ".venv")


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
        assert ("airlock: .venv is ready" in errors) == (process is first)


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


@pytest.mark.parametrize("fetches_uv", [False, True])
def test_without_a_network_the_error_says_so_and_how_to_go_on(
    clone: Clone, index: Index, fetches_uv: bool
) -> None:
    index.close()
    if fetches_uv:
        stub_uv(clone)
    result = clone.run("tiny", PIP_RETRIES="1", UV_HTTP_RETRIES="0", PIP_INDEX_URL=index.url)
    assert result.returncode == 4
    what = "pip cannot get uv" if fetches_uv else "uv cannot resolve what is pinned"
    assert f"airlock: {what} (log: " in result.stderr
    assert re.search(r"(?i)connection refused", result.stderr)
    assert f"\n  '{clone.root}/start.sh' tiny\n" in result.stderr
    assert "PIP_INDEX_URL=" in result.stderr
    assert "Traceback" not in result.stderr


def python_that_lacks(clone: Clone, *modules: str) -> None:
    """Put a python3 on the clone's PATH that has no pip, nor these modules; and no uv."""
    (clone.bin / "uv").unlink()
    own = environment(clone.root.parent / "lacking")  # venv gives it no pip
    site = next(own.glob("lib/python*/site-packages"))
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n"
    )
    tool(clone.bin / "python3", f'#!/bin/sh\nexec "{own}/bin/python" "$@"\n')


def test_a_python_without_pip_gets_uv_by_that_of_an_environment(clone: Clone, index: Index) -> None:
    stub_uv(clone)
    (clone.bin / "uv").touch()
    python_that_lacks(clone)
    index.may_answer.set()
    result = clone.run("tiny", PIP_INDEX_URL=index.url)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["prefix"] == str(clone.root / ".venv")


def test_without_uv_pip_and_venv_what_to_install_is_said(clone: Clone) -> None:
    python_that_lacks(clone, "venv", "ensurepip")
    result = clone.run("tiny")
    assert result.returncode == 4
    assert "has neither pip nor venv, and there is no uv on PATH" in result.stderr
    install = "  curl -LsSf https://astral.sh/uv/install.sh | sh  # or apt install python3-venv\n"
    assert f"{install}  '{clone.root}/start.sh' tiny\n" in result.stderr


def test_a_uv_that_is_too_old_is_passed_by(clone: Clone, index: Index) -> None:
    stub_uv(clone)
    tool(clone.bin / "uv", "#!/bin/sh\n[ $1 = --version ] && echo 'uv 0.7.22'\n")
    index.may_answer.set()
    result = clone.run("tiny", PIP_INDEX_URL=index.url)
    assert "airlock: fetching uv==" in result.stderr
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("by", ["a file of settings", "the environment", "uv's own"])
def test_where_pip_is_set_to_a_mirror_packages_come_from_there(
    clone: Clone, index: Index, by: str
) -> None:
    index.may_answer.set()
    clone.pin("airlock-tiny==1.0\n")
    settings = clone.root.parent / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.url}\nextra-index-url = {index.url}\n")
    env = {
        "a file of settings": {"PIP_CONFIG_FILE": str(settings)},
        "the environment": {"PIP_INDEX_URL": index.url},
        "uv's own": {"UV_DEFAULT_INDEX": index.url, "PIP_INDEX_URL": "http://127.0.0.1:9"},
    }[by]
    assert clone.stub(UV_HTTP_RETRIES="0", **env)["prefix"] == str(clone.root / ".venv")
    assert index.asked.is_set()


def test_a_uv_that_does_not_work_is_shown_with_what_it_says(clone: Clone) -> None:
    says = "case $1 in --version) echo 'uv 0.9.1' ;; *) echo 'wrong libc' >&2; exit 1 ;; esac"
    tool(clone.bin / "uv", f"#!/bin/sh\n{says}\n")
    result = clone.run("tiny")
    assert result.returncode == 4
    assert f"airlock: {clone.bin}/uv does not work (log: " in result.stderr
    assert f"    wrong libc\n  '{clone.root}/start.sh' tiny\n" in result.stderr


def test_where_pip_is_set_to_a_folder_alone_packages_come_from_there(clone: Clone) -> None:
    clone.pin("airlock-tiny==1.0\n")
    env = {"PIP_NO_INDEX": "1", "PIP_TIMEOUT": "1.5"}
    env["PIP_FIND_LINKS"] = f"{clone.root.parent} wheels"  # from where it is typed
    assert clone.stub(**env)["prefix"] == str(clone.root / ".venv")


def test_what_is_pinned_anew_during_an_install_is_installed_next(
    clone: Clone, index: Index
) -> None:
    clone.wheels("1.1")
    process = begin(clone)
    assert index.asked.wait(60)
    clone.pin(f"--index-url {index.url}\nairlock-tiny==1.1\n")
    index.may_answer.set()
    assert process.communicate()[0]
    assert airlock_tiny(clone) == ["1.0"]
    clone.stub()
    assert airlock_tiny(clone) == ["1.1"]


def airlock_tiny(clone: Clone) -> list[str]:
    found = clone.root.glob(".venv/lib/*/site-packages/airlock_tiny-*.dist-info")
    return [path.name.split("-")[1].removesuffix(".dist") for path in found]


def test_an_update_that_is_refused_keeps_what_the_user_has_added(started: Clone) -> None:
    kept = started.write(".venv/kept", "")
    requirements = (started.root / "requirements.txt").read_text()
    for broken in (
        "#!/bin/sh\necho uv 0.9.1; [ $1 = --version ]\n",
        f'#!/bin/sh\nexec "{UV}" "$@"\n',
    ):
        tool(started.bin / "uv", broken)
        started.pin("--no-index\nairlock-tiny==7\n")
        assert started.run().returncode == 4
    started.pin(f"{requirements}# other\n")
    started.stub()
    assert kept.exists()


@pytest.mark.parametrize("what", ["a file", "a dangling link"])
def test_a_venv_that_is_no_folder_is_left_to_the_user(clone: Clone, what: str) -> None:
    own = clone.root / ".venv"
    own.touch() if what == "a file" else own.symlink_to("nowhere")
    result = clone.run()
    assert result.returncode == 4
    assert f"\n  rm -r '{own}'\n" in result.stderr


def test_a_home_that_is_nobodys_does_not_matter(clone: Clone) -> None:
    # Where even root can make no folder.
    assert clone.stub(HOME="/proc/none")["prefix"] == str(clone.root / ".venv")


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
    clone.pin(torch_with_cuda(clone))
    result = on_a_disk_of_its_own(clone, "export AIRLOCK_TORCH=cuda")
    assert result.returncode == 4
    own = re.escape(f"{clone.root}/.venv")
    free = rf"too full for \.venv: free are .*0\.0\d GiB in {own}, 8 GiB needed in {own}\n"
    assert re.search(free, result.stderr), result.stderr
    assert "installing" not in result.stderr
    shutil.rmtree(f"{clone.root}.copy")
    clone.pin(torch_for_cpu(clone))
    assert ", 3 GiB needed" in on_a_disk_of_its_own(clone, "").stderr


@pytest.mark.parametrize(
    ("megabytes", "filler"), [(100, ""), (0, "head -c 100M /dev/zero >zeros || true")]
)
def test_a_disk_that_fills_up_meanwhile_is_named_as_the_cause(
    clone: Clone, megabytes: int, filler: str
) -> None:
    clone.pin(clone.wheels("1.0", megabytes))
    result = on_a_disk_of_its_own(clone, filler)
    assert result.returncode == 4
    assert "airlock: the disk is too full for .venv: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_full_cache_is_named_as_the_cause_with_the_way_out(clone: Clone) -> None:
    clone.pin(clone.wheels("1.0", 20))
    setting = "mkdir cache; mount -t tmpfs -o size=8m none cache; export UV_CACHE_DIR=$PWD/cache"
    result = on_a_disk_of_its_own(clone, setting)
    assert result.returncode == 4
    assert f"GiB in {clone.root}/cache and " in result.stderr
    assert "UV_CACHE_DIR=DIR before it has uv fetch to another disk" in result.stderr


def test_a_clone_that_cannot_be_written_to_is_named_as_the_cause(clone: Clone) -> None:
    result = on_a_disk_of_its_own(clone, f"mount -o remount,bind,ro '{clone.root}'")
    assert result.returncode == 4
    assert f"cannot write .venv in {clone.root} (Read-only file system)" in result.stderr


@pytest.mark.long
def test_a_clone_that_cannot_be_written_to_runs_once_it_is_whole(started: Clone) -> None:
    result = on_a_disk_of_its_own(started, f"mount -o remount,bind,ro '{started.root}'")
    assert result.returncode == 0, result.stderr


def test_on_a_terminal_uv_shows_how_far_it_is(clone: Clone) -> None:
    terminal, theirs = pty.openpty()
    command = [str(clone.root / "start.sh"), "tiny"]
    env = clone.env | {"TERM": "xterm"}
    with subprocess.Popen(command, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while data := os.read(terminal, 1 << 16):
                shown += data
    os.close(terminal)
    assert process.returncode == 0
    assert b"\x1b[2mInstalled \x1b[1m1 package\x1b[0m" in shown  # coloured, as at a terminal
    assert b"airlock: .venv is ready, in " in shown
