"""Every causal architecture that the installed transformers knows, small: a few layers, some kB.

Each model's own configuration is used, with sizes reduced by field name. Scales and caps get values
at which they have an effect, and dropout is off.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 264  # as large as the byte tokenizer's, and a little more
_LOGITS = 6.0  # the standard deviation that the head is scaled to: caps of 5 have an effect
# Every field with one of these names is reduced to that size, in each part of a configuration.
_SIZES = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input padded_vocab_size text_vocab_size",
    128: "max_position_embeddings n_positions n_ctx max_seq_len mamba_d_ssm index_topk",
    64: "hidden_size n_embd d_model embedding_size word_embed_proj_dim emb_dim dim_model lru_width "
    "sliding_window attention_window sliding_window_size window_size attention_hidden_size "
    "adapter_in_dim adapter_input_size embed_dim out_hidden_size",
    16: "head_dim global_head_dim kv_channels attention_head_dim qk_head_dim q_lora_rank "
    "kv_lora_rank dim_head mamba_d_head mamba_headdim mamba_head_dim mamba_chunk_size chunk_size "
    "index_head_dim hidden_size_per_layer_input",
    8: "qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim mamba_d_state mamba_n_heads "
    "mamba_dt_rank state_size mamba_num_heads ssm_state_size linear_key_head_dim "
    "linear_value_head_dim",
    4: "num_experts n_routed_experts num_local_experts moe_num_experts num_attention_heads n_head "
    "n_heads num_heads decoder_attention_heads encoder_attention_heads linear_num_value_heads",
    2: "num_experts_per_tok moe_top_k moe_k moe_topk top_k top_k_experts num_experts_per_token "
    "zero_expert_num num_key_value_heads num_kv_heads n_head_kv num_global_key_value_heads "
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers mamba_expand "
    "linear_num_key_heads n_mamba_heads index_n_heads depth",
    1: "n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group "
    "num_expert_group first_k_dense_replace",
}
_SIZE_OF = {name: size for size, names in _SIZES.items() for name in names.split()}
_OF_FEED_FORWARD, _FEED_FORWARD = ("intermediate", "ffn", "n_inner", "d_ff", "ff_dim"), 96
_RANDOM, _SCALES = ("drop", "jitter"), ("multiplier", "scal")
_HYBRID = {"num_hidden_layers": 4}
_LATENT = {"head_dim": 8, "num_key_value_heads": 4}  # of models that compress keys and values
_ATTENDED = {"head_dim": 16}  # of models that treat the missing field as None
_TWICE = {"attention_hidden_size": 128, "attention_head_dim": 32}  # attention beside embeddings
_SECTIONS = {  # of a head: they are rotated by time, height and width
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
}
# Where names alone do not suffice: fields that must agree with each other.
_BY_KIND: dict[str, dict[str, Any]] = {
    "axk1": _LATENT,
    "axk2": _LATENT,
    "bamba": _HYBRID | {"attn_layer_indices": [1]},
    "deepseek_v2": _LATENT | {"num_experts_per_tok": 2},
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": _LATENT,
    "emu3": {"vocabulary_map": {"<image>": 3, "<|extra_200|>": 4, "<|visual token 000000|>": 5}},
    "gemma3n_text": {"num_kv_shared_layers": 0, "num_hidden_layers": 5},
    "glm4_moe_lite": _LATENT,
    "glm46v_text": _SECTIONS,
    "glm4v_text": _SECTIONS,
    "glm_ocr_text": _SECTIONS,
    "glm_moe_dsa": _LATENT,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": _ATTENDED,
    "hunyuan_v1_moe": _ATTENDED,
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": _LATENT,
    "mamba2": {"num_heads": 8},
    "minicpm3": _LATENT,
    "ministral": _ATTENDED,
    "nemotron": _ATTENDED | {"num_key_value_heads": 2},
    "paddleocr_vl_text": _SECTIONS,
    "qwen2_5_vl_text": _SECTIONS,
    "qwen2_vl_text": _SECTIONS,
    "qwen3_5_moe_text": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_next": _HYBRID,
    "reformer": {"is_decoder": True},
    "youtu": _LATENT,
    "zamba": _TWICE
    | {
        "num_hidden_layers": 7,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2
        + ["linear_attention"],
    },
    "zamba2": _HYBRID
    | _TWICE
    | {"n_mamba_heads": 8, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def causal_architectures() -> list[str]:
    """Return the model types that AutoModelForCausalLM accepts, by name."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small_config(kind: str, **parts: str) -> PretrainedConfig:
    """Return a small configuration of that architecture. Raises whatever its own checks raise.

    `parts` are architectures to have within it: `text_config="mistral"`.
    """
    within: dict[str, Any] = {name: CONFIG_MAPPING[of]() for name, of in parts.items()}
    made = CONFIG_MAPPING[kind](**within)
    fields = _small(made)
    for name in getattr(made, "sub_configs", None) or {}:
        part = getattr(made, name, None)
        if isinstance(part, PretrainedConfig):
            fields[name] = _small(part) | _BY_KIND.get(part.model_type, {})
            fields[name] |= {"model_type": part.model_type} if part.model_type else {}
    return CONFIG_MAPPING[kind](**(fields | _BY_KIND.get(kind, {})))


def small_multimodal(kind: str, **parts: str) -> PretrainedConfig:
    """Return a small configuration of a multimodal architecture, with every tower it can have.

    `parts` are architectures to have within it: `vision_config="pixtral"`.
    """
    made = CONFIG_MAPPING[kind]()
    missing: dict[str, Any] = {
        name: part
        for name, part in (getattr(made, "sub_configs", None) or {}).items()
        if getattr(made, name, None) is None and hasattr(part, "model_type")
    }
    small = {
        name: _small(part()) | {"model_type": part.model_type} for name, part in missing.items()
    }
    if not small:
        return small_config(kind, **parts)
    parts_of: dict[str, Any] = {**small}
    parts_of["text_config"] = small_config(kind).get_text_config().to_dict()
    return CONFIG_MAPPING[kind](**parts_of)


def enlarge(model: Any) -> Any:
    """Give the model random weights that are large enough to matter.

    With transformers' initial weights, layers hardly change their inputs, and logits never reach a
    cap.
    """
    torch.manual_seed(0)
    head = model.get_output_embeddings()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1 / math.sqrt(parameter.shape[-1]))
            elif "norm" in name and name.endswith("weight"):
                parameter.add_(0.1 * torch.randn_like(parameter))
        if head is not None:
            head.weight.mul_(_LOGITS)
    return model


def _small(made: PretrainedConfig) -> dict[str, Any]:
    found = {name: _value(name, value) for name, value in vars(made).items()}
    return {name: value for name, value in found.items() if value is not None}


def _value(name: str, value: Any) -> Any:
    """Return the new value of a field; None leaves it unchanged."""
    if "logit_softcap" in name or "logits_soft_cap" in name:
        return 5.0
    if value is None or name in _SIZE_OF:
        return _SIZE_OF[name] if value is not None else None
    is_size = isinstance(value, int) and not isinstance(value, bool)
    if is_size and name.endswith("token_id"):
        return 1 if value >= VOCABULARY else None
    if is_size and any(part in name for part in _OF_FEED_FORWARD):
        return _FEED_FORWARD
    if isinstance(value, float) and any(part in name for part in _RANDOM):
        return 0.0
    is_neutral = isinstance(value, float) and value == 1
    return 1.25 if is_neutral and any(part in name for part in _SCALES) else None
