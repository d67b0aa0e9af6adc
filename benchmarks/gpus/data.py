"""What the cases train on: samples of many lengths, and folders of models without weights."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_LEAST_TOKENS = 24
_NUM_MARKS = 3  # tokens that the template adds to a prompt and its answer


def mixed_lengths(row_tokens: int, num_samples: int) -> list[int]:
    """Return lengths in tokens as in instruction data: most short, a few long (log-normal)."""
    draw = np.random.default_rng(0)
    lengths = np.exp(draw.normal(math.log(row_tokens / 5), 0.8, num_samples)).astype(int)
    return [int(one) for one in lengths.clip(_LEAST_TOKENS, row_tokens)]


def write_mixed_rows(file: Path, row_tokens: int, num_samples: int) -> None:
    """Write samples of up to `row_tokens` tokens, for the tokenizer of bytes; a third is prompt."""
    draw = np.random.default_rng(1)
    with file.open("w", encoding="utf-8") as out:
        for length in mixed_lengths(row_tokens, num_samples):
            letters = "".join(draw.choice(list("abcdefgh"), length - _NUM_MARKS))
            cut = len(letters) // 3
            row = {"prompt": letters[:cut], "response": letters[cut:]}
            out.write(json.dumps(row) + "\n")


def model_folder(folder: Path, architecture: Mapping[str, Any], dtype: str = "bfloat16") -> None:
    """Make `folder` with config.json and a tokenizer, but no weights, unless it is there."""
    from rundir.config import ModelConfig, RunConfig
    from train.model.make_checkpoint import make_checkpoint

    if folder.exists():
        return
    described = RunConfig(
        profile="gpu",
        architecture=dict(architecture),
        model=ModelConfig(dtype=dtype),  # type: ignore[arg-type]
    )
    made = folder.with_name(f".{folder.name}")
    shutil.rmtree(made, ignore_errors=True)
    make_checkpoint(described, made, weights=False)
    file = made / "config.json"
    table = json.loads(file.read_text(encoding="utf-8")) | {"dtype": dtype}
    file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    (made / ".seal.json").unlink()  # it lists other files than will be here
    made.rename(folder)
