"""What is asked for and what answers it: greetings, thoughts, ends, and long conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from rundir.errors import UserError
from tests.train.chat.test_template import with_brackets
from tests.train.chat_templates import written
from tests.train.chat_templates.served import LLAMA_2, Chat, marks, templates, tokenizer_of
from tests.train.chat_templates.test_chat_templates import folder
from tests.train.data.test_prepare_data import cache
from train.chat.chat_template import ChatTemplate
from train.chat.messages import ChatExample, read_messages
from train.chat.template import Template
from train.data.dataset import SampleFile, preview
from train.data.path_samples import prepare_path
from train.data.samples import Recipe

__all__ = ["cache"]  # a fixture

ASKED = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
AGAIN = [{"role": "user", "content": "2+5"}, {"role": "assistant", "content": "7"}]
GREETING = {"role": "assistant", "content": "Welcome"}
THOUGHT = {"role": "assistant", "content": "<think>\nlong\n</think>\n\nHello"}
NAMES = ("reasoning_content", "thinking", "reasoning")


@pytest.fixture(scope="module")
def llama() -> Tokenizer:
    """Train a tokenizer of Llama-2's kind, which puts a space before every text."""
    return tokenizer_of("Prepend", ["<unk>", "<s>", "</s>"])


@pytest.fixture
def template(tmp_path: Path, llama: Tokenizer) -> Callable[[str], Template]:
    """Return what reads a template of a given name or text."""

    def read(source: str) -> Template:
        source = templates().get(source, source)
        return Template(folder(tmp_path, llama, source), marks=marks())

    return read


def texts(template: Template, chat: Chat) -> list[str]:
    """Return the samples of messages as they stand in data, with loss in brackets."""
    messages, _ = read_messages(chat, "messages")
    return [with_brackets(one) for one in template.conversation(ChatExample(messages)).texts]


def trained(tmp_path: Path, model: Path, rows: list[dict[str, Any]]) -> list[tuple[list[int], Any]]:
    """Return ids and ranges with loss of what is trained on rows."""
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    samples = SampleFile(prepare_path(file, model, Recipe(max_seq_length=1000))[0])
    found = (samples[i] for i in range(len(samples)))
    return [(ids.tolist(), ranges.tolist()) for ids, ranges in found]


@pytest.mark.usefixtures("cache")
def test_no_answer_of_llama_2_begins_with_a_space_that_the_joint_text_has_not(
    tmp_path: Path, llama: Tokenizer
) -> None:
    model = folder(tmp_path, llama, LLAMA_2)
    ((ids, ranges),) = trained(tmp_path, model, [{"messages": [ASKED, ANSWER, *AGAIN]}])
    joint = "<s>[INST] Hi [/INST] Hello </s><s>[INST] 2+5 [/INST] 7 </s>"
    assert ids == llama.encode(joint, add_special_tokens=False).ids
    for (begin, end), prompt, answer in zip(
        ranges, (joint[:20], joint[: joint.index(" 7")]), ("Hello", "7"), strict=True
    ):
        assert ids[:begin] == llama.encode(prompt, add_special_tokens=False).ids
        assert llama.decode(ids[begin:end]).strip() == answer


@pytest.mark.usefixtures("cache")
def test_the_preview_shows_a_space_that_the_decoder_hides(tmp_path: Path, llama: Tokenizer) -> None:
    model, file = folder(tmp_path, llama, LLAMA_2), tmp_path / "data.jsonl"
    file.write_text(json.dumps({"text": "Hello"}) + "\n", encoding="utf-8")
    prepared, _ = prepare_path(file, model, Recipe(max_seq_length=1000))
    hidden = llama.decode(SampleFile(prepared)[0][0].tolist(), skip_special_tokens=False)
    assert hidden == "Hello</s>"
    assert preview(prepared, llama) == ["[[ Hello</s>]]"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["qwen3", "deepseek_r1_distill", "nemotron_3_nano", "gptoss"])
