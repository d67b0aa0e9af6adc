"""Prompts and answers come out as transformers itself would write them, without its weight."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rundir.errors import ExitCode, UserError
from train.chat.messages import ChatExample
from train.chat.rendered import Rendered
from train.chat.template import Template
from train.chat.template_files import options_of
from train.model.make_checkpoint import CHAT_TEMPLATE, byte_tokenizer

HERE = Path(__file__).parent
CHATML = (HERE / "chatml.jinja").read_text(encoding="utf-8")
# Each uses something that templates of released models use.
TEMPLATES: dict[str, str] = {
    "ours": CHAT_TEMPLATE,
    "chatml": CHATML,
    **tomllib.loads((HERE / "templates.toml").read_text(encoding="utf-8")),
}

PAIRS = [
    ("2 + 5", "7"),
    ("  spaces around \n", "\n a\n\n"),
    ("größe 你好 🚀", "\u2028é"),
    ("{{ messages }} {% raw %}", "<|end|>'\"\\"),
]


def folder_with(tmp_path: Path, template: str | None, **settings: Any) -> Path:
    """Save a tokenizer's folder with that template, by transformers."""
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


CHAT = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]
_ASKED = "{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}<|assistant|>"
_ASKS = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
MARKING = (
    "{% for m in messages %}" + _ASKED + "{% generation %}{{ m.content }}<|end|>"
    "{% endgeneration %}{% endif %}{% endfor %}" + _ASKS
)


def samples(folder: Path, chat: ChatExample, **given: Any) -> list[str]:
    """Render the samples of a conversation, with loss in brackets."""
    return [with_brackets(one) for one in Template(folder, **given).conversation(chat).texts]


def with_brackets(rendered: Rendered) -> str:
    """Return a text with loss in brackets."""
    parts, done = [], 0
    for begin, end in (one for answer in rendered.answers for one in answer.loss):
        parts += [rendered.text[done:begin], f"[[{rendered.text[begin:end]}]]"]
        done = end
    return "".join([*parts, rendered.text[done:]])


def test_marks_of_a_template_say_what_has_loss_and_a_difference_is_said(tmp_path: Path) -> None:
    ours = "<|user|>a<|assistant|>[[b<|end|>]]<|user|>c<|assistant|>[[d<|end|>]]"
    folder = folder_with(tmp_path, MARKING)
    assert Template(folder).note == ""
    assert samples(folder, ChatExample(CHAT)) == [ours]
    more = MARKING.replace("{% generation %}", "(thinks){% generation %}")
    folder = folder_with(tmp_path, more)
    assert samples(folder, ChatExample(CHAT[:2])) == ["<|user|>a<|assistant|>(thinks)[[b<|end|>]]"]
    assert "loss is on what the template marks" in Template(folder).note
    assert "'answer<|end|>' of '(thinks)answer<|end|>'" in Template(folder).note


def test_marks_without_the_end_of_an_answer_are_not_followed_and_that_is_said(
    tmp_path: Path,
) -> None:
    folder = folder_with(
        tmp_path, MARKING.replace("<|end|>{% endgeneration %}", "{% endgeneration %}<|end|>")
    )
    assert samples(folder, ChatExample(CHAT[:2])) == ["<|user|>a<|assistant|>[[b<|end|>]]"]
    assert "without what ends it; loss is on 'answer<|end|>'" in Template(folder).note


def test_answers_without_loss_are_written_all_the_same(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, CHAT_TEMPLATE)
    chat = ChatExample(CHAT, None, frozenset({1}))
    expected = "<|user|>a<|assistant|>b<|end|><|user|>c<|assistant|>[[d<|end|>]]"
    assert samples(folder, chat) == [expected]


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
]


def test_calls_and_tools_that_a_template_does_not_write_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, CHAT_TEMPLATE)
    with pytest.raises(UserError, match="does not write calls of tools") as raised:
        samples(folder, ChatExample(CALLING))
    assert "data.chat_template=FILE" in raised.value.do
    with pytest.raises(UserError, match="does not write tools"):
        samples(folder, ChatExample(CHAT, TOOLS))


def test_arguments_of_calls_are_objects_and_their_text_where_a_template_wants_that(
    tmp_path: Path,
) -> None:
    template = (
        "{% for m in messages %}" + _ASKED + "{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }} {{ WRITTEN }}{% endfor %}<|end|>{% endif %}{% endfor %}" + _ASKS
    )
    for written in ("c.function.arguments | tojson", "'' + c.function.arguments"):
        folder = folder_with(tmp_path, template.replace("WRITTEN", written))
        assert samples(folder, ChatExample(CALLING)) == [
            '<|user|>a<|assistant|>[[f {"x": 1}<|end|>]]'
        ]


def test_a_second_template_is_for_conversations_with_tools(tmp_path: Path) -> None:
    other = CHAT_TEMPLATE.replace("<|user|>", "{{ tools | tojson }}<|user|>")
    folder = folder_with(tmp_path, CHAT_TEMPLATE)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(other, encoding="utf-8")
    assert samples(folder, ChatExample(CHAT[:2]))[0].startswith("<|user|>a")
    assert samples(folder, ChatExample(CHAT[:2], TOOLS))[0].startswith("[{")


def test_a_message_that_a_template_leaves_out_is_refused(tmp_path: Path) -> None:
    leaving_out = CHAT_TEMPLATE.replace("{{ message.content + '\\n' }}", "")
    folder = folder_with(tmp_path, leaving_out)
    chat = [{"role": "system", "content": "Be brief."}, *CHAT]
    with pytest.raises(UserError, match="leaves out message 0, of the role 'system'"):
        samples(folder, ChatExample(chat))


