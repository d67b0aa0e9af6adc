"""The single-GPU rung: a small model trains, and each broken part makes it fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fake_drivers
from tests.diagnosing import clone, diagnose, edit, environment, require_gpu

pytestmark = pytest.mark.runs  # trains


# With adapters the large profile below is trained as well.
@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.long)])
def test_a_small_model_trains_on_this_machine(method: str) -> None:
    ended = diagnose("single_gpu", "--set", f"train.method={method}")
    assert ended.code == 0, ended.output
    losses = ended.finding("loss")["figures"]["losses"]
    assert losses[-1] < losses[0]
    assert ended.finding("loss")["figures"]["peak_memory_bytes"] > 0
    assert ended.finding("model")["figures"]["device"] == "cpu"


def test_a_large_profile_is_tested_in_miniature() -> None:
    env = environment(AIRLOCK_PRESET_PROFILE="32b", AIRLOCK_MODEL_GRADIENT_CHECKPOINTING="0")
    env |= {"AIRLOCK_LAUNCH_NEEDS_GPU": "false"}
    ended = diagnose("single_gpu", env=env)
    assert ended.code == 0, ended.output
    figures = ended.finding("model")["figures"]
    assert figures["model_type"] == "qwen2"
    assert figures["dtype"] == "bfloat16"
    assert figures["num_parameters"] < 5_000_000


# The effect of such rates on a model: all tokens become equally likely, which may be a hundredth
# better than random; its weights become NaN; nothing.
@pytest.mark.parametrize(
    "learning_rate",
    ["1e3", *(pytest.param(rate, marks=pytest.mark.long) for rate in ("1e6", "0"))],
)
def test_a_loss_that_does_not_fall_is_red(learning_rate: str) -> None:
    ended = diagnose("single_gpu", "--learning-rate", learning_rate)
    assert ended.code == 4, ended.output
    assert not ended.finding("loss")["ok"]
    assert "--learning-rate" in ended.finding("loss")["do"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('model_type = "qwen3"', 'model_type = "qwen9"', marks=pytest.mark.long),
        pytest.param("num_key_value_heads = 2", "num_key_value_heads = 3", marks=pytest.mark.long),
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
    edit(root / "train/model/loss.py", "*head.weights)", "*head.weights) * 0")
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
    """Make train/model/build.py's add_method do something more to the model."""
    with (root / "train/model/build.py").open("a", encoding="utf-8") as file:
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


def test_a_profile_that_needs_a_gpu_does_not_pass_on_cpu() -> None:
    ended = diagnose("single_gpu", "--profile", "32b")
    assert ended.code == 4
    assert "32b needs an NVIDIA GPU" in ended.finding("device")["text"]
    expected = "./airlock plan 32b --num-gpus 1 --gpu H100-80G"
    assert ended.finding("device")["do"].startswith(expected)


def test_gpus_that_torch_cannot_use_are_no_reason_to_pass_on_cpu(tmp_path: Path) -> None:
    env = environment() | fake_drivers.nvml(tmp_path) | {"NVML_COUNT": "1"}
    del env["CUDA_VISIBLE_DEVICES"]
    ended = diagnose("single_gpu", "--profile", "32b", env=env)
    if ended.finding("device")["ok"]:
        pytest.skip("torch has a GPU here")
    assert ended.code == 4
    assert "torch would train on cpu" in ended.finding("device")["text"]
