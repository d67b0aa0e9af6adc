"""Fixtures of all tests: isolated run folders, caches and gates, and ways to start Airlock."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ranks.transformers_compat import quicken
from tests import parts
from tests.broken import End, ToItsEnd
from tests.running import Start, Typed, User, assert_nothing_left, ended, finish, run_folder

ROOT = Path(__file__).resolve().parent.parent


# The programs that tests start import the same files over and over: they are compiled once, even if
# the environment tells Python to write no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

os.environ.pop("AIRLOCK_SCRIPT", None)  # ./test.sh is no script that starts runs

# A shell makes background jobs ignore SIGINT, and nohup makes its command ignore SIGHUP; the
# programs that tests start would inherit that.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

HAS_GPU = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    parts.add_option(parser)


def pytest_configure() -> None:
    """Have every worker import quickly what all tests together need: 12 s in place of 23."""
    gc.disable()
    quicken()


def pytest_collection_finish() -> None:
    """Collect garbage again, and never look for it in what was imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` if there is no GPU, and never fail because of that.

    Mark each test of tests/integration with `runs`.
    """
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
        if item.path.is_relative_to(ROOT / "tests/integration"):
            item.add_marker(pytest.mark.runs)
    parts.deselect(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    parts.summarise(terminalreporter)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache for all workers, in which the tiny model is made once, as for a user.

    Most runs here end before their plan is made, and so would trace it again in every test; instead
    it is traced once, alongside the first tests.
    """
    folder = tmp_path_factory.getbasetemp() / "cache"
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parents[1] / "cache"
    try:
        folder.mkdir()
    except FileExistsError:  # another worker's, which has seen to it
        return folder
    env = os.environ | {"AIRLOCK_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    for batch in ("train.global_batch_size=8", "train.global_batch_size=4"):
        asked = [sys.executable, "-P", "-m", "launch", "plan", "tiny", "--set", batch]
        # Not as a child of this process: some tests look at its children.
        subprocess.run(["setsid", "--fork", *asked], env=env, check=True, **quiet)
    return folder


def environment(folder: Path, cache: Path) -> dict[str, str]:
    """Return an environment in which Airlock writes only below `folder`, and into the cache.

    Variables that change a run are removed: each test sets what it needs.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRLOCK_", "RUN_", "PET_", "TORCHELASTIC_"))
        and name not in ("NUM_GPUS", "CUDA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR", "OMP_NUM_THREADS")
    }
    gate = folder / "gate"
    gate.mkdir(mode=0o700)
    return kept | {
        "PYTHONPATH": str(ROOT),
        "AIRLOCK_RUNS_DIR": str(folder / "runs"),
        "AIRLOCK_CACHE_DIR": str(cache),
        "AIRLOCK_GATE_DIR": str(gate),
    }


def starting(environ: dict[str, str], folder: Path, module: str = "launch") -> Start:
    """Return what starts `python -m MODULE ARGS` in `folder`; `env` adds variables.

    `within` is a command that starts it in surroundings that the test has prepared.
    """

    def start(
        *args: str, env: dict[str, str] | None = None, within: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*within, sys.executable, "-P", "-m", module, *args],
            cwd=folder,
            env=environ | (env or {}),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


@pytest.fixture
def environ(tmp_path: Path, shared_cache: Path) -> dict[str, str]:
    """Return an environment in which Airlock writes only below the test's own folder."""
    return environment(tmp_path, shared_cache)


@pytest.fixture
def airlock(environ: dict[str, str], tmp_path: Path) -> Start:
    """Start `airlock ARGS` as a user would, in an empty folder."""
    return starting(environ, tmp_path)


@pytest.fixture
def typed(environ: dict[str, str], tmp_path: Path) -> Typed:
    """Type `airlock ARGS` as the fixture `airlock` does; return (exit code, stdout, stderr)."""
    return Typed(environ, tmp_path)


@pytest.fixture
def plain(environ: dict[str, str], tmp_path: Path) -> Start:
    """Start `python -m train ARGS`."""
    return starting(environ, tmp_path, "train")


@pytest.fixture
def user(
    environ: dict[str, str], tmp_path: Path, airlock: Start, plain: Start, typed: Typed
) -> User:
    """Return somebody who has nothing but an empty folder."""
    return User(environ, tmp_path, airlock, plain, typed)


@pytest.fixture(scope="module")
def user_of_all(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> User:
    """Return somebody whose run is that of all tests of a file."""
    folder = tmp_path_factory.mktemp("user")
    environ = environment(folder, shared_cache)
    programs = starting(environ, folder), starting(environ, folder, "train")
    return User(environ, folder, *programs, Typed(environ, folder))


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a real file system of that size (as mount takes it) at `folder`; this needs root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder)]
    tried = subprocess.run(mount, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no small file system: {tried.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def bound(source: Path, target: Path, *options: str) -> Iterator[None]:
    """Mount a folder over another one; this needs root."""
    tried = subprocess.run(
        ["mount", "--bind", str(source), str(target)], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        pytest.skip(f"no bind mount: {tried.stderr.strip()}")
    try:
        if options:
            subprocess.run(["mount", "-o", f"remount,bind,{','.join(options)}", target], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 1 MiB, which fills up soon."""
    with mounted(tmp_path / "disk", "1m") as folder:
        yield folder


@pytest.fixture
def to_its_end(airlock: Start, typed: Typed, environ: dict[str, str], tmp_path: Path) -> ToItsEnd:
    """Run `airlock run ARGS` to its end; call `meanwhile` with the process once it has begun."""

    def run(
        *args: str,
        env: dict[str, str] | None = None,
        within: Sequence[str] = (),
        meanwhile: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    ) -> End:
        open_gate = ("--set", "launch.admit=open")
        with ended(airlock("run", *open_gate, *args, env=env, within=within)) as process:
            meanwhile(process)
            code, out, err = finish(process, timeout_s=120)
        assert_nothing_left(run_folder(environ))
        told = typed("doctor", "--json")
        assert (told[0], told[2]) == (0, ""), err
        return End(code, out, json.loads(told[1]), tmp_path)

    return run
