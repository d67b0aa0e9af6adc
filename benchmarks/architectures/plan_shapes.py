"""Architectures whose memory is compared with the plan's (benchmarks/plan.py).

They are as small as a measurement allows: libraries take some MB of their own, whatever the model.
"""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
QWEN3 = _SMALL | {"model_type": "qwen3", "head_dim": 64}
LLAMA = _SMALL | {"model_type": "llama", "tie_word_embeddings": True}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 8192,
    "n_embd": 512,
    "n_layer": 6,
    "n_head": 8,
    "n_positions": 1024,
}

_TEXT = _SMALL | {"head_dim": 64}
_VISION = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
_LAYERS = {"num_hidden_layers": 12}
_SIGLIP = _VISION | _LAYERS | {"model_type": "siglip_vision_model"}
_PIXTRAL = _VISION | _LAYERS | {"model_type": "pixtral"}
_QWEN_VISION = {"depth": 12, "hidden_size": 512, "num_heads": 8, "out_hidden_size": 512}
_GATED = {  # gated delta nets
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
_EXPERTS = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
_EXPERTS |= {"num_experts": 4, "num_experts_per_tok": 2}


def _rope(*sections: int, **more: Any) -> dict[str, Any]:
    """Return the rotation of heads of which sections turn by time, height and width."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [*sections]}
        | more
    }


def _made(
    kind: str, text: str, vision: dict[str, Any], *changed: dict[str, Any], **more: Any
) -> dict[str, Any]:
    text_config: dict[str, Any] = {**_TEXT, "model_type": text}
    for one in changed:
        text_config |= one
    return {"model_type": kind, "text_config": text_config, "vision_config": vision, **more}


_TIED = {"tie_word_embeddings": True}
_INTERLEAVED = _rope(16, 8, 8, mrope_interleaved=True)
_PARTIAL = _rope(3, 3, 2, mrope_interleaved=True, partial_rotary_factor=0.25)
MULTIMODAL = {
    "gemma3": _made("gemma3", "gemma3_text", _SIGLIP, _TIED),
    "qwen3_vl": _made("qwen3_vl", "qwen3_vl_text", _QWEN_VISION, _INTERLEAVED),
    "mistral3": _made("mistral3", "mistral", _PIXTRAL),
    "qwen3_5": _made("qwen3_5", "qwen3_5_text", _QWEN_VISION, _GATED, _PARTIAL),
    "qwen3_5_moe": _made(
        "qwen3_5_moe", "qwen3_5_moe_text", _QWEN_VISION, _GATED, _PARTIAL, _EXPERTS
    ),
    "gemma4": _made(
        "gemma4",
        "gemma4_text",
        _VISION | _LAYERS | {"model_type": "gemma4_vision"},
        _TIED | {"global_head_dim": 128, "hidden_size_per_layer_input": 0},
        tie_word_embeddings=True,
    ),
    "llama4": _made(
        "llama4",
        "llama4_text",
        _VISION | _LAYERS | {"model_type": "llama4_vision_model"},
        {"intermediate_size_mlp": 1536, "intermediate_size": 768, "num_local_experts": 4},
    ),
    "internvl": _made("internvl", "qwen2", _VISION | _LAYERS | {"model_type": "internvl_vision"}),
    "idefics3": _made("idefics3", "llama", _VISION | _LAYERS),
    "smolvlm": _made("smolvlm", "llama", _VISION | _LAYERS, _TIED, tie_word_embeddings=True),
    "aya_vision": _made("aya_vision", "cohere2", _SIGLIP, _TIED),
    "pixtral": _made("llava", "mistral", _PIXTRAL),
    "ministral3": _made("mistral3", "ministral3", _PIXTRAL),
    "qwen2_5_vl": _made(
        "qwen2_5_vl", "qwen2_5_vl_text", _QWEN_VISION | {"intermediate_size": 1024}, _rope(16, 8, 8)
    ),
    "glm4v": _made(
        "glm4v",
        "glm4v_text",
        _QWEN_VISION | {"intermediate_size": 1024},
        _rope(4, 6, 6, partial_rotary_factor=0.5),
    ),
}
