"""The predictions for a model and a training equal what they really have and take."""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from rundir.config import DataConfig, LaunchConfig, ModelConfig, RunConfig, TrainConfig
from rundir.footprint import Footprint
from tests.conftest import ROOT
from train.model.build import add_method, new_model
from train.trace.estimate import footprint
from train.trace.step_trace import Trace, trace
from train.update.optimizer import make_optimizer

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
QWEN2 = SMALL | {"model_type": "qwen2"}
QWEN3 = SMALL | {"model_type": "qwen3", "head_dim": 32}
SHALLOW = QWEN3 | {"num_hidden_layers": 2}  # traced as it is, once
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 300,
    "n_embd": 64,
    "n_layer": 6,
    "n_head": 4,
    "n_positions": 256,
}
GEMMA3 = SMALL | {  # every third layer sees everything, the others 16 tokens
    "model_type": "gemma3_text",
    "head_dim": 32,
    "sliding_window": 16,
    "num_hidden_layers": 9,
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 3,
}
UNALIKE = QWEN2 | {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 16}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "gpt2": GPT2,
    "gemma3": GEMMA3,
    "qwen2, two kinds of layers": UNALIKE,
}
KINDS = ["qwen2", "qwen3", "llama", "mistral", "gpt2"]
# Parameters, and those of LoRA with rank 16 on every linear layer of a block.
REAL = {
    "Qwen2.5-14B": ("qwen2", 13824, 48, 40, 152064, 14_770_033_664, 68_812_800),
    "Qwen2.5-32B": ("qwen2", 27648, 64, 40, 152064, 32_763_876_352, 134_217_728),
    "Qwen3-14B": ("qwen3", 17408, 40, 40, 151936, 14_768_307_200, 64_225_280),
    "Qwen3-32B": ("qwen3", 25600, 64, 64, 151936, 32_762_123_264, 134_217_728),
}


def configured(architecture: dict[str, Any], **train: Any) -> RunConfig:
    """Return a configuration of 48 tokens a sample, on one rank, unless specified otherwise."""
    model = {name: train.pop(name) for name in ModelConfig.__dataclass_fields__ if name in train}
    num_ranks, length = train.pop("num_ranks", 1), train.pop("max_seq_length", 48)
    packing = train.pop("packing", False)
    return RunConfig(
        profile="test",
        architecture=architecture,
        model=ModelConfig(**{"dtype": "float32", **model}),
        data=DataConfig(max_seq_length=length, packing=packing),
        train=TrainConfig(**{"global_batch_size": 1, "method": "full", **train}),
        launch=LaunchConfig(num_ranks=num_ranks),
    )


def random_config(seed: int) -> RunConfig:
    """Draw a shape of the architecture that this seed selects."""
    draw, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    head_dim, kv_heads, groups = draw.choice([16, 32]), draw.randint(1, 3), draw.randint(1, 3)
    shape = {
        "vocab_size": draw.randint(300, 5000),
        "num_hidden_layers": draw.randint(1, 9),
        "hidden_size": head_dim * kv_heads * groups,
        "intermediate_size": draw.randint(10, 900),
        "num_attention_heads": kv_heads * groups,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": draw.random() < 0.5,
    }
    if kind == "gpt2":
        shape = {
            "vocab_size": shape["vocab_size"],
            "n_layer": shape["num_hidden_layers"],
            "n_embd": shape["hidden_size"],
            "n_head": shape["num_attention_heads"],
            "n_inner": shape["intermediate_size"],
            "n_positions": 64,
            "tie_word_embeddings": shape["tie_word_embeddings"],
        }
    elif kind == "qwen3":
        shape["head_dim"] = draw.choice([8, 24])
    return configured(
        shape | {"model_type": kind},
        method=draw.choice(["full", "lora"]),
        dtype=draw.choice(["float32", "bfloat16"]),
        lora_rank=draw.randint(1, 20),
        max_seq_length=8,
    )


