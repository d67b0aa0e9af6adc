"""Shapes of texts and of pairs of texts, which have no chat template in TRL."""

from __future__ import annotations

from tests.train.beside_trl.models import BOS, EOS
from tests.train.beside_trl.shape import Row, Shape, answer, limited, pair, text, user


def segments(prompt: str, completion: str, *, has_loss: bool = False) -> Row:
    """Return a pair as Airlock can be told to take it: nothing between, the end as it is given."""
    return {
        "segments": [
            {"text": prompt, "label": has_loss},
            {"text": completion + EOS, "label": True},
        ]
    }


WORDS = [text("hello the model"), text("größe 你好 🚀\n\tx e\u0301 \u200b"), text("  hello \n\n")]
LONG_TEXTS = [text("hello the model answers " * 5), text("hello")]

TEXTS = [
    Shape(name="texts", rows=WORDS),
    Shape(name="texts", rows=WORDS, tokenizer="gpt2"),
    Shape(name="texts", rows=WORDS, tokenizer="llama"),
    Shape(name="texts", rows=WORDS, tokenizer="mistral"),
    Shape(
        name="texts in a column of another name",
        rows=[{"content": "hello"}],
        sft={"dataset_text_field": "content"},
    ),
    Shape(name="special tokens in a text", rows=[text(f"hello{EOS}the {BOS} model")]),
    Shape(
        name="special tokens in a text",
        rows=[text(f"hello{EOS}the {BOS} model")],
        tokenizer="mistral",
    ),
    Shape(name="a text that begins with BOS", rows=[text(f"{BOS}hello")]),
    Shape(
        name="a text that begins with BOS",
        rows=[text(f"{BOS}hello")],
        tokenizer="llama",
        why="texts with BOS",
        parts=[("", f"[[{BOS}]]")],
    ),
    Shape(
        name="a text that ends with EOS",
        rows=[text(f"hello{EOS}")],
    ),
    Shape(name="long texts, cut off", rows=LONG_TEXTS, **limited(8, "truncate")),
    Shape(
        name="long texts, left out",
        rows=LONG_TEXTS,
        **limited(8, "drop"),
        why="long rows",
        parts=[("", "hello·[[ the· model· answers· hello· the· model· answers]]·‖")],
    ),
    Shape(
        name="long texts, split",
        rows=LONG_TEXTS,
        **limited(8, "split", packing=True, packing_strategy="bfd_split"),
    ),
]

PAIRS = [
    Shape(
        name="a pair",
        rows=[pair("hello the", "model")],
        why="pairs of texts",
        parts=[("\n", "")],
    ),
    Shape(
        name="a pair, in TRL with the new line that Airlock writes",
        rows=[pair("hello the", "model")],
        trl_rows=[pair("hello the\n", "model")],
    ),
    Shape(
        name="a pair, in TRL with the new line that Airlock writes",
        rows=[pair("hello the", "model")],
        trl_rows=[pair("hello the\n", "model")],
        tokenizer="llama",
    ),
    Shape(
        name="a pair, in TRL with the new line that Airlock writes",
        rows=[pair("hello the", "model")],
        trl_rows=[pair("hello the\n", "model")],
        tokenizer="mistral",
    ),
    Shape(
        name="a pair whose completion ends with EOS",
        rows=[pair("hello the", f"model{EOS}")],
        trl_rows=[pair("hello the\n", f"model{EOS}")],
    ),
    Shape(
        name="a pair, for a model with a template",
        rows=[pair("hello", "the model")],
        template="gemma",
        why="pairs of texts",
        parts=[
            ("<s>·<start_of_turn>·user·\n", ""),
            ("<end_of_turn>·\n·<start_of_turn>·model·\n", ""),
            ("[[<end_of_turn>·\n]]", "[[</s>]]"),
        ],
    ),
    Shape(
        name="a pair, in TRL as messages",
        rows=[pair("hello", "the model")],
        trl_rows=[pair([user("hello")], [answer("the model")])],
        template="gemma",
    ),
    Shape(
        name="a pair, in Airlock as segments",
        rows=[segments("hello the", " model")],
        trl_rows=[pair("hello the", " model")],
    ),
    Shape(
        name="a pair, in Airlock as segments",
        rows=[segments("hello the", " model")],
        trl_rows=[pair("hello the", " model")],
        tokenizer="mistral",
    ),
    Shape(
        name="a pair with loss on both",
        rows=[segments("hello the", " model", has_loss=True)],
        trl_rows=[pair("hello the", " model")],
        tokenizer="llama",
        sft={"completion_only_loss": False},
    ),
    Shape(
        name="a prompt that ends with a space",
        rows=[segments("hello the ", "model")],
        trl_rows=[pair("hello the ", "model")],
        why="tokens across a border",
        parts=[(" ·[[model]]", "[[ model]]")],
    ),
    Shape(
        name="a prompt that ends within a word",
        rows=[segments("hello the mo", "del")],
        trl_rows=[pair("hello the mo", "del")],
        tokenizer="mistral",
        why="tokens across a border",
        parts=[("mo·[[del]]", "[[model]]")],
    ),
]
