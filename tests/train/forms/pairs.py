"""Prompts with responses, under the names that libraries and data sets give them, and texts."""

from __future__ import annotations

import json

from tests.train.forms.form import CHAT, PAIR, Form, answer, message, system, text, turn, user

_ALPACA = {"instruction": "Add", "input": "2 + 5", "output": "7"}
_ADDED = [user("Add\n\n2 + 5") + answer("7")]
_TEXT = [text("The sky is blue.")]

FORMS = [
    Form(
        name="prompt-completion",
        of="TRL",
        rows=[{"prompt": "2 + 5", "completion": "7"}],
        trained=PAIR,
    ),
    Form(name="language modelling", of="TRL", rows=[{"text": "The sky is blue."}], trained=_TEXT),
    Form(
        name="unpaired preference (KTO)",
        of="TRL",
        rows=[
            {"prompt": "2 + 5", "completion": "7", "label": True},
            {"prompt": "2 + 5", "completion": "8", "label": False},
        ],
        error="is a good or a bad answer, as its `label` says; Airlock trains on answers",
        then=PAIR,
    ),
    Form(
        name="unpaired preference, conversational",
        of="TRL",
        rows=[
            {"prompt": CHAT[:1], "completion": [message("assistant", "8")], "label": False},
            {"prompt": CHAT[:1], "completion": CHAT[1:], "label": True},
        ],
        error="is a good or a bad answer",
        then=PAIR,
    ),
    Form(
        name="preference (DPO)",
        of="TRL",
        rows=[{"prompt": "2 + 5", "chosen": "7", "rejected": "8"}],
        error="is one of a preference pair: it has a `rejected` answer; Airlock trains on answers",
        then=PAIR,
    ),
    Form(
        name="preference with an implicit prompt",
        of="TRL",
        rows=[{"chosen": CHAT, "rejected": [CHAT[0], message("assistant", "8")]}],
        error="is one of a preference pair",
        then=PAIR,
    ),
    Form(
        name="preference, conversational",
        of="TRL",
        rows=[{"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": [message("assistant", "8")]}],
        error="is one of a preference pair",
        then=PAIR,
    ),
    Form(
        name="stepwise supervision",
        of="TRL",
        rows=[{"prompt": "2 + 5", "completions": ["a", "b"], "labels": [True, False]}],
        error="has a prompt without an answer",
    ),
    Form(name="alpaca", of="Axolotl", rows=[_ALPACA], trained=_ADDED),
    Form(
        name="gpteacher",
        of="Axolotl",
        rows=[{"instruction": "Add", "input": "2 + 5", "response": "7"}],
        trained=_ADDED,
    ),
    Form(
        name="oasst, in capitals",
        of="Axolotl",
        rows=[{"INSTRUCTION": "2 + 5", "RESPONSE": "7"}],
        trained=PAIR,
    ),
    Form(
        name="summarizetldr",
        of="Axolotl",
        rows=[{"article": "2 + 5", "summary": "7"}],
        trained=PAIR,
    ),
    Form(name="completion", of="Axolotl", rows=[{"text": "The sky is blue."}], trained=_TEXT),
    Form(
        name="alpaca's array",
        of="LLaMA-Factory",
        file="alpaca.json",
        rows=json.dumps([_ALPACA, _ALPACA], indent=1),
        trained=_ADDED * 2,
    ),
    Form(
        name="alpaca, preference",
        of="LLaMA-Factory",
        rows=[{"instruction": "Add", "input": "2 + 5", "chosen": "7", "rejected": "8"}],
        error="is one of a preference pair",
        then=_ADDED,
    ),
    Form(
        name="sharegpt, preference",
        of="LLaMA-Factory",
        rows=[
            {
                "conversations": [turn("human", "2 + 5")],
                "chosen": turn("gpt", "7"),
                "rejected": turn("gpt", "8"),
            }
        ],
        error="is one of a preference pair",
        then=PAIR,
    ),
    Form(
        name="kto_tag",
        of="LLaMA-Factory",
        rows=[
            {"instruction": "2 + 5", "input": "", "output": "8", "kto_tag": False},
            {"instruction": "2 + 5", "input": "", "output": "7", "kto_tag": True},
        ],
        error="is a good or a bad answer, as its `kto_tag` says",
        then=PAIR,
    ),
    Form(
        name="pre-training", of="LLaMA-Factory", rows=[{"text": "The sky is blue."}], trained=_TEXT
    ),
    Form(
        name="rejected_response",
        of="ms-swift",
        rows=[{"messages": CHAT, "rejected_response": "8"}],
        error="is one of a preference pair: it has a `rejected_response` answer",
        then=PAIR,
    ),
    Form(
        name="a label for KTO",
        of="ms-swift",
        rows=[{"messages": CHAT, "label": True}],
        error="is a good or a bad answer, as its `label` says",
        then=PAIR,
    ),
    Form(
        name="query and response",
        of="ms-swift",
        rows=[{"query": "2 + 5", "response": "7"}],
        trained=PAIR,
    ),
    Form(name="instruct", of="torchtune", rows=[{"input": "2 + 5", "output": "7"}], trained=PAIR),
    Form(
        name="instruction, output",
        of="LitGPT",
        file="a.json",
        rows=json.dumps([_ALPACA]),
        trained=_ADDED,
    ),
    Form(name="input, output", of="NeMo", rows=[{"input": "2 + 5", "output": "7"}], trained=PAIR),
    Form(name="text", of="mistral-finetune", rows=[{"text": "The sky is blue."}], trained=_TEXT),
    Form(
        name="prompt, completion",
        of="OpenAI",
        rows=[{"prompt": "2 + 5", "completion": "7"}],
        trained=PAIR,
    ),
    Form(
        name="Dolly",
        of="data sets",
        rows=[{"instruction": "Add", "context": "2 + 5", "response": "7", "category": "x"}],
        trained=_ADDED,
        unused="category",
    ),
    Form(
        name="OpenOrca",
        of="data sets",
        rows=[{"id": "1", "system_prompt": "Be brief.", "question": "2 + 5", "response": "7"}],
        trained=[system("Be brief.") + PAIR[0]],
        unused="id",
    ),
    Form(name="GSM8K", of="data sets", rows=[{"question": "2 + 5", "answer": "7"}], trained=PAIR),
    Form(
        name="MATH",
        of="data sets",
        rows=[{"problem": "2 + 5", "level": "1", "solution": "7"}],
        trained=PAIR,
        unused="level",
    ),
    Form(name="FLAN", of="data sets", rows=[{"inputs": "2 + 5", "targets": "7"}], trained=PAIR),
    Form(
        name="UltraFeedback",
        of="data sets",
        rows=[{"prompt": "2 + 5", "chosen": CHAT, "rejected": CHAT, "score_chosen": 1.0}],
        error="is one of a preference pair",
        then=PAIR,
    ),
    Form(
        name="whole numbers as answers",
        of="data sets",
        rows=[{"question": "2 + 5", "answer": 7}],
        trained=PAIR,
    ),
    Form(
        name="a boolean as an answer",
        of="data sets",
        rows=[{"question": "a", "answer": True}, {"question": "2 + 5", "answer": "7"}],
        error="has a boolean in `answer`, not text",
        then=PAIR,
    ),
    Form(
        name="a list of answers",
        of="data sets",
        rows=[{"question": "a", "answer": ["7", "seven"]}, {"question": "2 + 5", "answer": "7"}],
        error="has text among the parts of `answer`, not text",
        then=PAIR,
    ),
    Form(
        name="an answer that is null",
        of="data sets",
        rows=[{"question": "a", "answer": None}, {"question": "2 + 5", "answer": "7"}],
        error="has null in `answer`, not text",
        then=PAIR,
    ),
    Form(
        name="columns of other names",
        of="data sets",
        rows=[{"q": "2 + 5", "a": "7"}],
        error="has none of the columns that are known",
    ),
    Form(
        name="columns of other names, named",
        of="data sets",
        rows=[{"q": "2 + 5", "a": "7", "z": "x"}],
        settings={"columns": "q,a"},
        trained=PAIR,
        unused="z",
    ),
    Form(
        name="three columns, named",
        of="data sets",
        rows=[{"task": "Add", "about": "2 + 5", "a": "7"}],
        settings={"columns": "task,about,a"},
        trained=_ADDED,
    ),
    Form(
        name="rows that someone has marked",
        of="data sets",
        rows=[
            {"question": "a", "answer": "b", "ok": 0},
            {"question": "2 + 5", "answer": "7", "ok": 1},
        ],
        settings={"only_where": "ok"},
        trained=PAIR,
    ),
]
