"""Prompts have the ids that a served model gets, answers those of the joint text behind them.

All tokenizers with all templates, compared with transformers: the appendix of docs/data.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jinja2 import UndefinedError
from tokenizers import Tokenizer

from rundir.errors import UserError
from tests.train.chat_templates.served import CHATS, KINDS, Chat, marks, templates, tokenizer_of
from tests.train.chat_templates.test_chat_templates import folder
from train.chat.messages import ChatExample
from train.chat.rendered import Rendered
from train.chat.template import Template
from train.data.encode import Encoder, Ids

PAGE = Path(__file__).parents[3] / "docs/data.md"
LOSSLESS = ("byte-level", "Metaspace never")  # what they decode is what was encoded
# Conversations that templates themselves refuse or leave out, before and now.
REFUSED = {
    "Gemma": "System role not supported",
    "gemma": "System role not supported",
    "break (synthetic)": "leaves out",
}


class Served(NamedTuple):
    """The text that asks for an answer, and the text with it, as transformers writes them."""

    prompt: str
    whole: str


class Case(NamedTuple):
    """A conversation as Airlock writes it and as transformers does; `reason` for a difference."""

    ours: list[Rendered]
    theirs: list[Served]
    reason: str


def served_of(chat: Chat, render: Callable[..., str]) -> list[Served]:
    """Return what transformers writes for each answer of a conversation; nothing if it fails."""
    with suppress(UndefinedError):  # a template that wants parts, and has none
        return [
            Served(
                render(chat[:place], add_generation_prompt=True, tokenize=False),
                render(chat[: place + 1], tokenize=False),
            )
            for place, one in enumerate(chat)
            if one["role"] == "assistant"
        ]
    return []


def in_parts(chat: Chat) -> Chat:
    """Return a conversation as templates of multimodal models want it."""
    return [one | {"content": [{"type": "text", "text": one["content"]}]} for one in chat]


def cases_of(source: str, tmp_path: Path, tokenizer: Tokenizer, special: Sequence[str]) -> Any:
    """Return the cases of a template, and why conversations were refused."""
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    fast = make(
        tokenizer_object=tokenizer,
        bos_token="<s>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        chat_template=source,
    )
    ours = Template(folder(tmp_path, tokenizer, source), marks=special)
    cases, refused = [], set[str]()
    for chat in CHATS:
        try:
            texts = ours.conversation(ChatExample(chat)).texts
        except UserError as error:
            refused.add(str(error.args[0]))
            continue
        theirs, reason = served_of(chat, fast.apply_chat_template), ""
        if not theirs or chat[-1]["content"].strip() not in theirs[-1].whole:
            theirs, reason = served_of(in_parts(chat), fast.apply_chat_template), "content in parts"
        if not all(one.whole.startswith(one.prompt) for one in theirs):
            assert all(one.prompt.rstrip().endswith("<think>") for one in theirs)
            reason = "the prompt opens a thought"
        cases.append(Case(texts, theirs, reason))
    return cases, refused


def reasons_of(cases: Sequence[Case], kind: str, tokenizer: Tokenizer) -> set[str]:
    """Return why samples of the cases are not the joint texts; check every prompt."""
    texts = [text for case in cases for one in case.theirs for text in one]
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ids: dict[str, list[int]] = {
        text: encoding.ids for text, encoding in zip(texts, encodings, strict=True)
    }
    encoded = Encoder(tokenizer).samples([text for case in cases for text in case.ours])
    reasons = set[str]()
    for case in cases:
        samples = [sample for _ in case.ours for sample in next(encoded)]
        reasons |= reasons_of_case(case, samples, ids, kind, tokenizer)
    return reasons


def reasons_of_case(
    case: Case, samples: list[Ids], ids: dict[str, list[int]], kind: str, tokenizer: Tokenizer
) -> set[str]:
    prompts = [ids[one.prompt] for one in case.theirs]
    reasons, asked = set[str](), []
    for sample in samples:
        places = [place_of(begin, sample, prompts) for begin in sample.ranges[::2]]
        asked += places
        last = places[-1]
        joint = ids[case.theirs[last].whole]
        shared = min(len(joint), len(sample.ids))
        if sample.ids[:shared] == joint[:shared] and shared >= max(places and sample.ranges) - 1:
            continue
        if case.reason:
            reasons.add(case.reason)
            continue
        assert joint[: len(prompts[last])] != prompts[last], (kind, case.theirs[last], sample.ids)
        if kind in LOSSLESS:
            assert tokenizer.decode(sample.ids).startswith(tokenizer.decode(joint).rstrip())
        reasons.add("border merge")
    assert sorted(set(asked)) == list(range(len(prompts))), "every answer is trained"
    return reasons | ({case.reason} if case.reason == "content in parts" else set())


def place_of(begin: int, sample: Ids, prompts: list[list[int]]) -> int:
    """Return which answer begins at `begin`: the ids before it are those served."""
    for place in reversed(range(len(prompts))):
        length = len(prompts[place])
        if length <= begin and sample.ids[:length] == prompts[place]:
            return place
    raise AssertionError(f"no prompt is {sample.ids[:begin]}; served are {prompts}")


def table(rows: dict[str, tuple[str, ...]]) -> str:
    """Return the rows as a table in Markdown, templates with the same cells together."""
    head = ["templates", *KINDS]
    lines = [head, ["---"] * len(head)]
    for cells in dict.fromkeys(rows.values()):
        names = ", ".join(name for name, own in rows.items() if own == cells)
        lines.append([names, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def matrix(tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """Return the cells of each template, for a tokenizer of each kind."""
    special, rows = marks(), {}
    tokenizers = {kind: tokenizer_of(kind, special) for kind in KINDS}
    first = next(iter(tokenizers.values()))
    for name, source in templates().items():
        cases, refused = cases_of(source, tmp_path, first, special)
        assert cases, f"{name} was trained: {refused}"
        assert all(REFUSED.get(name, "none is") in one for one in refused), (name, refused)
        rows[name] = tuple(
            ", ".join(sorted(reasons_of(cases, kind, tokenizer))) or "equal"
            for kind, tokenizer in tokenizers.items()
        )
    return rows


@pytest.mark.long
def test_ids_are_those_served_with_every_kind_of_tokenizer_and_template(tmp_path: Path) -> None:
    day = None
    while day != datetime.now().date():  # some templates write the date
        day = datetime.now().date()
        found = table(matrix(tmp_path))
    page = PAGE.read_text(encoding="utf-8")
    assert found in page, f"the appendix of {PAGE.name} is to be:\n{found}"


def test_every_reason_of_the_table_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    appendix = page.partition("## Appendix")[2]
    cells = set(re.findall(r"border merge|content in parts|the prompt opens a thought", appendix))
    assert all(f"**{one}**" in appendix for one in cells)
