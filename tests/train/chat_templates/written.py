"""Five chat templates, written by hand from the known prompt formats of their models.

Each has the form of the released one: the same marks, the same treatment of system prompts, of
whitespace and of earlier thoughts. Branches for tools are left out.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_suffix("")


def _template(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


CHATML, LLAMA_3, GEMMA = map(_template, ("chatml", "llama_3", "gemma"))
MISTRAL = _template("mistral")  # a system prompt precedes the user's last message
QWEN_3 = _template("qwen_3")  # thoughts are written only after the last question, and there always
