"""Every kind of multimodal model that packs: a neighbour in the row changes exactly nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.architectures.small_models import enlarge
from rundir.config import DataConfig, ModelConfig, RunConfig
from rundir.errors import ExitCode, UserError
from tests.multimodal import small
from tests.neighbours import difference
from train.model.build import new_model
from train.step.selftest import tried_of

CONFIG = RunConfig(
    profile="test", model=ModelConfig(dtype="float32"), data=DataConfig(max_seq_length=256)
)
COMMON = "gemma3 gemma4 mistral3 qwen3_vl llama4 internvl"
OTHERS = (
    "aria aya_vision cohere2_vision cosmos3_omni deepseek_vl deepseek_vl_hybrid exaone4_5 fuyu "
    "gemma4_unified got_ocr2 hyperclovax_vision_v2 idefics2 idefics3 kimi_k25 lighton_ocr llava "
    "llava_next llava_next_video llava_onevision minimax_m3_vl ministral3 mllama muse_glimmer "
    "ovis2 pixtral pp_chart2table qianfan_ocr qwen3_omni_moe_thinker qwen3_vl_moe shieldgemma2 "
    "smolvlm video_llama_3 video_llava vipllava"
)
HYBRIDS = "qwen3_5 qwen3_5_moe"
OTHER_HYBRIDS = "lfm2_vl lfm3_vl minicpm_ocr minicpmv4_6 minicpmv4_7 qwen4_exp"


def kinds(common: str, others: str) -> list[Any]:
    return [
        *common.split(),
        *(pytest.param(kind, marks=pytest.mark.long) for kind in others.split()),
    ]


def made(kind: str) -> Any:
    return enlarge(new_model(small(kind), CONFIG, torch.device("cpu")))


@pytest.mark.parametrize("kind", kinds(COMMON, OTHERS))
def test_a_model_that_attends_by_positions_packs_as_it_is(kind: str) -> None:
    model = made(kind)
    packed = tried_of(model, CONFIG).packed
    assert (packed.packing, packed.help_) == (True, "")
    assert (difference(model), difference(model, num_rows=2)) == (0.0, 0.0)


@pytest.mark.parametrize("kind", kinds(HYBRIDS, OTHER_HYBRIDS))
def test_a_hybrid_packs_with_help(kind: str) -> None:
    model = made(kind)
    assert difference(model) > 0
    packed = tried_of(model, CONFIG).packed
    assert (packed.packing, packed.help_) == (True, "layers")
    assert (difference(model), difference(model, num_rows=2)) == (0.0, 0.0)


@pytest.mark.parametrize("kind", kinds("qwen2_5_vl", "qwen2_vl paddleocr_vl glm4v glm46v glm_ocr"))
def test_a_model_that_makes_its_mask_without_positions_does_not_pack(kind: str) -> None:
    model = made(kind)
    assert difference(model) > 0
    packed = tried_of(model, CONFIG).packed
    assert packed.packing == "by_length"
    assert f"{kind}: transformers makes its mask without looking at positions" in packed.line


def test_a_model_whose_text_is_read_in_both_directions_is_refused() -> None:
    model = made("paligemma")
    with pytest.raises(UserError, match="is not causal: later tokens change") as raised:
        tried_of(model, CONFIG)
    assert raised.value.code == ExitCode.PREFLIGHT
