"""Prompts and answers come out as transformers itself would write them, without its weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.make_checkpoint import CHAT_TEMPLATE, byte_tokenizer
from train.template import Template

CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Each uses something that templates of released models use.
TEMPLATES = {
    "ours": CHAT_TEMPLATE,
    "chatml": CHATML,
    "special tokens": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    "trimmed": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "blocks on lines of their own": "{% for m in messages %}\n  {% if m.role == 'user' %}\n"
    "[{{ m.content }}]{% else %}\n({{ m.content }}){% endif %}\n{% endfor %}\n",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m.content | tojson(indent=2) }}{% endfor %}",
    "break": "{% for m in messages %}{{ m.content }}|{% if m.role == 'assistant' %}{% break %}"
    "{% endif %}{% endfor %}",
    "tools that are none": "{% if tools is not none %}TOOLS{% endif %}"
    "{% for m in messages %}{{ m.content }}|{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}|{% endif %}{% endfor %}",
    "date": "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}|{% endfor %}",
}

PAIRS = [
    ("2 + 5", "7"),
    ("  spaces around \n", "\n a\n\n"),
    ("größe 你好 🚀", "\u2028é"),
    ("{{ messages }} {% raw %}", "<|end|>'\"\\"),
]


def folder_with(tmp_path: Path, template: str | None, **settings: Any) -> Path:
    """A tokenizer's folder with that template, saved by transformers."""
    make: Any = byte_tokenizer
    tokenizer = make()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | settings), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_template_is_rendered_as_transformers_renders_it(tmp_path: Path, template: str) -> None:
    from transformers import AutoTokenizer

    folder = folder_with(tmp_path, template, bos_token="<|user|>")  # noqa: S106
    load: Any = AutoTokenizer.from_pretrained
    tokenizer, ours = load(folder), Template(folder)
    for prompt, response in PAIRS:
        user = {"role": "user", "content": prompt}
        chat = [user, {"role": "assistant", "content": response}]
        whole = tokenizer.apply_chat_template(chat, tokenize=False)
        before = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
        assert ours.render(prompt, response) == (before, whole.removeprefix(before))


def test_a_model_without_a_template_gets_plain_text_and_its_end_mark(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, None)
    assert Template(folder).render("2 + 5", "7") == ("2 + 5\n", "7<|end|>")


def test_a_folder_without_any_settings_gets_plain_text(tmp_path: Path) -> None:
    assert Template(tmp_path).render("2 + 5", "7") == ("2 + 5\n", "7")
    (tmp_path / "tokenizer_config.json").write_text("[]", encoding="utf-8")
    assert Template(tmp_path).render("2 + 5", "7") == ("2 + 5\n", "7")


@pytest.mark.parametrize("token", ["</s>", {"content": "</s>", "special": True}, None, 7])
def test_a_special_token_may_be_stored_as_text_or_as_an_object(tmp_path: Path, token: Any) -> None:
    settings = json.dumps({"eos_token": token})
    (tmp_path / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    end = "</s>" if token in ("</s>", {"content": "</s>", "special": True}) else ""
    assert Template(tmp_path).render("a", "b") == ("a\n", f"b{end}")


@pytest.mark.parametrize("several", [False, True])
def test_a_template_may_stand_in_the_settings(tmp_path: Path, several: bool) -> None:
    other = {"name": "tool_use", "template": "wrong"}
    listed = [other, {"name": "default", "template": CHAT_TEMPLATE}]
    settings = json.dumps({"chat_template": listed if several else CHAT_TEMPLATE})
    (tmp_path / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    assert Template(tmp_path).render("a", "b") == ("<|user|>a<|assistant|>", "b<|end|>")


def test_the_template_in_a_file_of_its_own_wins_over_the_settings(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, CHAT_TEMPLATE, chat_template="wrong")
    assert Template(folder).render("a", "b")[1] == "b<|end|>"


CHANGING = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
RAISING = "{{ raise_exception('a system message is needed') }}"
BROKEN = "{% for m in messages %}{{ m.content }}"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (CHANGING, "changes the prompt"),
        (RAISING, "a system message is needed"),
        (BROKEN, "chat template"),
    ],
    ids=["changes the prompt", "raises", "does not compile"],
)
def test_a_template_that_cannot_be_used_is_an_error_in_the_data(
    tmp_path: Path, template: str, says: str
) -> None:
    folder = folder_with(tmp_path, None)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(UserError, match=says) as raised:
        Template(folder).render("a prompt", "b")
    assert raised.value.code == ExitCode.DATA


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    reach = "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages.clear() }}"
    (tmp_path / "chat_template.jinja").write_text(reach, encoding="utf-8")
    with pytest.raises(Exception, match=r"unsafe|not safely|sandbox"):
        Template(tmp_path).render("a", "b")
