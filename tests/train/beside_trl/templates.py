"""Shapes of conversations for every chat template of the installed TRL."""

from __future__ import annotations

from typing import Any

from tests.train.beside_trl.completions import PLAIN, TURNS
from tests.train.beside_trl.models import template, template_names
from tests.train.beside_trl.shape import LONG, SHORT, Shape, chat, in_parts, marked

_REFUSED = {"why": "prompt rewritten", "airlock_refuses": "changes the prompt"}
_TRL_IN_PARTS = {"trl_rows": [in_parts(LONG)]}
_TRL_PAIR_IN_PARTS = {"trl_rows": [in_parts(PLAIN)]}
_THOUGHT_BEGUN: dict[str, Any] = {
    "why": "marks, parts alone",
    "parts": [("<think>·\n·[[\n]]", "[[<think>·\n\n]]")] * 2,
}
_PROMPT_ENDS_WITH_NEW_LINE: dict[str, Any] = {
    "why": "parts alone",
    "parts": [("\n·[[\n]]", "[[\n\n]]")],
}
_END_OF_ALL: dict[str, Any] = {
    "why": "turns rewritten",
    "parts": [
        (
            (
                "[[</s>]]·‖·<|system|>·\n·Be· brief·.·<|end|>·\n·<|user|>·\n·hello· the· model·"
                "<|end|>·\n·<|assistant|>·\n·the· weather· ·is· ·2·+·5·=·7·<|end|>·\n"
            ),
            "",
        )
    ],
}

MARKED: dict[str, dict[str, Any]] = {
    "deepseek_r1_distill_training": _REFUSED,
    "deepseekv3_training": _REFUSED,
    "gemma_training": {"rows": [chat(*TURNS[1:])]},  # it refuses system prompts
    "gptoss_training": {
        "rows": [SHORT],
        "why": "marks",
        "parts": [("<|start|>·assistant", "[[<|start|>·assistant]]")],
    },
    "idefics3_training": _TRL_IN_PARTS,
    "llava_next_training": _TRL_IN_PARTS,
    "muse_glimmer_training": {
        "why": "marks",
        "parts": [("<|start|>·assistant", "[[<|start|>·assistant]]")] * 2,
    },
    "nemotron_3_5_lightning_training": _REFUSED,
    "nemotron_3_nano_training": _REFUSED,
    "nemotron_3_super_training": _REFUSED,
    "nemotron_3_ultra_training": _REFUSED,
    "phi3_5_training": _END_OF_ALL,
    "phi3_training": _END_OF_ALL,
    "qwen2_5_training": {"why": "marks", "parts": [("\n", "[[\n]]")] * 2},
    "qwen3_5_nothink_training": {
        "why": "marks",
        "parts": [("<think>·\n\n·</think>·\n\n", "[[<think>·\n\n·</think>·\n\n]]")] * 2,
    },
    "qwen3_5_think_training": _THOUGHT_BEGUN,
    "qwen3_6_training": _THOUGHT_BEGUN,
    "qwen3_8_training": _THOUGHT_BEGUN,
    "smolvlm_training": _TRL_IN_PARTS,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_r1_distill": _REFUSED,
    "deepseekv3": _REFUSED,
    "glm4moe": {
        "why": "end as the next turn",
        "airlock_refuses": "no token marks the end of an answer",
    },
    "idefics3": _TRL_PAIR_IN_PARTS,
    "llava_next": _TRL_PAIR_IN_PARTS,
    "nemotron_3_5_lightning": _REFUSED,
    "nemotron_3_nano": _REFUSED,
    "nemotron_3_super": _REFUSED,
    "nemotron_3_ultra": _REFUSED,
    "qwen3_5_think": _PROMPT_ENDS_WITH_NEW_LINE,
    "qwen3_6": _PROMPT_ENDS_WITH_NEW_LINE,
    "qwen3_8": _PROMPT_ENDS_WITH_NEW_LINE,
    "smolvlm": _TRL_PAIR_IN_PARTS,
}


def of_marked_templates() -> list[Shape]:
    """Return several turns for each template that marks what the model says."""
    names = (name for name in template_names() if "endgeneration" in template(name))
    shapes = ({"rows": [LONG], "template": name} | MARKED.get(name, {}) for name in names)
    return [marked("several turns", *shape.pop("rows"), **shape) for shape in shapes]


def of_own_templates() -> list[Shape]:
    """Return a prompt and its completion for each template as the model has it."""
    names = (name for name in template_names() if not name.endswith("_training"))
    name = "a prompt and its completion"
    return [
        Shape(**{"name": name, "rows": [PLAIN], "template": own} | OWN.get(own, {}))
        for own in names
    ]
