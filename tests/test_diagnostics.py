"""The diagnostics: green on a sound machine, and red when what they look at is broken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from diagnostics.basic import judge_cuda
from launch.devices import Gpu

ROOT = Path(__file__).resolve().parent.parent
GPU = Gpu(0, "GPU-0123", "NVIDIA H100", 80 * 1024**3)
DRIVER = "driver 550.1 for CUDA up to 12.4"


@dataclass(frozen=True)
class Ended:
    """A diagnostic that has ended; `summary` is the JSON object of its last line."""

    code: int
    output: str
    summary: dict[str, Any]

    def finding(self, check: str) -> dict[str, Any]:
        return next(dict(one) for one in self.summary["findings"] if one["check"] == check)


def environment(*path: Path, root: Path = ROOT, **variables: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AIRLOCK_", "RUN_"))}
    python_path = os.pathsep.join(str(entry) for entry in (root, *path))
    return clean | {"PYTHONPATH": python_path, "CUDA_VISIBLE_DEVICES": ""} | variables


def diagnose(name: str, *arguments: str, env: dict[str, str] | None = None) -> Ended:
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"diagnostics.{name}", "--json", *arguments],
        env=env or environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.strip().rpartition("\n")[2]
    summary = json.loads(last) if last.startswith("{") else {}
    return Ended(done.returncode, done.stdout + done.stderr, summary)


def import_them(folder: Path, *names: str, timeout_s: float = 60) -> Ended:
    modules = [argument for name in names for argument in ("--module", name)]
    env = environment(folder)
    return diagnose("imports", "--timeout-s", str(timeout_s), *modules, env=env)


def clone(folder: Path) -> Path:
    """A copy of what the diagnostics need, to be broken."""
    for name in ("rundir", "launch", "train", "diagnostics", "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def require_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")


# basic


def test_this_machine_passes_the_basic_checks() -> None:
    ended = diagnose("basic")
    assert ended.code == 0, ended.output
    assert [one["check"] for one in ended.summary["findings"]] == [
        *("packages", "cuda", "threads", "cpu")
    ]
    assert ended.finding("cpu")["figures"]["float32_error"] > 0


def test_a_package_outside_its_range_is_red_with_the_install_command(tmp_path: Path) -> None:
    info = tmp_path / "peft-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: peft\nVersion: 0.1.0\n")
    ended = diagnose("basic", env=environment(tmp_path))
    assert ended.code == 4
    finding = ended.finding("packages")
    assert "peft 0.1.0 (needs >=" in finding["text"]
    assert "-m pip install -r" in finding["do"]


def test_a_gpu_that_is_not_there_is_red() -> None:
    ended = diagnose("basic", env=environment(CUDA_VISIBLE_DEVICES="77"))
    assert ended.code == 4
    assert "CUDA_VISIBLE_DEVICES=77" in ended.finding("cuda")["text"]
    assert "  → " in ended.output


def test_a_check_that_takes_too_long_ends_with_its_stack(tmp_path: Path) -> None:
    # In the midst of importing the real one, a hundred frames need not reach down to our own.
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(3600)\n")
    ended = diagnose("basic", "--timeout-s", "1", env=environment(tmp_path))
    assert ended.code == 1
    assert "Timeout" in ended.output
    assert f'File "{tmp_path}/torch.py", line 2' in ended.output
    assert "diagnostics/basic.py" in ended.output


def test_a_torch_without_cuda_on_a_machine_with_a_gpu_is_red_with_the_fix() -> None:
    finding = judge_cuda([GPU], [GPU], None, 0, DRIVER)
    assert not finding.ok
    assert "pip uninstall -y torch" in finding.do


def test_a_torch_that_does_not_reach_every_gpu_is_red() -> None:
    finding = judge_cuda([GPU, GPU], [GPU, GPU], "13.0", 1, DRIVER)
    assert not finding.ok
    assert "CUDA 13.0, which reaches 1 of them" in finding.text
    assert DRIVER in finding.text


def test_a_torch_without_cuda_is_no_failure_where_every_gpu_is_hidden() -> None:
    assert judge_cuda([GPU], [], None, 0, DRIVER).ok


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_one_wrong_element_of_a_product_is_found(wrong: float) -> None:
    import torch

    from diagnostics.basic import multiply, worst_error

    *_, limit = multiply(torch.device("cpu"), torch.bfloat16)
    a, b = torch.rand((64, 64)), torch.rand((64, 64))
    product = a @ b
    assert worst_error(product, a, b) <= limit
    product[3, 5] += wrong
    assert worst_error(product, a, b) > limit


@pytest.mark.gpu
def test_every_visible_gpu_passes_the_basic_checks() -> None:
    require_gpu()
    env = environment()
    del env["CUDA_VISIBLE_DEVICES"]
    ended = diagnose("basic", env=env)
    assert ended.code == 0, ended.output
    assert ended.finding("cuda:0")["figures"]["bfloat16_error"] > 0


# imports


def test_everything_that_a_rank_imports_can_be_imported_here() -> None:
    ended = diagnose("imports")
    assert ended.code == 0, ended.output
    names = [one["check"] for one in ended.summary["findings"]]
    assert names[0] == "torch"
    assert names[-1] == "train.worker"
    assert "model_type:qwen3" in names
    assert ended.finding("torch")["figures"]["added_private_bytes"] > 10 * 1024**2


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


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ImportError('libcudart.so.99 is missing')", "ImportError: libcudart.so.99 is"),
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit"),
    ],
)
def test_an_import_that_raises_is_red_and_the_next_are_still_tried(
    tmp_path: Path, source: str, says: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    ended = import_them(tmp_path, "broken", "json")
    assert ended.code == 4
    assert says in ended.finding("broken")["text"]
    assert "-m pip install -r" in ended.finding("broken")["do"]
    assert ended.finding("json")["ok"]


def test_a_package_broken_by_one_that_comes_before_it_is_red(tmp_path: Path) -> None:
    (tmp_path / "peft.py").write_text("raise ImportError('this is not peft')")
    assert import_them(tmp_path, "peft").code == 4


def test_a_model_type_that_transformers_does_not_know_is_red(tmp_path: Path) -> None:
    ended = import_them(tmp_path, "model_type:qwen9")
    assert ended.code == 4
    assert "qwen9" in ended.finding("model_type:qwen9")["text"]


def test_an_import_that_hangs_is_named_with_its_stack_and_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "sleeper.py").write_text(
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
    )
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


def test_the_importing_process_dies_with_the_diagnostic(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "sleeper.py").write_text(
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
    )
    diagnostic = subprocess.Popen(
        [sys.executable, "-P", "-m", "diagnostics.imports", "--module", "sleeper"],
        env=environment(tmp_path), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.05)
    child = psutil.Process(int(pid_file.read_text()))
    diagnostic.send_signal(signal.SIGKILL)
    diagnostic.wait()
    _, alive = psutil.wait_procs([child], timeout=60)
    assert not alive


def test_an_import_that_initialises_cuda_is_warned_of_but_not_red(tmp_path: Path) -> None:
    # What torch.cuda.init() leaves behind; the twin below does it on a GPU.
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


# single_gpu


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_small_model_trains_on_this_machine(method: str) -> None:
    ended = diagnose("single_gpu", "--set", f"train.method={method}")
    assert ended.code == 0, ended.output
    losses = ended.finding("loss")["figures"]["losses"]
    assert losses[-1] < losses[0]
    assert ended.finding("loss")["figures"]["peak_memory_bytes"] > 0
    assert ended.finding("model")["figures"]["device"] == "cpu"


def test_a_large_profile_is_tested_in_miniature() -> None:
    env = environment(AIRLOCK_PRESET_PROFILE="32b", AIRLOCK_MODEL_GRADIENT_CHECKPOINTING="0")
    ended = diagnose("single_gpu", env=env)
    assert ended.code == 0, ended.output
    figures = ended.finding("model")["figures"]
    assert figures["model_type"] == "qwen2"
    assert figures["dtype"] == "bfloat16"
    assert figures["num_parameters"] < 5_000_000


@pytest.mark.parametrize("learning_rate", ["1e6", pytest.param("0", marks=pytest.mark.long)])
def test_a_loss_that_does_not_fall_is_red(learning_rate: str) -> None:
    ended = diagnose("single_gpu", "--learning-rate", learning_rate)
    assert ended.code == 4
    assert not ended.finding("loss")["ok"]
    assert "--learning-rate" in ended.finding("loss")["do"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('model_type = "qwen3"', 'model_type = "qwen9"'),
        ("num_key_value_heads = 2", "num_key_value_heads = 3"),
        ("vocab_size = 260", "vocab_size = 100"),
    ],
)
def test_a_broken_architecture_is_red(tmp_path: Path, old: str, new: str) -> None:
    root = clone(tmp_path)
    edit(root / "profiles/tiny.toml", old, new)
    ended = diagnose("single_gpu", env=environment(root=root))
    assert ended.code == 4
    assert ended.summary["findings"][-1]["do"]


@pytest.mark.long
def test_gradients_that_stay_zero_are_red_and_named(tmp_path: Path) -> None:
    root = clone(tmp_path)
    edit(root / "train/model.py", 'reduction="sum",\n        )', 'reduction="sum",\n        ) * 0')
    ended = diagnose("single_gpu", env=environment(root=root))
    assert ended.code == 4
    assert not ended.finding("gradients")["ok"]
    assert "model.embed_tokens.weight" in ended.finding("gradients")["text"]


def test_a_parameter_that_gets_no_gradient_is_red_and_named(tmp_path: Path) -> None:
    root = clone(tmp_path)
    add_method_that(root, "model.register_parameter('idle', torch.nn.Parameter(torch.ones(3)))")
    ended = diagnose("single_gpu", env=environment(root=root))
    assert ended.code == 4
    assert ended.finding("loss")["ok"]
    assert ended.finding("gradients")["figures"]["untouched"] == ["idle"]


@pytest.mark.long
@pytest.mark.parametrize(("mode", "code"), [("train", 0), ("eval", 4)])
def test_gradient_checkpointing_that_recomputes_nothing_is_red(
    tmp_path: Path, mode: str, code: int
) -> None:
    root = clone(tmp_path)
    add_method_that(root, f"model.{mode}()")  # transformers recomputes in training mode only
    env = environment(root=root, AIRLOCK_MODEL_GRADIENT_CHECKPOINTING="1")
    ended = diagnose("single_gpu", env=env)
    assert ended.code == code, ended.output
    assert ended.finding("gradient checkpointing")["ok"] == (code == 0)


def add_method_that(root: Path, does: str) -> None:
    """Have train/model.py's add_method do something more to the model."""
    with (root / "train/model.py").open("a", encoding="utf-8") as file:
        file.write(
            "\n_add_method = add_method\n"
            "def add_method(model, config):\n"
            f"    model = _add_method(model, config)\n    {does}\n    return model\n"
        )


def test_an_unknown_profile_is_a_wrong_command_line() -> None:
    for name in ("imports", "single_gpu"):
        ended = diagnose(name, "--profile", "33b")
        assert ended.code == 2
        assert "no profile '33b'" in ended.output


@pytest.mark.gpu
def test_a_small_model_trains_on_the_first_gpu() -> None:
    require_gpu()
    env = environment()
    del env["CUDA_VISIBLE_DEVICES"]
    ended = diagnose("single_gpu", "--set", "model.dtype=bfloat16", env=env)
    assert ended.code == 0, ended.output
    assert ended.finding("model")["figures"]["device"] == "cuda:0"
    assert 0 < ended.finding("loss")["figures"]["peak_memory_bytes"] < 2 * 1024**3
