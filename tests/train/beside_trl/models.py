"""Models' folders as far as data preparation reads them: tokenizers made here, templates of TRL."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from tests.model_tokenizers import QWEN2_SPLIT

Kind = Literal["qwen", "llama", "gpt2", "mistral"]

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
_WORDS = [
    *(
        "hello",
        "the",
        "model",
        "answers",
        "größe",
        "你好",
        "🚀",
        "2+5=7",
        "def",
        "f(x):",
        "{",
        "\n",
    ),
    *(
        "'",
        '"',
        "<b>",
        "100%",
        "user",
        "assistant",
        "weather",
        "think",
        "\n\n",
        "tool",
        "Be brief.",
    ),
]
# What templates write to separate turns: names in angle or square brackets.
_MARK = re.compile(r"<\|?[\w/|]+\|?>|<\uff5c[^<>]+>|\[/?[A-Z_]+\]")


def _folder() -> Path | None:
    """Return the folder of TRL's chat templates, without importing TRL; None if there is none."""
    found = importlib.util.find_spec("trl")
    places = (found and found.submodule_search_locations) or []
    return next((Path(place) / "chat_templates" for place in places), None)


def template_names() -> list[str]:
    """Return the names of TRL's chat templates; none if TRL is not installed."""
    folder = _folder()
    return [] if folder is None else sorted(file.stem for file in folder.glob("*.jinja"))


def template(name: str) -> str:
    """Return the text of one of TRL's chat templates."""
    folder = _folder()
    assert folder is not None
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


def write_folder(folder: Path, kind: Kind, template_name: str) -> Path:
    """Write a model's folder with a tokenizer that knows the template's marks; "" for none."""
    source = template(template_name) if template_name else ""
    tokenizer = Tokenizer.from_str(_trained(kind))
    tokenizer.add_special_tokens(sorted({*_MARK.findall(source)} - {BOS, EOS, PAD}))
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    if source:
        (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    settings = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = {"vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@cache
def _trained(kind: Kind) -> str:
    """Return a tokenizer, as JSON, that cuts text as that family of models does.

    It merges letters to words, so it matters where a text is cut. Those of llama and mistral put
    BOS before a text.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=kind == "mistral"))
    parts: Any = tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [PAD, BOS, EOS]
    if kind == "mistral":
        parts.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        parts.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        special += [f"<0x{byte:02X}>" for byte in range(256)]
        alphabet = sorted("▁abcdefghijklmnopqrstuvwxyz0123456789.,:()")
    elif kind == "gpt2":
        parts.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        parts.decoder = decoders.ByteLevel()
    else:
        parts.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        parts.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, show_progress=False, initial_alphabet=alphabet
    )
    draw = random.Random(1)
    texts = (" ".join(draw.choices(_WORDS, k=8)) for _ in range(500))
    tokenizer.train_from_iterator(texts, trainer)
    if kind in ("llama", "mistral"):
        parts.post_processor = TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    made: str = tokenizer.to_str()
    return made
