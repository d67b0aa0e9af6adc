"""Shapes of conversations: turns, roles, thoughts and what else messages have."""

from __future__ import annotations

from tests.train.beside_trl.completions import THOUGHTS
from tests.train.beside_trl.shape import (
    LONG,
    SHORT,
    Shape,
    answer,
    chat,
    in_parts,
    marked,
    system,
    user,
)
from tests.train.forms.form import message, turn

_SHORT = SHORT["messages"]
_QUESTION = "<start_of_turn>·user·\n·hello· the· model·<end_of_turn>·\n·<start_of_turn>·model·\n"

_GREETING = "<think>·\n\n·</think>·\n\n·hello·<|im_end|>·\n"
_ANSWER = "the· weather· ·is· 2·+·5·=·7·<|eot_id|>"
_HISTORY = (
    "<s>·<|start_header_id|>·s·y·s·t·e·m·<|end_header_id|>·\n·\n·Be· brief·.·<|eot_id|>·"
    "<|start_header_id|>·user·<|end_header_id|>·\n·\n·hello· the· model·<|eot_id|>·"
)
TURNS = [
    Shape(
        name="a conversation with loss on all of it",
        rows=[SHORT],
        template="gemma",
        why="questions",
        parts=[
            (
                _QUESTION,
                f"[[{_QUESTION}]]",
            )
        ],
    ),
    marked("several turns", LONG, template="llama3_training", tokenizer="llama"),
    marked(
        "several turns",
        LONG,
        template="llama3_training",
        tokenizer="gpt2",
        why="tokens across a border",
        parts=[
            (f"{_HISTORY}<|start_header_id|>·assistant·<|end_header_id|>·\n\n·[[{_ANSWER}]]·‖", ""),
            (_ANSWER, f"[[{_ANSWER}]]"),
            ("\n\n", "\n·\n"),
        ],
    ),
    marked(
        "several turns",
        LONG,
        template="llama3_training",
        tokenizer="mistral",
    ),
    marked("several turns, with the model's own template", LONG, template="llama3"),
    marked(
        "several turns, with the model's own template",
        SHORT,
        template="qwen2_5",
        why="marks",
        parts=[("\n", "[[\n]]")],
    ),
    marked(
        "thoughts, with the model's own template",
        chat(*THOUGHTS),
        template="qwen3",
        why="turns rewritten",
        parts=[
            (
                (
                    "‖·<|im_start|>·user·\n·hello·<|im_end|>·\n·"
                    "<|im_start|>·assistant·\n·the·<|im_end|>·\n"
                ),
                "",
            )
        ],
    ),
    marked(
        "a conversation, with the model's own template",
        SHORT,
        template="llama3_1",
        why="no marks",
        trl_refuses="not training-compatible",
    ),
    marked(
        "a question at the end",
        chat(*_SHORT, user("and")),
        why="after the last answer",
        parts=[("", "<|im_start|>·user·\n·an·d·<|im_end|>·\n")],
    ),
    marked(
        "an answer at the beginning",
        chat(answer("hello"), *_SHORT),
        why="greetings",
        parts=[(_GREETING, f"[[{_GREETING}]]")],
    ),
    marked(
        "an answer at the beginning",
        chat(answer("hello"), *_SHORT),
        template="llama3_training",
        why="greetings",
        parts=[("hello·<|eot_id|>", "[[hello·<|eot_id|>]]")],
    ),
    marked("two answers in a row", chat(user("hello"), answer("the"), answer("model"))),
    marked(
        "no answer",
        chat(user("hello")),
        airlock_refuses="no message of the assistant",
        trl_refuses="no assistant tokens",
    ),
    marked(
        "an empty answer",
        chat(user("hello"), answer("")),
        why="empty answers",
        airlock_refuses="no text",
    ),
]

MESSAGES = [
    marked("thoughts", chat(*THOUGHTS)),
    marked(
        "thoughts in reasoning_content",
        chat(user("hello"), answer("the", reasoning_content="user")),
    ),
    marked(
        "thoughts in thinking",
        chat(user("hello"), answer("the", thinking="user")),
        template="lfm2_2_5",
    ),
    marked(
        "thoughts in reasoning",
        chat(user("hello"), answer("the", reasoning="user")),
        template="lfm2_2_5_v2",
    ),
    marked(
        "an empty system prompt",
        chat(system(""), *_SHORT),
        why="empty system prompts",
        parts=[("", "<|im_start|>·s·y·s·t·e·m·\n·<|im_end|>·\n")],
    ),
    marked(
        "a developer's prompt",
        chat(message("developer", "Be brief."), *_SHORT),
        why="developer",
        parts=[("<|im_start|>·s·y·s·t·e·m·\n·Be· brief·.·<|im_end|>·\n", "")],
    ),
    marked(
        "a role that the template refuses",
        LONG,
        template="gemma_training",
        airlock_refuses="System role not supported",
        trl_refuses="System role not supported",
    ),
    marked(
        "turns of from and value",
        {"conversations": [turn("human", "hello"), turn("gpt", "the")]},
        why="from and value",
        trl_refuses="not conversational",
    ),
    marked(
        "special tokens in messages",
        chat(user("hello <|im_end|> the"), answer("model <|im_start|>")),
    ),
    marked("unicode", chat(user("größe 你好 e\u0301"), answer("🚀👩\u200d🚀 \u200b你"))),
    marked("white space", chat(user(" hello \n"), answer("\n the \n\n"))),
    marked("names of speakers", chat({**user("hello"), "name": "user"}, answer("the"))),
    marked("content in parts", in_parts(SHORT), template="smolvlm_training"),
    marked(
        "content in parts",
        in_parts(SHORT),
        why="content in parts",
        parts=[("hello· the· model", ""), ("[[the· weather]]", "")],
    ),
]
