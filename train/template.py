"""Conversations as the model's own chat template writes them, without importing torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rundir.errors import UserError
from rundir.exit_codes import ExitCode

Part = tuple[str, bool]  # text, and whether it is an answer


class Template:
    """Renders conversations."""

    def __init__(self, model_path: Path) -> None:
        """Read the template of a local model folder; one without a template gets plain text."""
        settings = _tokenizer_config(model_path)
        source = _template_source(model_path, settings)
        self._tokens = special_tokens(model_path)
        self._template = None if source is None else _compile(source)

    def render(self, prompt: str, response: str) -> tuple[str, str]:
        """(text before the answer, the answer to its end mark)."""
        answer = {"role": "assistant", "content": response}
        ((before, after),) = self.conversation([{"role": "user", "content": prompt}, answer])
        return before[0], after[0]

    def conversation(self, messages: Sequence[dict[str, str]]) -> list[list[Part]]:
        """The samples that a conversation makes, each the parts of its text.

        One sample, if what the template writes is only added to from turn to turn. Some (Qwen3's)
        write earlier turns anew: then there is one for each answer, with what came before it as
        the model would see it, and loss on that answer alone.
        """
        answers = [i for i, one in enumerate(messages) if one["role"] == "assistant"]
        turns = [self._turn(messages[: i + 1]) for i in answers]
        parts: list[Part] = []
        done = ""
        for before, answer in turns:
            if not before.startswith(done):
                return [[(one, False), (other, True)] for one, other in turns]
            parts += [(before[len(done) :], False), (answer, True)]
            done = before + answer
        return [parts]

    def _turn(self, messages: Sequence[dict[str, str]]) -> tuple[str, str]:
        """(all text before the last message, which is an answer, and the answer)."""
        if self._template is None:
            end = self._tokens["eos_token"]
            ends = [end if one["role"] == "assistant" else "\n" for one in messages]
            texts = [one["content"] + end for one, end in zip(messages, ends, strict=True)]
            return "".join(texts[:-1]), texts[-1]
        before = self._render(messages[:-1], add_generation_prompt=True)
        whole = self._render(messages, add_generation_prompt=False)
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

    def leading_ids(self, tokenizer: Any, *, of_text: bool = False) -> list[int]:
        """Ids to put before plain text: the BOS that the tokenizer itself would add, or none.

        A chat template writes its own; `of_text` is of what no template is used for.
        """
        bos_id = tokenizer.token_to_id(self._tokens["bos_token"] or "")
        if (self._template is not None and not of_text) or bos_id is None:
            return []
        return [bos_id] if tokenizer.encode("a").ids[0] == bos_id else []

    def text_end_id(self, tokenizer: Any) -> int | None:
        """What ends a text that no template is used for: EOS; None where there is none."""
        found: int | None = tokenizer.token_to_id(self._tokens["eos_token"] or "")
        return found

    def _render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> str:
        assert self._template is not None
        from jinja2 import TemplateError

        try:
            text: str = self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
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


def special_tokens(model_path: Path) -> dict[str, str]:
    """The texts of bos_token, eos_token and pad_token; "" for one that there is not."""
    settings = _tokenizer_config(model_path)
    return {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token")}


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
