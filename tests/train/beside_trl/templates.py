"""Shapes of conversations for every chat template of the installed TRL."""

from __future__ import annotations

from typing import Any

from tests.train.beside_trl.models import template, template_names
from tests.train.beside_trl.shape import LONG, PLAIN, SHORT, TURNS, Shape, in_parts

_QUESTION = (
    "·s·y·s·t·e·m·\n·Be· brief·.·<|im_end|>·\n·<|im_start|>·user·\n·hello· the· model·"
    "<|im_end|>·\n·<|im_start|>·assistant·\n·"
)
_ANSWER = "the· weather· ·is· ·2·+·5·=·7·<|im_end|>·\n"
_OPENED = "<think>·\n·[[\n·</think>·\n\n]]"
_ASSISTANT = "<\uff5cAssistant\uff5c>"
_LAST = "the· weather· ·is· ·2·+·5·=·7·<\uff5cend\u2581of\u2581sentence\uff5c>"
_DEEPSEEK: dict[str, Any] = {
    "why": "opened thoughts, marks",
    "parts": [
        (f"{_ASSISTANT}·{_OPENED}", f"[[{_ASSISTANT}]]"),
        (f"‖·<s>·Be· brief·.·<\uff5cUser\uff5c>·hello· the· model·{_ASSISTANT}·{_LAST}", ""),
        (f"{_ASSISTANT}·{_OPENED}", f"[[{_ASSISTANT}]]"),
    ],
}
_NEMOTRON: dict[str, Any] = {
    "why": "opened thoughts, marks",
    "parts": [
        ("<think>·\n", "[[<think>]]"),
        (f"‖·<|im_start|>{_QUESTION}<think>·</think>·{_ANSWER}", ""),
        ("<think>·\n", "[[<think>]]"),
    ],
}
_DEEPSEEK_PAIR: dict[str, Any] = {"why": "opened thoughts", "parts": [(_OPENED, "")]}
_NEMOTRON_PAIR: dict[str, Any] = {"why": "opened thoughts", "parts": [("\n", "")]}
_TRL_IN_PARTS = {"trl_rows": [in_parts(LONG)]}
_TRL_PAIR_IN_PARTS = {"trl_rows": [in_parts(PLAIN)]}
_THOUGHT_BEGUN: dict[str, Any] = {
    "why": "marks, tokens across a border",
    "parts": [
        ("<think>·\n·[[\n]]", "[[<think>·\n\n]]"),
        (f"‖·<|im_start|>{_QUESTION}<think>·\n\n·</think>·\n\n·{_ANSWER}", ""),
        ("<think>·\n·[[\n]]", "[[<think>·\n\n]]"),
    ],
}
_PROMPT_ENDS_WITH_NEW_LINE: dict[str, Any] = {
    "why": "tokens across a border",
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
    "deepseek_r1_distill_training": _DEEPSEEK,
    "deepseekv3_training": _DEEPSEEK,
    "gemma_training": {"rows": [{"messages": TURNS[1:]}]},  # it refuses system prompts
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
    "nemotron_3_5_lightning_training": _NEMOTRON,
    "nemotron_3_nano_training": _NEMOTRON,
    "nemotron_3_super_training": _NEMOTRON,
    "nemotron_3_ultra_training": _NEMOTRON,
    "phi3_5_training": _END_OF_ALL,
    "phi3_training": _END_OF_ALL,
    "qwen2_5_training": {"why": "marks", "parts": [("\n", "[[\n]]")] * 2},
    "qwen3_5_nothink_training": {
        "why": "marks",
        "parts": [("<think>·\n\n·</think>·\n\n", "[[<think>·\n\n·</think>·\n\n]]")] * 2,
    },
    "qwen3_5_think_training": _THOUGHT_BEGUN,
    "qwen3_6_training": _THOUGHT_BEGUN,
    "qwen3_8_training": {
        "rows": [SHORT],
        "why": _THOUGHT_BEGUN["why"],
        "parts": _THOUGHT_BEGUN["parts"][:1],
    },
    "smolvlm_training": _TRL_IN_PARTS,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_r1_distill": _DEEPSEEK_PAIR,
    "deepseekv3": _DEEPSEEK_PAIR,
    "glm4moe": {"why": "the end of an answer", "parts": [("[[<|user|>]]", "")]},
    "idefics3": _TRL_PAIR_IN_PARTS,
    "llava_next": _TRL_PAIR_IN_PARTS,
    "nemotron_3_5_lightning": _NEMOTRON_PAIR,
    "nemotron_3_nano": _NEMOTRON_PAIR,
    "nemotron_3_super": _NEMOTRON_PAIR,
    "nemotron_3_ultra": _NEMOTRON_PAIR,
    "qwen3_5_think": _PROMPT_ENDS_WITH_NEW_LINE,
    "qwen3_6": _PROMPT_ENDS_WITH_NEW_LINE,
    "qwen3_8": _PROMPT_ENDS_WITH_NEW_LINE,
    "smolvlm": _TRL_PAIR_IN_PARTS,
}


def of_marked_templates() -> list[Shape]:
    """Return several turns for each template that marks what the model says."""
    names = (name for name in template_names() if "endgeneration" in template(name))
    shape = {"name": "several turns", "rows": [LONG], "sft": {"assistant_only_loss": True}}
    return [Shape(**shape | {"template": marked} | MARKED.get(marked, {})) for marked in names]


def of_own_templates() -> list[Shape]:
    """Return a prompt and its completion for each template as the model has it."""
    names = (name for name in template_names() if not name.endswith("_training"))
    name = "a prompt and its completion"
    return [
        Shape(**{"name": name, "rows": [PLAIN], "template": own} | OWN.get(own, {}))
        for own in names
    ]
