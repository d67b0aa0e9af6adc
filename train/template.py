"""Prompt and answer as the model's own chat template writes them, without importing torch."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from rundir.errors import UserError
from rundir.exit_codes import ExitCode


class Template:
    """Renders a prompt, and the answer that follows it."""

    def __init__(self, model_path: Path) -> None:
        """Read the template of a local model folder; one without a template gets plain text."""
        settings = _tokenizer_config(model_path)
        source = _template_source(model_path, settings)
        self._tokens = {
            key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token")
        }
        self._template = None if source is None else _compile(source)

    def render(self, prompt: str, response: str) -> tuple[str, str]:
        """(text before the answer, the answer to its end mark)."""
        if self._template is None:
            return f"{prompt}\n", f"{response}{self._tokens['eos_token']}"
        user = {"role": "user", "content": prompt}
        answer = {"role": "assistant", "content": response}
        before = self._render([user], add_generation_prompt=True)
        whole = self._render([user, answer], add_generation_prompt=False)
        if not whole.startswith(before):
            raise UserError(
                "this model's chat template changes the prompt once an answer follows it",
                do="use a model whose template only appends, as most do",
                code=ExitCode.DATA,
            )
        return before, whole[len(before) :]

    def after_answer(self) -> str:
        """What follows an answer: its end mark, and what else the template writes there."""
        answer = "answer"
        return self.render("prompt", answer)[1].partition(answer)[2]

    def leading_ids(self, tokenizer: Any) -> list[int]:
        """Ids to put before plain text: the BOS that the tokenizer itself would add, or none.

        A chat template writes its own.
        """
        bos_id = tokenizer.token_to_id(self._tokens["bos_token"] or "")
        if self._template is not None or bos_id is None:
            return []
        return [bos_id] if tokenizer.encode("a").ids[0] == bos_id else []

    def _render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        assert self._template is not None
        from jinja2 import TemplateError

        try:
            text: str = self._template.render(
                messages=messages, tools=None, documents=None,
                add_generation_prompt=add_generation_prompt, **self._tokens,
            )  # fmt: skip
        except TemplateError as error:
            raise _unusable(error) from error
        return text


def _unusable(error: Exception) -> UserError:
    return UserError(
        f"this model's chat template cannot be used: {error}",
        do="mend chat_template.jinja in the model's folder, or use another model",
        code=ExitCode.DATA,
    )


def _tokenizer_config(model_path: Path) -> dict[str, Any]:
    try:
        settings = json.loads((model_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _template_source(model_path: Path, settings: dict[str, Any]) -> str | None:
    file = model_path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    source = settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = next((item["template"] for item in source if item["name"] == "default"), None)
    return source


def _token_text(token: Any) -> str:
    """A special token is stored as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _compile(source: str) -> Any:
    """The template under the settings and helpers that chat templates are written for."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the model says; here it is just its content."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise _unusable(error) from error
