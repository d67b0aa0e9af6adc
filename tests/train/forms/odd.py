"""Rows that could be mistaken for another form, and rows unlike the first one."""

from __future__ import annotations

import json

from tests.train.forms.form import (
    CHAT,
    PAIR,
    Form,
    answer,
    message,
    said,
    segment,
    system,
    text,
    tool,
    user,
)

_GOOD = {"prompt": "2 + 5", "response": "7"}
_JSON = json.dumps(CHAT)
_CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}


def _called(arguments: object) -> list[dict[str, object]]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [message("user", "a"), message("assistant", "", tool_calls=[call])]


def _lines(*chats: object) -> str:
    return "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)


FORMS = [
    Form(
        name="an answer that is the JSON of messages",
        of="odd",
        rows=[{"prompt": "Write a chat.", "response": _JSON}],
        trained=[user("Write a chat.") + answer(_JSON)],
    ),
    Form(
        name="an answer that is JSON with `from`",
        of="odd",
        rows=[{"prompt": "Where?", "response": '[{"from": "Paris"}]'}],
        trained=[user("Where?") + answer('[{"from": "Paris"}]')],
    ),
    Form(
        name="a response that repeats its prompt",
        of="odd",
        rows=[{"prompt": "2 + 5", "chosen": CHAT, "rejected": CHAT}],
        settings={"columns": "prompt,chosen"},
        trained=PAIR,
        unused="rejected",
    ),
    Form(
        name="a response that begins with another question",
        of="odd",
        rows=[{"prompt": "Hm?", "chosen": CHAT}],
        settings={"columns": "prompt,chosen"},
        error="has messages in `chosen` that are no answer to its `prompt`",
        then=PAIR,
    ),
    Form(
        name="a verdict in a later row",
        of="odd",
        rows=[
            {"prompt": "2 + 5", "completion": "7"},
            {"prompt": "2 + 5", "completion": "8", "label": False},
        ],
        error="is a good or a bad answer, as its `label` says",
    ),
    Form(
        name="verdicts of 0 and 1",
        of="odd",
        rows=[
            {"prompt": "2 + 5", "completion": "8", "label": 0},
            {"prompt": "2 + 5", "completion": "7", "label": 1},
        ],
        error="is a good or a bad answer, as its `label` says",
        then=PAIR,
    ),
    Form(
        name="verdicts beside another condition",
        of="odd",
        rows=[{"prompt": "2 + 5", "completion": "8", "label": False, "en": True}],
        settings={"only_where": "en"},
        error="is a good or a bad answer, as its `label` says",
    ),
    Form(
        name="a class as a label",
        of="odd",
        rows=[{"text": "a film", "label": 1}],
        trained=[text("a film")],
        unused="label",
    ),
    Form(
        name="a column `rejected` that is no answer",
        of="odd",
        rows=[{"question": "2 + 5", "answer": "7", "rejected": False}],
        trained=PAIR,
        unused="rejected",
    ),
    Form(
        name="a pair without `chosen`",
        of="odd",
        rows=[{"instruction": "Add", "input": "2 + 5", "output": "7", "rejected": "8"}],
        error="is one of a preference pair",
        then=[user("Add\n\n2 + 5") + answer("7")],
    ),
    Form(
        name="a preference pair in a later row",
        of="odd",
        rows=[_GOOD, {"prompt": "a", "response": "b", "rejected": "c"}],
        error="is one of a preference pair",
    ),
    Form(
        name="conditions as spreadsheets write them",
        of="odd",
        file="a.csv",
        rows="prompt,response,ok\n2 + 5,7,1.0\na,b,0.0\nc,d,FALSE\ne,f,\ng,h,n\n",
        settings={"only_where": "ok"},
        trained=PAIR,
    ),
    Form(
        name="a condition that is neither true nor false",
        of="odd",
        rows=[{**_GOOD, "ok": "maybe"}, {**_GOOD, "ok": "yes"}],
        settings={"only_where": "ok"},
        error="has 'maybe' in `ok`, which is neither true nor false",
        then=PAIR,
    ),
    Form(
        name="a condition for lines of text",
        of="odd",
        file="a.txt",
        rows="one\n",
        settings={"only_where": "ok"},
        error="is a line of text: it has no columns",
    ),
    Form(
        name="labels of segments as text",
        of="odd",
        rows=[{"segments": [segment("false", "Q"), segment("true", "A")]}],
        trained=["Q[[A]]"],
    ),
    Form(
        name="weights of turns with both speakers",
        of="odd",
        rows=[
            {
                "conversation": [
                    {"human": "a", "assistant": "b", "loss": 0},
                    {"human": "2 + 5", "assistant": "7"},
                ]
            }
        ],
        trained=[user("a") + said("b") + PAIR[0]],
    ),
    Form(
        name="weights that contradict each other",
        of="odd",
        rows=[
            {
                "messages": [
                    message("user", "a"),
                    message("assistant", "b", weight=1, train=False),
                    *CHAT,
                ]
            }
        ],
        trained=[user("a") + said("b") + PAIR[0]],
    ),
    Form(
        name="a first row without what later rows are about",
        of="odd",
        rows=[
            {"instruction": "2 + 5", "output": "7"},
            {"instruction": "Add", "input": "2 + 5", "output": "7"},
        ],
        trained=[*PAIR, user("Add\n\n2 + 5") + answer("7")],
    ),
    Form(
        name="arguments of a call that are nothing",
        of="odd",
        rows=[{"messages": _called("")}],
        trained=[user("a") + answer("(f {})")],
    ),
    Form(
        name="arguments of a call that are no object",
        of="odd",
        rows=[{"messages": _called("{a: 1}")}, {"messages": CHAT}],
        error="has text as arguments of a call in `messages[1]`, not an object",
        then=PAIR,
    ),
    Form(
        name="half a character in the arguments of a call",
        of="odd",
        rows="\n".join(
            json.dumps({"messages": one}) for one in (_called({"a": "?"}), CHAT)
        ).replace("?", "\\ud800"),
        error="has a lone surrogate (half of a character)",
        then=PAIR,
    ),
    Form(
        name="half a character in a segment",
        of="odd",
        rows='{"segments": [{"label": true, "text": "\\ud800"}]}\n'
        '{"segments": [{"label": true, "text": "A"}]}\n',
        error="has a lone surrogate (half of a character)",
        then=["[[A]]"],
    ),
    Form(
        name="calls that a user makes",
        of="odd",
        rows=[
            {"messages": [message("user", "a", tool_calls=[_CALL]), message("assistant", "b")]},
            {"messages": CHAT},
        ],
        error="has calls of tools in `messages[0]`",
        then=PAIR,
    ),
    Form(
        name="an empty system prompt, an empty result",
        of="odd",
        rows=[
            {
                "messages": [
                    message("system", ""),
                    message("user", "a"),
                    message("assistant", None, tool_calls=[_CALL]),
                    message("tool", ""),
                    message("assistant", "b"),
                ]
            }
        ],
        trained=[user("a") + answer("(f {})") + tool("") + answer("b")],
    ),
    Form(
        name="two system prompts",
        of="odd",
        rows=[{**_GOOD, "system": "a", "system_prompt": "b"}, _GOOD],
        error="has both `system` and `system_prompt`, which mean the same",
        then=PAIR,
    ),
    Form(
        name="a system prompt in capitals",
        of="odd",
        rows=[{"Prompt": "2 + 5", "Response": "7", "System": "Be brief."}],
        trained=[system("Be brief.") + PAIR[0]],
    ),
    Form(
        name="content and value that differ",
        of="odd",
        rows=[{"messages": [message("user", "a", value="b"), CHAT[1]]}, {"messages": CHAT}],
        error="has both `content` and `value` in a message, with different values",
        then=PAIR,
    ),
    Form(
        name="thoughts that the template does not write",
        of="odd",
        rows=[{"messages": [CHAT[0], {**CHAT[1], "reasoning": "hm"}]}],
        error="leaves out the thoughts of the answer that is trained",
    ),
    Form(
        name="no messages, but a pair",
        of="odd",
        rows=[{"messages": [], **_GOOD}],
        trained=PAIR,
    ),
    Form(
        name="a history beside messages",
        of="odd",
        rows=[{"messages": CHAT, "history": [["a", "b"]]}],
        trained=PAIR,
        unused="history",
    ),
    Form(
        name="a system column, named as the prompt",
        of="odd",
        rows=[{"system": "2 + 5", "a": "7"}],
        settings={"columns": "system,a"},
        trained=PAIR,
    ),
]
