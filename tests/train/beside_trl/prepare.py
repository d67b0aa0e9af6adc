"""The same data prepared by Airlock and by TRL, and where the results differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from rundir.errors import UserError
from tests.train.beside_trl.shape import Shape
from train.data.dataset import BEGIN, END, SampleFile
from train.data.path_samples import prepare_path
from train.data.samples import Recipe

Token = tuple[int, bool]  # the id, and whether it has loss
Sample = list[Token]
_NO_LOSS = -100
_END_OF_SAMPLE: Token = (-1, False)
_SIZES = ("hidden_size", "intermediate_size", "head_dim")
_COUNTS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_REFUSALS = (ValueError, TypeError, RuntimeError, jinja2.TemplateError)


def of_airlock(shape: Shape, model: Path, folder: Path) -> list[Sample] | str:
    """Return the samples that Airlock trains on, or why it refuses."""
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in shape.rows), encoding="utf-8")
    try:
        prepared, _ = prepare_path(file, model, Recipe(**{"max_seq_length": 4096, **shape.recipe}))
    except UserError as error:
        return str(error)
    samples = SampleFile(prepared)
    made = []
    for ids, ranges in (samples[i] for i in range(len(samples))):
        has_loss = [False] * len(ids)
        for begin, end in ranges:
            has_loss[begin:end] = [True] * (end - begin)
        made.append(_sample(ids.tolist(), has_loss))
    return made


def of_trl(shape: Shape, model: Path, folder: Path) -> list[Sample] | str:
    """Return the samples that TRL's SFTTrainer trains on, or why it refuses.

    Samples that it packs are taken apart where its model keeps them apart.
    """
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    options: dict[str, Any] = {
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "max_length": 4096,
    }
    try:
        trainer = SFTTrainer(
            model=_network(),
            args=SFTConfig(output_dir=str(folder), **options | shape.sft),
            train_dataset=Dataset.from_list(shape.trl_rows or shape.rows),
            processing_class=tokenizer,
        )
    except _REFUSALS as error:
        return str(error)
    rows: Any = trainer.train_dataset
    return [sample for row in rows for sample in _taken_apart(row)]


@cache
def _network() -> Any:
    """Return a model for the trainer, which only prepares data here: its sizes do not matter."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = dict.fromkeys(_SIZES, 8) | dict.fromkeys(_COUNTS, 1)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=2000, **sizes))


def _taken_apart(row: dict[str, Any]) -> list[Sample]:
    ids, has_loss = row["input_ids"], [label != _NO_LOSS for label in row["labels"]]
    made, begin = [], 0
    for length in row.get("seq_lengths") or [len(ids)]:
        made.append(_sample(ids[begin : begin + length], has_loss[begin : begin + length]))
        begin += length
    return made


def _sample(ids: Sequence[int], has_loss: Sequence[bool]) -> Sample:
    """Return a sample's tokens; nothing predicts the first, so a label there has no effect."""
    return list(zip(ids, [False, *has_loss[1:]], strict=True))


def differences(
    ours: list[Sample], theirs: list[Sample], tokenizer: Tokenizer
) -> list[tuple[str, str]]:
    """Return what differs between samples of Airlock and of TRL, as in `Shape.parts`."""
    before, after = (
        list(chain.from_iterable([*sample, _END_OF_SAMPLE] for sample in samples))
        for samples in (ours, theirs)
    )
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return [
        (written(before[i:j], tokenizer), written(after[k:n], tokenizer))
        for kind, i, j, k, n in matcher.get_opcodes()
        if kind != "equal"
    ]


def written(tokens: Sequence[Token], tokenizer: Tokenizer) -> str:
    """Return tokens with `·` between them, and double brackets around those with loss."""
    runs = []
    for has_loss, run in groupby(tokens, key=itemgetter(1)):
        words = "·".join(_word(token_id, tokenizer) for token_id, _ in run)
        runs.append(f"{BEGIN}{words}{END}" if has_loss else words)
    return "·".join(runs)


def _word(token_id: int, tokenizer: Tokenizer) -> str:
    if token_id == _END_OF_SAMPLE[0]:
        return "‖"
    word: str = tokenizer.decode([token_id], skip_special_tokens=False)
    return word if word and "\ufffd" not in word else str(tokenizer.id_to_token(token_id))
