"""The trained model as an ordinary Hugging Face folder, which anything can load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rundir.atomic import new_folder
from rundir.space import require_space
from train.evaluate import end_token_ids
from train.model import merged

# What belongs to the tokenizer is copied as it is: writing it anew could change it.
_COPIED = (
    "tokenizer*", "special_tokens_map.json", "chat_template*", "vocab*", "merges.txt",
    "added_tokens.json",
)  # fmt: skip


def export(model: Any, base: Path, folder: Path, *, end_token_id: int) -> None:
    """Write `model`, adapters merged into it, and the tokenizer of `base` to `folder`.

    Its generation config ends an answer at `end_token_id`, where the training data did. The folder
    appears whole or not at all. The model is changed by the merge: call it last. Raises OSError (a
    full disk).
    """
    plain = merged(model)
    plain.generation_config.eos_token_id = end_token_ids(plain, end_token_id)
    plain.config.use_cache = True  # training switched it off; whoever answers with it wants it
    size_bytes = sum(parameter.nbytes for parameter in plain.parameters())
    require_space(folder.parent, size_bytes, "the trained model")
    with new_folder(folder) as temporary:
        plain.save_pretrained(temporary)
        for pattern in _COPIED:
            for file in base.glob(pattern):
                shutil.copyfile(file, temporary / file.name)
