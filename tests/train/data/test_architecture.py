"""A model that is no causal language model is recognised by its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from rundir.errors import ExitCode, UserError
from train.data.architecture import check_is_causal, known_kinds, why_not_apart


def test_the_kinds_are_those_of_transformers() -> None:
    multimodal = set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    assert known_kinds() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) | multimodal


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "both directions.*Masked"),
        ({"model_type": "vit"}, "no language model"),
        ({"model_type": "diffusion_gemma"}, "a diffusion model"),
    ],
)
def test_something_else_is_refused_as_what_it_is(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        check_is_causal(config, Path("/models/one"))
    assert raised.value.code == ExitCode.PREFLIGHT


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "mistral3"},  # multimodal, without a class for text alone
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        {"model_type": "bert", "is_decoder": True},
        {"model_type": "of its own", "auto_map": {"AutoModelForCausalLM": "model.Own"}},
        {},  # transformers says what is missing
    ],
    ids=str,
)
def test_what_may_be_one_is_let_pass(config: dict[str, Any]) -> None:
    check_is_causal(config, Path("/models/one"))


def test_it_is_said_why_samples_cannot_share_a_row_where_that_is_known() -> None:
    assert "ALiBi" in why_not_apart("bloom")
    assert "state" in why_not_apart("mamba2")
    assert why_not_apart("new one") == "new one: "
