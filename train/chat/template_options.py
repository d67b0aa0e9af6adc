"""data.template_options: variables that a chat template is given by name."""

from __future__ import annotations

import json
from typing import Any

from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


def options_of(text: str) -> dict[str, Any]:
    """Parse NAME=VALUE,… or one JSON object; values are JSON, Python's constants or text.

    Raises UserError.
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
