"""The optimizer: which weights decay, and that a step is AdamW's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.trainer_pt_utils import get_parameter_names

from benchmarks.architectures.small_models import small_config
from rundir.config import TrainConfig
from train.update.optimizer import decays, make_optimizer, with_own_states


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def settings(**named: Any) -> TrainConfig:
    return TrainConfig(**{"learning_rate": 0.01, "weight_decay": 0.1} | named)


def decay_of(made: nn.Module) -> dict[str, float]:
    """Return the weight decay of every parameter, by name."""
    groups = make_optimizer(made, settings()).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    return {name: decay[id(p)] for name, p in made.named_parameters()}


def real(described: PretrainedConfig) -> Any:
    make: Any = AutoModelForCausalLM.from_config
    return make(described)


def test_only_matrices_decay_and_no_parameter_is_left_out() -> None:
    assert decay_of(model()) == {
        "0.weight": 0.1,
        "1.weight": 0.0,
        "1.bias": 0.0,
        "2.weight": 0.1,
        "2.bias": 0.0,
    }


# Parameters of two dimensions or more that their own reference code spares, by their last names.
SPARED: dict[str, set[str]] = {
    "mamba": {"A_log"},  # mamba_ssm marks it, and D
    "jamba": {"A_log"},
    "zamba": {"A_log", "D", "dt_proj_bias"},  # by head
    "kimi_linear": {"A_log"},
    "gpt_oss": {"gate_up_proj_bias", "down_proj_bias"},  # by expert
    "recurrent_gemma": {"input_gate_bias", "recurrent_gate_bias"},
    "rwkv": {"time_mix_key", "time_mix_value", "time_mix_receptance"},  # of the shape (1, 1, n)
    "qwen3": set(),
}


@pytest.mark.parametrize("kind", SPARED)
def test_of_a_real_model_what_its_reference_code_spares_does_not_decay(kind: str) -> None:
    made = real(small_config(kind))
    decay = decay_of(made)
    with_dims = {name for name, p in made.named_parameters() if p.dim() > 1}
    spared = {name for name in with_dims if not decay[name]}
    assert {name.rpartition(".")[2] for name in spared} == SPARED[kind]
    assert {name for name in decay if decay[name]} == with_dims - spared
    embedding = made.get_input_embeddings()
    assert all(decay[name] for name, p in made.named_parameters() if p is embedding.weight)


@pytest.mark.parametrize("kind", ["cohere", "gpt_oss", "qwen3_5_text", "zamba"])
def test_nothing_decays_that_transformers_own_trainer_spares(kind: str) -> None:
    described = small_config(kind)
    described.use_qk_norm = True  # of Cohere: norms with a weight for each head
    made = real(described)
    patterns = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    names_of: Any = get_parameter_names
    theirs = names_of(made, [nn.LayerNorm], patterns)
    ours = {name for name, decay in decay_of(made).items() if decay}
    assert ours
    assert ours <= set(theirs)


def test_a_mark_of_the_models_own_code_is_heeded() -> None:
    made = model()
    made[2].weight._no_weight_decay = True  # type: ignore[union-attr]
    assert decay_of(made)["2.weight"] == 0.0


def test_adapters_of_rank_one_decay_like_all_others() -> None:
    for shape in ((1, 16), (16, 1), (1, 1)):
        assert decays("q_proj.lora_A.default.weight", torch.empty(shape))


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_without_a_gradient_to_follow_only_the_decay_moves_a_weight(weight_decay: float) -> None:
    made = model()
    before = [p.detach().clone() for p in made.parameters()]
    for parameter in made.parameters():
        parameter.grad = torch.zeros_like(parameter)
    make_optimizer(made, settings(learning_rate=0.1, weight_decay=weight_decay)).step()
    for old, new in zip(before, made.parameters(), strict=True):
        left = 1 - 0.1 * weight_decay if new.dim() > 1 else 1.0
        torch.testing.assert_close(new.detach(), old * left)


def test_the_first_step_has_the_size_of_the_learning_rate() -> None:
    made = model()
    before = [p.detach().clone() for p in made.parameters()]
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    make_optimizer(made, settings(weight_decay=0.0)).step()
    for old, new in zip(before, made.parameters(), strict=True):
        torch.testing.assert_close(old - new.detach(), torch.full_like(old, 0.01))


def test_states_of_a_byte_lead_to_almost_the_same_weights() -> None:
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    start, gradients = torch.randn(96, 96), torch.randn(20, 96, 96)
    trained = []
    for in_8_bits in (False, True):
        weight = nn.Parameter(start.clone())
        optimizer = make_optimizer(
            nn.ParameterList([weight]), settings(optimizer="adamw-8bit" if in_8_bits else "adamw")
        )
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        trained.append(weight.detach())
        states = [one for one in optimizer.state[weight].values() if torch.is_tensor(one)]
        large = {one.dtype for one in states if one.shape == weight.shape}
        assert large == {torch.uint8 if in_8_bits else torch.float32}
    moved = (trained[0] - start).norm()
    assert 0 < (trained[0] - trained[1]).norm() < 0.05 * moved


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("updates", ["plain", "master", "stochastic"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit"])
@pytest.mark.usefixtures("ranks")
def test_every_optimizer_takes_the_betas_that_are_set(
    optimizer: str, updates: str, is_sharded: bool
) -> None:
    """A step of gradient 1, then one of 0: what moves is as the averages remember."""
    if optimizer == "adamw-8bit":
        pytest.importorskip("bitsandbytes")
    for betas in ((0.9, 0.95), (0.5, 0.75)):
        weight = nn.Parameter(torch.full((8, 8), 2.0, dtype=torch.bfloat16))
        named = {"bf16_updates": updates, "optimizer": optimizer, "weight_decay": 0.0}
        if betas != (0.9, 0.95):  # which are the defaults
            named |= dict(zip(("adam_beta1", "adam_beta2"), betas, strict=True))
        made = make_optimizer(nn.ParameterList([weight]), settings(**named), is_sharded=is_sharded)
        for gradient in (1.0, 0.0):
            weight.grad = torch.full_like(weight, gradient)
            made.step()
        states = with_own_states(made).state[weight]
        first, second = (
            states[one].float().mean().item()
            for one in (("exp_avg", "exp_avg_sq") if "exp_avg" in states else ("state1", "state2"))
        )
        assert first == pytest.approx((1 - betas[0]) * betas[0], rel=0.01)
        assert second == pytest.approx((1 - betas[1]) * betas[1], rel=0.01)