def built(config: RunConfig) -> Any:
    """Build the whole model on the meta device, with what is trained."""
    shape = dict(config.architecture)
    described = CONFIG_MAPPING[shape.pop("model_type")](**shape)
    return add_method(new_model(described, config, torch.device("meta")), config.train)


def assert_has_the_bytes_of(found: Footprint, model: Any) -> None:
    parameters = list(model.parameters())
    trained = [one for one in parameters if one.requires_grad]
    assert found.num_parameters == sum(one.numel() for one in parameters)
    assert found.num_trainable == sum(one.numel() for one in trained)
    assert found.weights_bytes == sum(one.nbytes for one in (*parameters, *model.buffers()))
    assert found.gradients_bytes == sum(one.nbytes for one in trained)
    # Two averages of its own dtype, a float32 that counts steps, and the copy of what is bfloat16.
    copies = sum(4 * one.numel() for one in trained if one.dtype == torch.bfloat16)
    assert found.optimizer_bytes == copies + sum(2 * one.nbytes + 4 for one in trained)


@pytest.mark.runs
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed > 0)) for seed in range(20)]
)
def test_every_byte_of_weights_gradients_and_states_is_that_of_the_model(seed: int) -> None:
    config = random_config(seed)
    found = footprint(config, "cuda")
    assert_has_the_bytes_of(found, built(config))
    other = replace(config, train=replace(config.train, method="lora", lora_rank=21))
    assert footprint(other, "cuda").num_trainable != found.num_trainable


def real(name: str, **train: Any) -> RunConfig:
    kind, intermediate, layers, heads, vocabulary, _, _ = REAL[name]
    return configured(
        {
            "model_type": kind,
            "vocab_size": vocabulary,
            "hidden_size": 5120,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
        }
        | ({"head_dim": 128} if kind == "qwen3" else {}),
        dtype="bfloat16",
        gradient_checkpointing=True,
        max_seq_length=4096,
        **train,
    )


@pytest.mark.runs
@pytest.mark.parametrize(
    "name", [pytest.param("Qwen3-14B", marks=pytest.mark.long), "Qwen3-32B"]
)  # the others are below, in four bits
def test_real_models_have_the_sizes_they_are_known_for(name: str) -> None:
    *_, num_parameters, num_adapters = REAL[name]
    lora = footprint(real(name, method="lora"), "cuda")
    assert lora.num_trainable == num_adapters
    assert lora.num_parameters == num_parameters + num_adapters


@pytest.mark.runs
def test_a_real_model_that_is_trained_whole_has_the_bytes_of_the_model_built_whole() -> None:
    *_, num_parameters, _ = REAL["Qwen3-32B"]
    full = footprint(real("Qwen3-32B"), "cuda")
    assert full.num_parameters == full.num_trainable == num_parameters
    assert full.gradients_bytes == 2 * num_parameters
    assert_has_the_bytes_of(full, built(real("Qwen3-32B")))


@pytest.mark.runs
@pytest.mark.parametrize(
    ("name", "num_in_blocks"),
    [
        pytest.param("Qwen2.5-14B", 13_212_057_600, marks=pytest.mark.long),
        ("Qwen2.5-32B", 31_205_621_760),
    ],
)
def test_in_four_bits_a_real_model_takes_what_the_format_says(
    name: str, num_in_blocks: int
) -> None:
    *_, num_parameters, num_adapters = REAL[name]
    found = footprint(real(name, method="qlora"), "cuda")
    assert found.num_parameters == num_parameters + num_adapters
    assert found.num_trainable == num_adapters
    # Four bits, for 64 of them a scale of one byte, and for 256 scales one of four bytes.
    four_bits = num_in_blocks * (0.5 + 1 / 64 + 4 / (64 * 256))
    rest = 2 * (num_parameters - num_in_blocks) + 4 * num_adapters
    assert found.weights_bytes == pytest.approx(four_bits + rest, rel=1e-4)