def test_a_message_is_missed_though_its_text_stands_elsewhere(tmp_path: Path) -> None:
    leaving_out = CHAT_TEMPLATE.replace("{{ message.content + '\\n' }}", "")
    chat = [{"role": "system", "content": "b"}, *CHAT[:2]]
    with pytest.raises(UserError, match="leaves out one of system, user, assistant"):
        samples(folder_with(tmp_path, leaving_out), ChatExample(chat))


def test_a_word_in_a_comment_writes_nothing(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "{# tool_calls, tools #}" + CHAT_TEMPLATE)
    with pytest.raises(UserError, match="does not write calls of tools"):
        samples(folder, ChatExample(CALLING))
    assert not Template(folder).writes("thinking")
    asking = CHAT_TEMPLATE + "{% if enable_thinking %}{% endif %}"
    assert not Template(folder_with(tmp_path, asking)).writes("thinking")


def test_thoughts_of_an_answer_that_is_trained_must_be_written(tmp_path: Path) -> None:
    chat = [CHAT[0], {"role": "assistant", "content": "<think>\nlong\n</think>\n\nb"}]
    cut = CHAT_TEMPLATE.replace(
        "<|assistant|>{{ message.content }}",
        "<|assistant|>{{ message.content.split('</think>')[-1] }}",
    )
    assert cut != CHAT_TEMPLATE
    folder = folder_with(tmp_path, cut)
    with pytest.raises(UserError, match="leaves out the thoughts of the answer"):
        samples(folder, ChatExample(chat))
    assert samples(folder_with(tmp_path, CHAT_TEMPLATE), ChatExample(chat)) == [
        "<|user|>a<|assistant|>[[<think>\nlong\n</think>\n\nb<|end|>]]"
    ]


def test_an_answer_of_which_nothing_is_marked_has_loss_as_a_whole(tmp_path: Path) -> None:
    marking = (
        "{% for m in messages %}" + _ASKED + "{% if m.content %}{% generation %}{{ m.content }}"
        "<|end|>{% endgeneration %}{% else %}{% for c in m.tool_calls %}"
        "{{ c.function.name }}{% endfor %}<|end|>{% endif %}{% endif %}{% endfor %}" + _ASKS
    )
    folder = folder_with(tmp_path, marking)
    assert samples(folder, ChatExample(CALLING)) == ["<|user|>a<|assistant|>[[f<|end|>]]"]


def test_filters_of_transformers_and_files_of_windows_are_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, None)
    content = "message.content | tojson(ensure_ascii=False) }}"
    written = CHAT_TEMPLATE.replace("message.content }}", content)
    (folder / "chat_template.jinja").write_text("\ufeff" + written, encoding="utf-8")
    assert Template(folder).render("ä", "b") == ('<|user|>"ä"<|assistant|>', '"b"<|end|>')


def test_an_option_that_a_template_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, CHAT_TEMPLATE + "{# enable_thinking #}")
    Template(folder, options={"enable_thinking": False})
    with pytest.raises(UserError, match="'enable_thinkin', which the chat template does not use"):
        Template(folder, options={"enable_thinkin": False})


def test_without_a_template_only_a_prompt_and_its_response_can_be_told_apart(
    tmp_path: Path,
) -> None:
    folder = folder_with(tmp_path, None)
    assert samples(folder, ChatExample(CHAT[:2])) == ["a\n[[b<|end|>]]"]
    assert "no chat template" in Template(folder).note
    for chat in (CHAT, [{"role": "system", "content": "s"}, *CHAT[:2]], CALLING):
        with pytest.raises(UserError, match="nothing would tell who speaks") as raised:
            samples(folder, ChatExample(chat))
        assert "data.chat_template=FILE" in raised.value.do


def test_a_template_of_ones_own_is_taken_instead_and_given_what_it_is_to_be_given(
    tmp_path: Path,
) -> None:
    folder, own = folder_with(tmp_path, None), tmp_path / "own.jinja"
    own.write_text(CHAT_TEMPLATE.replace("<|user|>", "<|user|>{{ mood }}:"), encoding="utf-8")
    found = samples(
        folder, ChatExample(CHAT[:2]), own=str(own), options=options_of("mood=gay, n=1")
    )
    assert found == ["<|user|>gay:a<|assistant|>[[b<|end|>]]"]
    with pytest.raises(UserError, match="cannot be read"):
        Template(folder, own=str(tmp_path / "none"))


def test_options_are_json_or_words() -> None:
    assert options_of("a=false, b=2,c=x y,d=False") == {"a": False, "b": 2, "c": "x y", "d": False}
    assert options_of('{"a": {"x": 1, "y": 2}}') == {"a": {"x": 1, "y": 2}}
    for wrong in ("a=[1", "=1", "messages=1", '{"a":'):
        with pytest.raises(UserError):
            options_of(wrong)
    with pytest.raises(UserError, match="gives a name no value"):
        options_of("enable_thinking")


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


IMAGES = """{%- for m in messages %}<{{ m.role }}>
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}
{%- if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}</>
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
ONLY_PARTS = """{% for m in messages %}<{{ m.role }}>{% for part in m.content %}
{%- if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.mark.parametrize("template", [IMAGES, ONLY_PARTS])
def test_a_template_with_images_writes_messages_that_have_none(
    tmp_path: Path, template: str
) -> None:
    folder = folder_with(tmp_path, template)
    (before, answer) = Template(folder).render("2 + 5", "7")
    assert before == "<user>2 + 5</><assistant>"
    assert answer == "7</>"


def test_the_template_of_a_processor_is_found_in_its_own_file(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, None)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": ONLY_PARTS}))
    assert Template(folder).render("2 + 5", "7") == ("<user>2 + 5</><assistant>", "7</>")
