"""The conversation formats in models' documentation, spelled out without a template.

Each reader returns the samples of a conversation: parts of text, and whether they have loss.
"""

from __future__ import annotations

from typing import Any

Part = tuple[str, bool]
Messages = list[dict[str, Any]]


def chatml(messages: Messages) -> list[list[Part]]:
    """<|im_start|>ROLE, a new line, the content, <|im_end|> and a new line."""
    parts: list[Part] = []
    for one in messages:
        parts.append((f"<|im_start|>{one['role']}\n", False))
        parts.append((f"{one['content']}<|im_end|>\n", one["role"] == "assistant"))
    return [parts]


def llama_3(messages: Messages) -> list[list[Part]]:
    """The role between header marks, two new lines, the content, <|eot_id|>."""
    parts: list[Part] = [("<s>", False)]
    for one in messages:
        parts.append((f"<|start_header_id|>{one['role']}<|end_header_id|>\n\n", False))
        parts.append((f"{one['content'].strip()}<|eot_id|>", one["role"] == "assistant"))
    return [parts]


def mistral(messages: Messages) -> list[list[Part]]:
    """[INST] around what the user says, the first time with the system prompt; then the answer."""
    parts: list[Part] = [("<s>", False)]
    pending = ""
    for one in messages:
        if one["role"] == "system":
            pending = one["content"] + "\n\n"
        elif one["role"] == "user":
            parts.append((f"[INST]{pending}{one['content']}[/INST]", False))
            pending = ""
        else:
            parts.append((one["content"].strip() + "</s>", True))
    return [parts]


def gemma(messages: Messages) -> list[list[Part]]:
    """Turns of `user` and `model`."""
    parts: list[Part] = [("<s>", False)]
    for one in messages:
        is_model = one["role"] == "assistant"
        parts.append((f"<start_of_turn>{'model' if is_model else one['role']}\n", False))
        parts.append((f"{one['content'].strip()}<end_of_turn>\n", is_model))
    return [parts]


def qwen_3(messages: Messages, *, thinks: bool = True) -> list[list[Part]]:
    """The same as ChatML, with an answer's thoughts before it; later turns no longer see them.

    So each answer is a sample of its own, unless there is only one. Without thinking it gets empty
    thoughts.
    """
    samples: list[list[Part]] = []
    before = ""
    for one in messages:
        if one["role"] != "assistant":
            before += f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n"
            continue
        thought, found, content = one["content"].rpartition("</think>")
        thought = thought.removeprefix("<think>").strip("\n")
        content = content.lstrip("\n") if found else one["content"]
        thoughts = f"<think>\n{thought}\n</think>\n\n"
        asked = before + "<|im_start|>assistant\n"
        if thinks:
            samples.append([(asked, False), (f"{thoughts}{content}<|im_end|>\n", True)])
        else:
            samples.append([(asked + thoughts, False), (f"{content}<|im_end|>\n", True)])
        before = f"{asked}{content}<|im_end|>\n"
    return samples
