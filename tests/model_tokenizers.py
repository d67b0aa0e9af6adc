"""Small tokenizers of the kinds that models have, and folders that name a model's type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "In 2024 it was 1234, and it's 2024 again.",
    "  größe: e\u0301 42\n\n\tif x == 100:\r\n",
    "<|im_start|>user\n7 of 2024<|im_end|>\n",
    "</s> 1234 <s>2024</s>1234",
)
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def of_bytes(split: str = "", *, normalize: bool = False) -> Any:
    """Return a tokenizer that has learnt numbers of several digits, if its splitting allows."""
    made: Any = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    level = pre_tokenizers.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=not split
    )
    if split:
        parts = [pre_tokenizers.Split(Regex(split), "isolated"), level]
        made.pre_tokenizer = pre_tokenizers.Sequence(parts)
    else:
        made.pre_tokenizer = level
    if normalize:
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(MARKS),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS * 20, trainer)
    made.add_tokens([AddedToken("<think>", normalized=False)])
    return made


def of_pieces() -> Any:
    """Return a tokenizer as Llama 2 has it: spaces are written ▁, and one is put before a text."""
    made: Any = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))  # noqa: S106
    replace = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)])
    marks = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=marks, show_progress=False)
    made.train_from_iterator(TEXTS * 20, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def saved(folder: Path, tokenizer: Any, model_type: str, **settings: Any) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"pad_token": MARKS[0], "eos_token": MARKS[2]}
    if "<s>" in tokenizer.get_vocab():
        named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    return folder


def auto(folder: Path) -> Any:
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    return load(folder)


def ids(tokenizer: Any, text: str) -> list[int]:
    found = tokenizer.encode(text, add_special_tokens=False)
    return list(getattr(found, "ids", found))
