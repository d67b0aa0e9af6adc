"""A small random checkpoint and tokenizer, made from an architecture; `tiny` starts from one.

`python -P -m train.model.make_checkpoint RUN_DIR FOLDER` saves an ordinary Hugging Face folder,
complete or not at all, which is then loaded like any other model. With `launch.load=random` it has
no weights: each rank makes them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from rundir.atomic import new_folder
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.paths import RunDir
from rundir.seal import seal

USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"

# Every byte is a token of its own: a tiny model that learns to spell has to see the letters.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}" + USER + "{{ message.content }}"
    "{% elif message.role == 'assistant' %}" + ASSISTANT + "{{ message.content }}" + END + ""
    "{% elif message.role == 'system' %}{{ message.content + '\\n' }}"
    "{% else %}{{ raise_exception('it knows no role ' + message.role) }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def make_checkpoint(config: RunConfig, folder: Path, *, weights: bool = True) -> None:
    """Save a randomly initialised model of `config.architecture`, seeded, and its tokenizer.

    Without `weights`, save only its config.json and the tokenizer. Raises UserError if the
    architecture has fewer token ids than the tokenizer.
    """
    import torch
    from transformers import CONFIG_MAPPING
    from transformers.utils import logging

    from train.model.build import new_model

    logging.disable_progress_bar()  # this takes milliseconds
    tokenizer = byte_tokenizer()
    architecture = dict(config.architecture)
    model_type = architecture.pop("model_type")
    text = architecture  # of a multimodal model, its text part
    if "text_config" in architecture:
        text = architecture["text_config"] = dict(architecture["text_config"])
    if text["vocab_size"] < len(tokenizer):
        raise UserError(
            f"[architecture] vocab_size = {text['vocab_size']} is below the "
            f"{len(tokenizer)} ids of the byte tokenizer",
            do=f"vocab_size = {len(tokenizer)} in profiles/{config.profile}.toml",
        )
    text |= {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    text |= {"eos_token_id": tokenizer.eos_token_id}
    described = CONFIG_MAPPING[model_type](**architecture)
    with new_folder(folder) as temporary:
        if weights:
            whole = replace(
                config,
                train=replace(config.train, method="full"),  # not in four bits
                model=replace(config.model, towers="keep"),
            )
            model = new_model(described, whole, torch.device("cpu"))
            model.save_pretrained(temporary)
        else:
            described.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        seal(temporary)


def byte_tokenizer():  # type: ignore[no-untyped-def]  # transformers' class, imported late
    """Return a byte-level tokenizer (256 bytes and 4 special tokens) with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, USER, ASSISTANT, END])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


if __name__ == "__main__":
    print(f"making the model once: {sys.argv[2]}")  # noqa: T201
    own = read_config(RunDir(Path(sys.argv[1])).config)
    make_checkpoint(own, Path(sys.argv[2]), weights=own.launch.load != "random")
