"""The files of a model that its chat template is made of, and the texts of its special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_WITH_TOOLS = "tool_use"  # the name of a second template, for conversations with tools


def find_templates(model_path: Path, own: str) -> tuple[str | None, str | None]:
    """Return (template, template for conversations with tools) of a folder or of the file `own`.

    Raises UserError if the file cannot be read.
    """
    if own:
        try:
            return Path(own).read_text(encoding="utf-8-sig"), None
        except (OSError, ValueError) as error:
            raise UserError(
                f"data.chat_template = {own} cannot be read: {error}",
                do="a file with a chat template, as chat_template.jinja of a model has it",
                code=ExitCode.DATA,
            ) from error
    source = tokenizer_config(model_path).get("chat_template")
    named = {"default": source} if isinstance(source, str) else {}
    if isinstance(source, list):
        named = {item["name"]: item["template"] for item in source}
    files = {_WITH_TOOLS: model_path / "additional_chat_templates" / f"{_WITH_TOOLS}.jinja"}
    files["default"] = model_path / "chat_template.jinja"
    if of_processor := _of_processor(model_path):
        named["default"] = of_processor
    for name, file in files.items():
        if file.is_file():
            named[name] = file.read_text(encoding="utf-8-sig")
    return named.get("default"), named.get(_WITH_TOOLS)


def _of_processor(model_path: Path) -> str | None:
    """Return the chat template that some multimodal models have in chat_template.json."""
    try:
        content = json.loads((model_path / "chat_template.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    source = content.get("chat_template") if isinstance(content, dict) else None
    return source if isinstance(source, str) else None


def tokenizer_config(model_path: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json; empty if there is none."""
    try:
        settings = json.loads((model_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return settings if isinstance(settings, dict) else {}


def special_tokens(model_path: Path) -> dict[str, str]:
    """Return the texts of bos_token, eos_token and pad_token; "" for a missing one."""
    settings = tokenizer_config(model_path)
    return {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token")}


def _token_text(token: Any) -> str:
    """Return the text of a special token, stored as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
