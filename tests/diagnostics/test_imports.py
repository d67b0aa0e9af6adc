"""The imports rung: what is imported, at what cost, and how a module that fails is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.diagnosing import Ended, clone, diagnose, edit, environment, require_gpu
from tests.diagnostics.test_as_documented import typed


def import_them(folder: Path, *names: str, timeout_s: float = 60) -> Ended:
    modules = [argument for name in names for argument in ("--module", name)]
    env = environment(folder)
    return diagnose("imports", "--timeout-s", str(timeout_s), *modules, env=env)


@pytest.mark.runs
def test_everything_that_a_rank_imports_can_be_imported_here(environ: dict[str, str]) -> None:
    done = typed(environ, "-m", "diagnostics.imports", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout.splitlines()[-1])["findings"]
    names = [finding["check"] for finding in findings]
    assert names[0] == "torch"
    assert names[-1] == "train.worker"
    assert "model_type:qwen3" in names
    assert findings[0]["figures"]["added_private_bytes"] > 10 * 1024**2


@pytest.mark.long
def test_an_import_is_charged_with_the_memory_and_threads_it_takes(tmp_path: Path) -> None:
    (tmp_path / "costly.py").write_text(
        "import threading, time\n"
        "block = b'x' * (64 * 1024**2)\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    ended = import_them(tmp_path, "json", "costly", "wave")
    assert ended.code == 0, ended.output
    costly = ended.finding("costly")["figures"]
    assert costly["added_private_bytes"] >= 64 * 1024**2
    assert costly["num_threads_started"] == 1
    for other in ("json", "wave"):
        figures = ended.finding(other)["figures"]
        assert figures["added_private_bytes"] < 16 * 1024**2
        assert figures["num_threads_started"] == 0


BROKEN = {
    "lacks_library": ("raise ImportError('libcudart.so.99 is missing')", "ImportError: libcudart"),
    "lacks_module": ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
    "misspelt": ("def f(:", "SyntaxError"),
    "leaves": ("import sys; sys.exit(0)", "SystemExit"),
    "peft": ("raise ImportError('this is not peft')", "this is not peft"),  # it comes before peft
}


@pytest.mark.runs
def test_imports_that_raise_are_red_and_the_next_are_still_tried(tmp_path: Path) -> None:
    for name, (source, _) in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(source)
    ended = import_them(tmp_path, *BROKEN, "model_type:qwen9", "json")
    assert ended.code == 4
    for name, (_, says) in BROKEN.items():
        assert says in ended.finding(name)["text"]
        assert "-m pip install -r" in ended.finding(name)["do"]
    assert "qwen9" in ended.finding("model_type:qwen9")["text"]
    assert ended.finding("json")["ok"]


@pytest.fixture
def pid_file(tmp_path: Path) -> Path:
    """Return the file that the module `sleeper` writes its process to, before it sleeps."""
    file = tmp_path / "pid"
    (tmp_path / "sleeper.py").write_text(
        f"import os, time\nopen({str(file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
    )
    return file


def test_an_import_that_hangs_is_named_with_its_stack_and_ended(
    tmp_path: Path, pid_file: Path
) -> None:
    ended = import_them(tmp_path, "json", "sleeper", "wave", timeout_s=1)
    assert ended.code == 4
    text = ended.finding("sleeper")["text"]
    assert "hangs" in text
    assert "not reached: wave" in text
    assert f'File "{tmp_path}/sleeper.py", line 3' in text
    assert not psutil.pid_exists(int(pid_file.read_text()))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os._exit(0)", "exit code 0"),
    ],
)
def test_an_import_that_ends_its_process_is_named(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "deadly.py").write_text(source)
    ended = import_them(tmp_path, "json", "deadly", "wave")
    assert ended.code == 4
    assert ended.finding("json")["ok"]
    assert says in ended.finding("deadly")["text"]
    assert "not reached: wave" in ended.finding("deadly")["text"]


def test_the_importing_process_dies_with_the_diagnostic(tmp_path: Path, pid_file: Path) -> None:
    diagnostic = subprocess.Popen(
        [sys.executable, "-P", "-m", "diagnostics.imports", "--module", "sleeper"],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
    )
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.05)
    child = psutil.Process(int(pid_file.read_text()))
    diagnostic.send_signal(signal.SIGKILL)
    diagnostic.wait()
    _, alive = psutil.wait_procs([child], timeout=60)
    assert not alive


def test_an_import_that_initialises_cuda_is_warned_of_but_not_red(tmp_path: Path) -> None:
    # The trace that torch.cuda.init() leaves; the twin test below calls it on a GPU.
    (tmp_path / "greedy.py").write_text("import torch\ntorch.cuda._initialized = True\n")
    ended = import_them(tmp_path, "torch", "greedy", "json")
    assert ended.code == 0, ended.output
    assert ended.finding("torch")["warning"] == ""
    assert "importing greedy initialises CUDA" in ended.finding("greedy")["warning"]
    assert ended.finding("json")["warning"] == ""


@pytest.mark.gpu
def test_an_import_that_really_initialises_cuda_is_warned_of(tmp_path: Path) -> None:
    require_gpu()
    (tmp_path / "greedy.py").write_text("import torch\ntorch.zeros(1, device='cuda')\n")
    env = environment(tmp_path)
    del env["CUDA_VISIBLE_DEVICES"]
    ended = diagnose("imports", "--module", "torch", "--module", "greedy", env=env)
    assert ended.code == 0, ended.output
    assert "importing greedy initialises CUDA" in ended.finding("greedy")["warning"]


def test_a_process_that_ends_before_any_import_is_not_blamed_on_the_first_module(
    tmp_path: Path,
) -> None:
    root = clone(tmp_path / "clone")
    main = 'if __name__ == "__main__":\n'
    edit(root / "diagnostics/probes/import_child.py", main, f'{main}    sys.exit("no luck")\n')
    ended = diagnose("imports", "--module", "json", env=environment(root=root))
    assert ended.code == 4, ended.output
    (found,) = ended.summary["findings"]
    assert found["check"] == "the importing process"
    assert "before it imported anything" in found["text"]
    assert "| no luck" in found["text"]
    assert "-c 'import" not in found["do"]