def test_reasoning_under_any_name_is_what_is_trained(
    source: str, name: str, template: Callable[[str], Template]
) -> None:
    answer: dict[str, Any] = ANSWER
    if source == "gptoss":  # which writes the thoughts of calls alone
        call = {"function": {"name": "f", "arguments": {}}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    (found,) = texts(template(source), [ASKED, answer | {name: "it is long"}])
    assert "it is long" in found.partition("[[")[2]


def test_thoughts_under_two_names_are_the_same_or_refused(
    template: Callable[[str], Template],
) -> None:
    same = ANSWER | {"thinking": "long", "reasoning": "long"}
    assert len(texts(template("qwen3"), [ASKED, same])) == 1
    with pytest.raises(ValueError, match="thoughts under two names"):
        texts(template("qwen3"), [ASKED, same | {"reasoning": "short"}])


def test_an_opened_thought_is_gone_on_with_or_closed(template: Callable[[str], Template]) -> None:
    asks = "<s><\uff5cUser\uff5c>Hi<\uff5cAssistant\uff5c><think>\n"
    end = "Hello<\uff5cend\u2581of\u2581sentence\uff5c>]]"
    deepseek = template("deepseek_r1_distill")
    assert texts(deepseek, [ASKED, THOUGHT]) == [f"{asks}[[long\n</think>\n\n{end}"]
    assert texts(deepseek, [ASKED, ANSWER]) == [f"{asks}[[\n</think>\n\n{end}"]
    assert "prompts open a thought" in deepseek.note
    (found,) = texts(template("nemotron_3_nano"), [ASKED, ANSWER])
    assert found.endswith("<|im_start|>assistant\n<think>\n[[</think>Hello<|im_end|>\n]]")


def test_a_prompt_that_closes_thoughts_asks_for_none(template: Callable[[str], Template]) -> None:
    with pytest.raises(UserError, match="asks for an answer without thoughts") as raised:
        texts(template("qwen3_5_nothink"), [ASKED, THOUGHT])
    assert "enable_thinking=true" in raised.value.do


def test_the_mark_of_the_next_speaker_ends_an_answer_that_has_no_other_end(
    template: Callable[[str], Template],
) -> None:
    glm = template("glm4moe")
    (found,) = texts(glm, [ASKED, ANSWER, *AGAIN])
    assert re.findall(r"\[\[(.*?)\]\]", found.replace("]][[", ""), re.DOTALL) == [
        "\n<think></think>\nHello<|user|>",
        "\n<think></think>\n7<|user|>",
    ]
    call = {"function": {"name": "f", "arguments": {}}}
    (found,) = texts(glm, [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}])
    assert found.endswith("[[<|observation|>]]")
    assert glm.after_answer() == "<|user|>"
    assert "answers end with '<|user|>'" in glm.note


@pytest.mark.parametrize("source", ["llama3", "qwen2_5", "lfm2", "gptoss", "phi3", "glm4moe"])
def test_a_greeting_is_context_without_loss(
    source: str, template: Callable[[str], Template]
) -> None:
    chat = ChatExample([GREETING, ASKED, ANSWER])
    made = template(source).conversation(chat)
    (found,) = map(with_brackets, made.texts)
    assert "Welcome" in found.partition("[[")[0]
    assert "Welcome" not in found.partition("[[")[2]
    assert made.num_unasked == 1


def test_a_greeting_alone_is_trained_where_the_template_asks_for_it(
    template: Callable[[str], Template],
) -> None:
    assert texts(template("glm4moe"), [GREETING])[0].endswith(
        "[[\n<think></think>\nWelcome]][[<|user|>]]"
    )
    with pytest.raises(UserError, match="the conversation begins with an answer"):
        texts(template("qwen2_5"), [GREETING])


def test_what_a_template_cannot_write_in_this_order_is_the_reason(
    template: Callable[[str], Template],
) -> None:
    with pytest.raises(UserError, match="begins with an answer; this model's chat template does"):
        texts(template("gemma"), [GREETING, ASKED, ANSWER])
    with pytest.raises(UserError, match="messages 1 and 2 are two answers in a row"):
        texts(template("gemma"), [ASKED, ANSWER, ANSWER])