@pytest.mark.runs
@pytest.mark.parametrize(
    ("optimizer", "updates"),
    [("adamw", "master"), ("adamw", "stochastic"), ("adamw", "plain"), ("adamw-8bit", "master")],
)
def test_states_for_weights_in_bfloat16_are_those_of_a_real_step(
    optimizer: Any, updates: Any
) -> None:
    if optimizer == "adamw-8bit":
        pytest.importorskip("bitsandbytes")
    config = configured(SHALLOW, dtype="bfloat16", bf16_updates=updates, optimizer=optimizer)
    shape: dict[str, Any] = dict(SHALLOW)
    described = CONFIG_MAPPING[shape.pop("model_type")](**shape)
    model = new_model(described, config, torch.device("cpu"))
    made = make_optimizer(model, config.train)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    held = [one for state in made.state.values() for one in state.values()]
    tensors = [one for one in held if isinstance(one, torch.Tensor)]
    once = {one.untyped_storage()._cdata: one.nbytes for one in tensors}  # tables are shared
    assert footprint(config, "cpu").optimizer_bytes == sum(once.values())


def test_states_of_8_bits_take_a_byte_and_a_scale_for_every_256() -> None:
    shape = SHALLOW | {"hidden_size": 128, "intermediate_size": 256}
    large, small = (
        footprint(configured(shape, optimizer=kind), "cuda") for kind in ("adamw", "adamw-8bit")
    )
    assert small.gradients_bytes == large.gradients_bytes
    # Norms, which are small, keep theirs; each other state also has a table of 1 KiB.
    assert small.optimizer_bytes == pytest.approx(large.optimizer_bytes / 4, rel=0.25)


@pytest.mark.parametrize("name", ["14b", "32b"])
def test_a_profile_is_the_real_model(name: str) -> None:
    table = tomllib.loads((ROOT / "profiles" / f"{name}.toml").read_text(encoding="utf-8"))
    expected = real(f"Qwen2.5-{name.upper()}")
    assert table["architecture"].items() >= expected.architecture.items()
    assert table["model"]["dtype"] == expected.model.dtype


