"""The tokens with loss of known templates are those marked by an independent reading of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.train.chat_templates import read, written
from tests.train.data.test_prepare_data import cache
from train.data.dataset import SampleFile
from train.data.path_samples import prepare_path
from train.data.samples import Recipe

__all__ = ["cache"]  # a fixture

NUM_CONVERSATIONS = 200
MARKS = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<think>", "</think>"),
]
WORDS = [
    *("the", "model", "answers", "größe", "你好", "🚀", "2+5=7", "def", "f(x):", "{", "}", "\\n"),
    *("'", '"', "<b>", "100%", "user", "assistant"),
]

Reader = Callable[[list[dict[str, Any]]], list[list[read.Part]]]


def words(draw: random.Random) -> str:
    """Draw some words, on some lines."""
    return "".join(
        draw.choice(WORDS) + draw.choice((" ", " ", " ", "\n", "\n\n"))
        for _ in range(draw.randint(1, 12))
    ).strip()


def conversation(draw: random.Random, *, system: bool, thoughts: bool) -> list[dict[str, Any]]:
    """Draw turns of a user and an assistant, maybe with a system prompt, maybe with thoughts."""
    chat = [{"role": "system", "content": words(draw)}] if system and draw.random() < 0.5 else []
    for _ in range(draw.randint(1, 5)):
        thought = f"<think>\n{words(draw)}\n</think>\n\n" if thoughts else ""
        chat.append({"role": "user", "content": words(draw)})
        chat.append({"role": "assistant", "content": thought + words(draw)})
    return chat


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Train a tokenizer that merges letters to words, so that it matters where a text is cut."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    parts: Any = made
    parts.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts.decoder = decoders.ByteLevel()
    draw = random.Random(1)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=MARKS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator([words(draw) for _ in range(500)], trainer)
    return made


def folder(tmp_path: Path, tokenizer: Tokenizer, template: str) -> Path:
    """Write a model's folder, as far as data preparation reads it."""
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = {"vocab_size": tokenizer.get_vocab_size()}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def tokens(parts: list[read.Part], tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Return the tokens of a whole text, and which of them lie in parts with loss."""
    text = "".join(part for part, _ in parts)
    has_loss = [flag for part, flag in parts for _ in part]
    found = tokenizer.encode(text, add_special_tokens=False)
    return found.ids, [has_loss[begin] for begin, _ in found.offsets]


CASES: dict[str, tuple[str, Reader, dict[str, Any]]] = {
    "ChatML": (written.CHATML, read.chatml, {"system": True}),
    "Llama-3": (written.LLAMA_3, read.llama_3, {"system": True}),
    "Mistral": (written.MISTRAL, read.mistral, {"system": True}),
    "Gemma": (written.GEMMA, read.gemma, {}),
    "Qwen3 with thinking": (written.QWEN_3, read.qwen_3, {"system": True, "thoughts": True}),
    "Qwen3 without thinking": (
        written.QWEN_3,
        partial(read.qwen_3, thinks=False),
        {"system": True, "options": "enable_thinking=false"},
    ),
    "Qwen3, thinking, no thoughts": (written.QWEN_3, read.qwen_3, {"system": True}),
}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("case", CASES)
def test_tokens_with_loss_are_those_that_an_independent_reading_marks(
    case: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    template, reader, what = CASES[case]
    draw = random.Random(case)
    chats = [
        conversation(draw, system=what.get("system", False), thoughts=what.get("thoughts", False))
        for _ in range(NUM_CONVERSATIONS)
    ]
    model = folder(tmp_path, tokenizer, template)
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), "utf-8")
    recipe = Recipe(max_seq_length=100_000, template_options=what.get("options", ""))
    samples = SampleFile(prepare_path(file, model, recipe)[0])
    expected = [tokens(parts, tokenizer) for chat in chats for parts in reader(chat)]
    assert len(samples) == len(expected)
    for at, (ids, has_loss) in enumerate(expected):
        found, ranges = samples[at]
        mask = np.zeros(len(found), bool)
        for begin, end in ranges:
            mask[begin:end] = True
        assert found.tolist() == ids
        assert mask.tolist() == has_loss
