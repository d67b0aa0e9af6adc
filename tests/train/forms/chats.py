"""Conversations: the formats of OpenAI, ShareGPT and Gemini, weights, parts, histories."""

from __future__ import annotations

import json

from tests.train.forms.form import (
    CHAT,
    LONG,
    LONG_CHAT,
    PAIR,
    SHARED,
    Form,
    answer,
    message,
    said,
    system,
    turn,
    user,
)

_PARTS = [{"type": "text", "text": "2 "}, {"type": "text", "text": "+ 5"}]

FORMS = [
    Form(name="messages", of="OpenAI", rows=[{"messages": LONG_CHAT}], trained=[LONG]),
    Form(
        name="a weight of 0",
        of="OpenAI",
        rows=[
            {
                "messages": [
                    message("user", "2 + 5"),
                    message("assistant", "8", weight=0),
                    message("user", "No."),
                    message("assistant", "7", weight=1),
                ]
            }
        ],
        trained=[user("2 + 5") + said("8") + user("No.") + answer("7")],
    ),
    Form(
        name="all weights 0",
        of="OpenAI",
        rows=[
            {"messages": [message("user", "a"), message("assistant", "b", weight=0)]},
            {"messages": CHAT},
        ],
        error="has no answer with loss in `messages`: all have a weight of 0",
        then=PAIR,
    ),
    Form(
        name="a weight of a half",
        of="OpenAI",
        rows=[
            {"messages": [message("user", "a"), message("assistant", "b", weight=0.5)]},
            {"messages": CHAT},
        ],
        error="has 0.5 for `messages[1].weight`; it may be 0 or 1",
        then=PAIR,
    ),
    Form(
        name="content in parts",
        of="OpenAI",
        rows=[{"messages": [message("user", _PARTS), message("assistant", _PARTS[:1])]}],
        trained=[user("2 + 5") + answer("2 ")],
    ),
    Form(
        name="an image among the parts",
        of="OpenAI",
        rows=[
            {
                "messages": [
                    message("user", [{"type": "image_url", "image_url": {"url": "x.png"}}]),
                    message("assistant", "a cat"),
                ]
            },
            {"messages": CHAT},
        ],
        error="has a part of type 'image_url' in `messages[0].content`: Airlock trains on text",
        then=PAIR,
    ),
    Form(
        name="the developer's role",
        of="OpenAI",
        rows=[{"messages": [message("developer", "Be brief."), *CHAT]}],
        trained=[system("Be brief.") + PAIR[0]],
    ),
    Form(
        name="DPO's input and two outputs",
        of="OpenAI",
        rows=[
            {
                "input": {"messages": CHAT[:1]},
                "preferred_output": CHAT[1:],
                "non_preferred_output": [message("assistant", "8")],
            }
        ],
        error="is one of a preference pair: it has a `non_preferred_output` answer",
        then=PAIR,
    ),
    Form(
        name="the last answer alone",
        of="LLaMA-Factory",
        rows=[{"messages": LONG_CHAT}],
        settings={"loss_on": "last_answer"},
        trained=[
            system("Be brief.") + user("2 + 5") + said("7") + user("And 1 more?") + answer("8")
        ],
    ),
    Form(name="sharegpt", of="LLaMA-Factory", rows=[{"conversations": SHARED}], trained=PAIR),
    Form(
        name="alpaca with system and history",
        of="LLaMA-Factory",
        rows=[
            {
                "instruction": "And 1 more?",
                "input": "",
                "output": "8",
                "system": "Be brief.",
                "history": [["2 + 5", "7"]],
            }
        ],
        trained=[LONG],
    ),
    Form(
        name="system in a column and in the messages",
        of="LLaMA-Factory",
        rows=[{"messages": LONG_CHAT, "system": "Be long."}, {"messages": LONG_CHAT}],
        error="has a system prompt in a column and in `messages`",
        then=[LONG],
    ),
    Form(
        name="turns to train marked by `train`",
        of="Axolotl",
        rows=[
            {
                "messages": [
                    message("user", "2 + 5"),
                    message("assistant", "8", train=False),
                    message("user", "No."),
                    message("assistant", "7", train=True),
                ]
            }
        ],
        trained=[user("2 + 5") + said("8") + user("No.") + answer("7")],
    ),
    Form(
        name="template-free segments",
        of="Axolotl",
        rows=[{"segments": [{"label": False, "text": "Q: 2\n"}, {"label": True, "text": "A: 3"}]}],
        trained=["Q: 2\n[[A: 3]]"],
    ),
    Form(
        name="segments of which none is trained",
        of="Axolotl",
        rows=[
            {"segments": [{"label": False, "text": "Q"}]},
            {"segments": [{"label": True, "text": "A"}]},
        ],
        error="has no segment with a true `label` in `segments`",
        then=["[[A]]"],
    ),
    Form(
        name="OASST's prompter",
        of="Axolotl",
        rows=[{"conversation": [message("prompter", "2 + 5"), message("assistant", "7")]}],
        trained=PAIR,
    ),
    Form(
        name="a role that nobody knows",
        of="Axolotl",
        rows=[{"messages": [message("narrator", "Once"), *CHAT]}, {"messages": CHAT}],
        error="has the role 'narrator' in `messages[0]`",
        then=PAIR,
    ),
    Form(
        name="messages",
        of="TRL",
        rows=[{"messages": [*CHAT, message("user", "Thanks")]}],
        trained=PAIR,
    ),
    Form(
        name="conversational prompt and completion",
        of="TRL",
        rows=[{"prompt": CHAT[:1], "completion": CHAT[1:]}],
        trained=PAIR,
    ),
    Form(
        name="a prompt with earlier answers",
        of="TRL",
        rows=[{"prompt": LONG_CHAT[:4], "completion": LONG_CHAT[4:]}],
        trained=[
            system("Be brief.") + user("2 + 5") + said("7") + user("And 1 more?") + answer("8")
        ],
    ),
    Form(
        name="a prompt alone",
        of="TRL",
        rows=[{"prompt": CHAT[:1]}],
        error="has a prompt without an answer",
    ),
    Form(
        name="messages with loss said for each",
        of="ms-swift",
        rows=[
            {
                "messages": [
                    message("user", "2 + 5"),
                    message("assistant", "8", loss=False),
                    message("user", "No."),
                    message("assistant", "7", loss=True),
                ]
            }
        ],
        trained=[user("2 + 5") + said("8") + user("No.") + answer("7")],
    ),
    Form(
        name="turns of human and assistant",
        of="ms-swift",
        rows=[{"system": "Be brief.", "conversation": [{"human": "2 + 5", "assistant": "7"}]}],
        trained=[system("Be brief.") + PAIR[0]],
    ),
    Form(
        name="query, response and history",
        of="ms-swift",
        rows=[
            {
                "system": "Be brief.",
                "query": "And 1 more?",
                "response": "8",
                "history": [["2 + 5", "7"]],
            }
        ],
        trained=[LONG],
    ),
    Form(
        name="a history that is no pairs",
        of="ms-swift",
        rows=[
            {"query": "a", "response": "b", "history": ["x", "y"]},
            {"query": "2 + 5", "response": "7"},
        ],
        error="has no pairs of question and answer in `history`",
        then=PAIR,
    ),
    Form(
        name="sharegpt",
        of="Unsloth",
        rows=[{"conversations": SHARED, "source": "x"}],
        trained=PAIR,
        unused="source",
    ),
    Form(name="openai", of="torchtune", rows=[{"messages": CHAT}], trained=PAIR),
    Form(
        name="json: an array",
        of="torchtune",
        file="data.json",
        rows=json.dumps([{"messages": CHAT}]),
        trained=PAIR,
    ),
    Form(
        name="messages as their JSON in CSV",
        of="torchtune",
        file="data.csv",
        rows='messages\n"' + json.dumps(CHAT).replace('"', '""') + '"\n',
        trained=PAIR,
    ),
    Form(
        name="a message that is null",
        of="torchtune",
        rows=[{"messages": [message("user", "a"), message("assistant", None)]}, {"messages": CHAT}],
        error="has null in `messages[1].content`, not text",
        then=PAIR,
    ),
    Form(
        name="roles with capitals",
        of="NeMo",
        rows=[
            {
                "mask": "User",
                "system": "Be brief.",
                "conversations": [turn("User", "2 + 5"), turn("Assistant", "7")],
            }
        ],
        trained=[system("Be brief.") + PAIR[0]],
        unused="mask",
    ),
    Form(
        name="contents and parts",
        of="Gemini",
        rows=[
            {
                "systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]},
                "contents": [
                    {"role": "user", "parts": [{"text": "2 + 5"}]},
                    {"role": "model", "parts": [{"text": "7"}]},
                ],
            }
        ],
        trained=[system("Be brief.") + PAIR[0]],
    ),
    Form(
        name="messages of a chatbot",
        of="Cohere",
        rows=[{"messages": [message("User", "2 + 5"), message("Chatbot", "7")]}],
        trained=PAIR,
    ),
    Form(
        name="no answer at all",
        of="mistral-finetune",
        rows=[{"messages": CHAT[:1]}, {"messages": CHAT}],
        error="has no message of the assistant in `messages`",
        then=PAIR,
    ),
    Form(
        name="messages that are texts",
        of="LitGPT",
        rows=[{"conversations": ["2 + 5", "7"]}, {"conversations": SHARED}],
        error="has text in `conversations[0]`, not a message",
        then=PAIR,
    ),
]
