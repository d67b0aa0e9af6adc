"""Shapes of prompts and completions that are messages."""

from __future__ import annotations

from tests.train.beside_trl.shape import (
    ASSISTANT_ONLY,
    LONG,
    Row,
    Shape,
    answer,
    pair,
    system,
    user,
)

TURNS: list[Row] = LONG["messages"]
THOUGHTS = [
    user("hello"),
    answer("<think>\nuser\n</think>\n\nthe"),
    user("and"),
    answer("<think>\nmodel\n</think>\n\nweather"),
]
PLAIN = pair([user("hello")], [answer("the")])
_QUESTION = "<start_of_turn>·user·\n·hello·<end_of_turn>·\n·<start_of_turn>·model·\n"
_NEXT_QUESTION = (
    "<|start_header_id|>·user·<|end_header_id|>·\n\n·an·d· user·?·<|eot_id|>·"
    "<|start_header_id|>·assistant·<|end_header_id|>·\n\n"
)

COMPLETIONS = [
    Shape(
        name="a completion after several turns",
        rows=[pair(TURNS[:4], TURNS[4:])],
        template="qwen2_5",
    ),
    Shape(
        name="the last answer of a conversation",
        rows=[LONG],
        trl_rows=[pair(TURNS[:4], TURNS[4:])],
        recipe={"loss_on": "last_answer"},
        template="qwen2_5",
    ),
    Shape(
        name="a system prompt in a column",
        rows=[{"system": "Be brief.", "prompt": "hello", "response": "the"}],
        trl_rows=[pair([system("Be brief."), user("hello")], [answer("the")])],
        template="qwen3",
    ),
    Shape(
        name="a completion of several turns",
        rows=[pair(TURNS[:2], TURNS[2:])],
        template="llama3",
        why="questions",
        parts=[
            (
                _NEXT_QUESTION,
                f"[[{_NEXT_QUESTION}]]",
            )
        ],
    ),
    Shape(
        name="a completion of several turns, with loss on answers",
        rows=[pair(TURNS[:2], TURNS[2:])],
        template="llama3_training",
        sft=ASSISTANT_ONLY,
    ),
    Shape(
        name="prompts with loss",
        rows=[PLAIN],
        template="gemma",
        sft={"completion_only_loss": False},
        why="questions",
        parts=[
            (
                _QUESTION,
                f"[[{_QUESTION}]]",
            )
        ],
    ),
    Shape(
        name="thoughts, earlier ones left out by the template",
        rows=[pair(THOUGHTS[:3], THOUGHTS[3:])],
        template="qwen3",
    ),
    Shape(
        name="an option of the template",
        rows=[PLAIN],
        trl_rows=[PLAIN | {"chat_template_kwargs": {"enable_thinking": False}}],
        recipe={"template_options": "enable_thinking=false"},
        template="qwen3",
    ),
    Shape(
        name="a new line at the beginning of a completion",
        rows=[pair([user("hello")], [answer("\nthe")])],
        template="qwen2_5",
        why="tokens across a border",
        parts=[("\n·[[\n]]", "[[\n\n]]")],
    ),
    Shape(
        name="a prompt and a completion",
        rows=[PLAIN],
        template="llama3",
        tokenizer="gpt2",
        why="tokens across a border",
        parts=[("\n\n", "[[\n·\n]]")],
    ),
]