@pytest.mark.runs
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name == "gemma3")) for name in ARCHITECTURES],
)
@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cpu", {}),
        pytest.param(
            "cuda",
            {"method": "lora", "gradient_checkpointing": True, "dtype": "bfloat16"},
            marks=pytest.mark.long,
        ),
    ],
)
def test_few_layers_tell_what_the_whole_model_tells(
    name: str, device: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[int] = []

    def traced(described: Any, *more: Any) -> Trace:
        depths.append(described.num_hidden_layers)
        return trace(described, *more)

    monkeypatch.setattr("train.trace.estimate.trace", traced)
    config = configured(ARCHITECTURES[name], **options)
    few, shallow = footprint(config, device), list(depths)
    monkeypatch.setattr("train.trace.estimate._period", lambda _: 0)
    whole = footprint(config, device)
    assert shallow == {"gemma3": [3, 6], "qwen2, two kinds of layers": [6]}.get(name, [2, 3])
    assert depths == [*shallow, 9 if name == "gemma3" else 6]
    # Each tensor is rounded up to 512 bytes on a GPU, buckets of DDP as a whole.
    assert few.peak_bytes == pytest.approx(whole.peak_bytes, abs=0 if device == "cpu" else 8192)
    alike: Any = {"peak_bytes": 0, "ddp_bytes": 0, "num_blocks": 0, "block_bytes": 0}
    assert replace(few, **alike) == replace(
        whole, **alike | {"activations_bytes": few.activations_bytes}
    )


def test_parts_add_up_to_the_peak() -> None:
    for config in (configured(GPT2), configured(SHALLOW, method="lora", global_batch_size=8)):
        found = footprint(config, "cuda")
        parts = (
            found.weights_bytes,
            found.gradients_bytes,
            found.optimizer_bytes,
            found.ddp_bytes,
            found.activations_bytes,
            found.logits_bytes,
        )
        assert all(part >= 0 for part in parts)
        assert sum(parts) == found.peak_bytes


@pytest.mark.runs
def test_gradients_take_the_memory_of_one_however_many_are_accumulated() -> None:
    once, twice, often = (
        footprint(configured(SHALLOW, global_batch_size=number), "cpu") for number in (1, 2, 9)
    )
    assert once.ddp_bytes == twice.ddp_bytes == 0
    assert often == twice


@pytest.mark.runs
def test_a_micro_batch_is_no_larger_than_the_ranks_share() -> None:
    asked = configured(SHALLOW, global_batch_size=4, micro_batch_size=64, num_ranks=2)
    real_one = configured(SHALLOW, global_batch_size=4, micro_batch_size=2, num_ranks=2)
    larger = configured(SHALLOW, global_batch_size=4, micro_batch_size=4, num_ranks=1)
    assert footprint(asked, "cuda") == footprint(real_one, "cuda")
    assert footprint(larger, "cuda").peak_bytes > footprint(asked, "cuda").peak_bytes


@pytest.mark.runs
def test_checkpointing_keeps_one_vector_a_token_and_layer() -> None:
    def kept(num_layers: int) -> int:
        config = configured(
            SHALLOW | {"num_hidden_layers": num_layers}, gradient_checkpointing=True, method="lora"
        )
        return footprint(config, "cpu").activations_bytes

    assert kept(3) - kept(2) == 4 * SMALL["hidden_size"] * 48  # float32


@pytest.mark.runs
@pytest.mark.parametrize(("device", "dtype"), [("cuda", "bfloat16"), ("cpu", "float32")])
def test_only_eager_attention_keeps_a_score_for_each_pair_of_tokens(
    device: Any, dtype: str
) -> None:
    def growth(attention: str) -> float:
        """Return the factor by which twice the tokens increase activations."""
        one, two = (
            footprint(
                configured(SHALLOW, attention=attention, dtype=dtype, max_seq_length=length), device
            ).activations_bytes
            for length in (1024, 2048)
        )
        return two / one

    assert growth("sdpa") < 2.01
    assert growth("eager") > 3


def test_shared_out_states_are_half_as_many_on_each_of_two_ranks() -> None:
    whole, half = (
        footprint(
            configured(SHALLOW, num_ranks=2, global_batch_size=2, shard_optimizer=is_sharded), "cpu"
        ).optimizer_bytes
        for is_sharded in (False, True)
    )
    assert half == pytest.approx(whole / 2, rel=0.05)


@pytest.mark.runs
def test_packed_rows_on_a_gpu_have_no_mask_of_tokens_times_tokens() -> None:
    def activations(attention: str, length: int) -> int:
        config = configured(
            SHALLOW, packing=True, dtype="bfloat16", max_seq_length=length, attention=attention
        )
        return footprint(config, "cuda").activations_bytes

    short, middle, long = (activations("auto", length) for length in (1024, 2048, 4096))
    assert long - middle == pytest.approx(2 * (middle - short), rel=0.01)
    short, middle, long = (activations("sdpa", length) for length in (1024, 2048, 4096))
    assert long - middle > 3 * (middle - short)


def test_the_flash_attn_package_is_planned_with_where_the_run_will_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def activations() -> int:
        capped = SHALLOW | {"model_type": "gemma2"}  # scores that torch's own kernel cannot cap
        config = configured(capped, packing=True, dtype="bfloat16", max_seq_length=2048)
        return footprint(config, "cuda").activations_bytes

    without = activations()
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert activations() < 0.8 * without


def test_a_loss_is_predicted_from_the_trainers_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(SHALLOW | {"vocab_size": 3000}, method="lora")
    whole = footprint(config, "cuda").logits_bytes
    monkeypatch.setattr("train.model.head._LOGITS_BYTES", 6 * 3000 * 4)  # for 47 tokens
    assert footprint(config, "cuda").logits_bytes < whole / 3