def test_an_answer_right_after_another_has_loss_if_the_template_asks_for_it(
    template: Callable[[str], Template],
) -> None:
    (found,) = texts(template(written.CHATML), [ASKED, ANSWER, AGAIN[1]])
    assert found.endswith(
        "[[Hello<|im_end|>\n]]<|im_start|>assistant\n[[7<|im_end|>\n]]",
    )
    chat = ChatExample([ASKED, ANSWER, AGAIN[1], *AGAIN])
    made = template("gemma4").conversation(chat)
    assert made.num_unasked == 1
    assert sum(len(one.answers) for one in made.texts) == 2


@pytest.mark.usefixtures("cache")
def test_marks_that_are_in_the_data_are_not_added_again_and_that_is_said(
    tmp_path: Path, llama: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    model, end = folder(tmp_path, llama, written.MISTRAL), llama.encode("</s>").ids[-1]
    (plain,) = trained(tmp_path, model, [{"text": "Hello"}])
    assert "are their own" not in capsys.readouterr().out
    for text in ("Hello</s>", "Hello</s>\n"):
        ((ids, _),) = trained(tmp_path, model, [{"text": text}])
        assert ids[: len(plain[0])] == plain[0]
        assert ids.count(end) == 1
        assert "begin or end tokens of 1 rows are their own" in capsys.readouterr().out
    asked = {"prompt": "Hi", "response": "Hello"}
    (pair,) = trained(tmp_path, model, [asked])
    assert trained(tmp_path, model, [asked | {"response": "Hello</s>"}]) == [pair]
    assert "begin or end tokens of 1 rows are their own" in capsys.readouterr().out


@pytest.mark.usefixtures("cache")
def test_a_begin_token_that_is_in_the_data_is_not_added_again(
    tmp_path: Path, llama: Tokenizer
) -> None:
    from tokenizers.processors import TemplateProcessing

    begins = Tokenizer.from_str(llama.to_str())
    begin = llama.encode("<s>").ids[-1]
    begins.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    model = folder(tmp_path, begins, "")
    (model / "chat_template.jinja").unlink()
    for row in ({"text": "<s>Hello"}, {"prompt": "<s>Hi", "response": "Hello</s>"}):
        ((ids, _),) = trained(tmp_path, model, [row])
        assert ids[0] == begin
        assert ids.count(begin) == 1
        assert ids.count(llama.encode("</s>").ids[-1]) == 1


def long_chat(num_answers: int, *, spaces: bool) -> Chat:
    """Return many turns, some with spaces around what is said."""
    chat: Chat = [{"role": "system", "content": "Be brief."}]
    for turn in range(num_answers):
        around = " \n" if spaces and turn % 3 == 1 else ""
        chat += [ASKED, {"role": "assistant", "content": f"{around}it is {turn}{around}"}]
    return chat


LONG = ("Llama-2", "ChatML", "Llama-3", "Mistral", "Qwen3", "lfm2", "phi3", "cohere", "qwen3_8")


@pytest.mark.parametrize("spaces", [False, True])
@pytest.mark.parametrize("source", LONG)
def test_a_long_conversation_is_that_of_its_turns(
    source: str, spaces: bool, template: Callable[[str], Template], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatExample(long_chat(24, spaces=spaces)[source == "Llama-2" :])
    at_once = template(source).conversation(chat)
    monkeypatch.setattr("train.chat.template.FEWEST_ANSWERS", 1000)
    assert at_once == template(source).conversation(chat)


def test_a_long_conversation_is_rendered_no_more_often_than_a_short_one(
    template: Callable[[str], Template], monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = []
    write = ChatTemplate.write

    def counted(self: ChatTemplate, messages: Any, *given: Any, **more: Any) -> Any:
        rendered.append(len(messages))
        return write(self, messages, *given, **more)

    made = template("qwen2_5")
    monkeypatch.setattr(ChatTemplate, "write", counted)
    numbers = []
    for num_answers in (100, 1000):
        rendered.clear()
        (found,) = made.conversation(ChatExample(long_chat(num_answers, spaces=True))).texts
        assert len(found.answers) == num_answers
        numbers.append(len(rendered))
    assert numbers[0] == numbers[1] < 20
