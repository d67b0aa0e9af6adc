"""What a chat template is made of and given: files, texts of special tokens, options by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rundir.errors import ExitCode, UserError

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
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
    source = _object_in(model_path / "tokenizer_config.json").get("chat_template")
    named = {"default": source} if isinstance(source, str) else {}
    if isinstance(source, list):
        named = {item["name"]: item["template"] for item in source}
    files = {_WITH_TOOLS: model_path / "additional_chat_templates" / f"{_WITH_TOOLS}.jinja"}
    files["default"] = model_path / "chat_template.jinja"
    # Some multimodal models have it in a file of its own.
    processor_template = _object_in(model_path / "chat_template.json").get("chat_template")
    if isinstance(processor_template, str) and processor_template:
        named["default"] = processor_template
    for name, file in files.items():
        if file.is_file():
            named[name] = file.read_text(encoding="utf-8-sig")
    return named.get("default"), named.get(_WITH_TOOLS)


def _object_in(file: Path) -> dict[str, Any]:
    """Return the object in a file of JSON; empty if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def special_tokens(model_path: Path) -> dict[str, str]:
    """Return the texts of bos_token, eos_token and pad_token; "" for a missing one."""
    settings = _object_in(model_path / "tokenizer_config.json")
    return {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token")}


def _token_text(token: Any) -> str:
    """Return the text of a special token, stored as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def options_of(text: str) -> dict[str, Any]:
    """Parse data.template_options: NAME=VALUE,… or one JSON object. Raises UserError.

    Values are JSON, Python's constants or text.
    """
    if text.lstrip().startswith("{"):
        try:
            options: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise _no_options(text, f"is not valid JSON: {error}") from error
    else:
        parts = [part.partition("=") for part in text.split(",") if part.strip()]
        options = {name.strip(): _option(value) for name, _, value in parts}
        if not all(is_given for _, is_given, _ in parts):
            raise _no_options(text, "gives a name no value")
    for name in options:
        if not name.isidentifier() or name in _RESERVED:
            raise _no_options(text, f"names {name!r}, which cannot be set")
    return options


def _option(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        if text.lstrip()[:1] in ("[", "{"):
            raise _no_options(text, "is not valid JSON") from None
        return text


def _no_options(text: str, what: str) -> UserError:
    return UserError(
        f"data.template_options is {text!r}: it {what}",
        do="--set data.template_options=enable_thinking=false, or a JSON object of several",
        code=ExitCode.USAGE,
    )
