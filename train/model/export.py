"""The trained model as an ordinary Hugging Face folder, which anything can load."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ranks.group import Ranks
from rundir.atomic import new_folder, require_space
from rundir.card.model_card import write_card
from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.paths import RunDir
from rundir.prepared import read_prepared
from train.data.fits_model import pad_token_id
from train.files.served import TOKENIZER_FILES, served, tokenizer_of
from train.model.build import (
    end_token_ids,
    has_adapters,
    inference,
    load_model,
    merged,
    plain_model,
    vocabulary_of,
)
from train.model.export_towers import save_in_layout, tensors_of
from train.model.hidden_packages import without_cuda_at_import
from train.model.multimodal import class_for
from train.model.new_tokens import grow
from train.model.varlen import masked

_NUM_COMPARED = 16  # tokens
# Tokenizer files are copied unchanged: writing them anew could alter them.
_COPIED = (
    *TOKENIZER_FILES,
    "chat_template*",
    "*processor_config.json",  # of a multimodal model: how images become tokens
)


def write_results(config: RunConfig, run: RunDir, model: Any, ranks: Ranks) -> None:
    """Write what was trained: an ordinary model, and any adapters by themselves as well.

    Called by rank 0, last of all: merging changes the model. Raises OSError (a full disk).
    """
    prepared = read_prepared(run)
    base_folder, end_token_id = Path(prepared.model_path), prepared.train.end_token_id

    def tell(line: str) -> None:
        ranks.say(f"EXPORT: {line}")

    def finish(folder: Path) -> None:
        try:
            write_card(run, folder)
        except Exception as error:  # noqa: BLE001 - no card is worth a trained model
            tell(f"the model's card could not be written: {error!r}")

    write = partial(
        export,
        base=base_folder,
        folder=run.model,
        end_token_id=end_token_id,
        chat_template=config.data.chat_template,
        finish=finish,
        tell=tell,
    )
    if not has_adapters(model):
        write(model)
        return
    base = config.model.path or prepared.model_path
    revision = config.model.revision
    export_adapter(model, run.adapter, base=base, revision=revision, finish=finish)
    is_quantized = config.train.method == "qlora"
    if is_quantized and prepared.loading.load == "random":
        tell("of random weights there are no files to merge the adapters into")
        return
    if not config.train.merge_adapters:
        return
    before = logits_of_some(model)
    if is_quantized:
        model = on_whole_base(config, base_folder, run.adapter)
    merged = write(model)
    changed = difference(before, logits_of_some(merged))
    tell(f"merging has changed logits by {changed:.2%} at most")


def export(
    model: Any,
    base: Path,
    folder: Path,
    *,
    end_token_id: int,
    chat_template: str = "",
    finish: Callable[[Path], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Any:
    """Write `model`, adapters merged, and the tokenizer of `base` to `folder`; return that model.

    Its generation config ends an answer at `end_token_id`, as the training data did, and pads with
    the tokenizer's padding token, or with that id if there is none. `chat_template` is a file to
    use instead of the template of `base`; `finish` adds to the folder before it appears, complete
    or not at all; `tell` takes a line for people. A multimodal model has the names and the towers
    of `base`. The merge changes the model, so call this last. Raises OSError (a full disk).
    """
    plain = merged(model)
    ends = plain.generation_config.eos_token_id = end_token_ids(plain, end_token_id)
    if plain.generation_config.pad_token_id is None:  # batches of prompts need one
        pad = pad_token_id(base, tokenizer_of(base))
        plain.generation_config.pad_token_id = ends[0] if pad is None else pad
    is_multimodal = class_for(plain.config) is not None
    size_bytes = sum(parameter.nbytes for parameter in plain.parameters())
    if is_multimodal:  # its towers come from the files of the base
        files = set(tensors_of(base).values())
        size_bytes = max(size_bytes, sum(file.stat().st_size for file in files))
        vars(plain.config).pop("use_cache", None)  # it is a setting of the text part
    else:
        plain.config.use_cache = True  # training switched it off; generation uses it
    require_space(folder.parent, size_bytes, "the trained model")
    with new_folder(folder) as temporary:
        if not is_multimodal:
            plain.save_pretrained(temporary)
        elif line := save_in_layout(plain, base, temporary):
            tell(line)
        for pattern in _COPIED:
            for file in filter(Path.is_file, base.glob(pattern)):
                shutil.copyfile(file, temporary / file.name)
        if chat_template:
            shutil.copyfile(chat_template, temporary / "chat_template.jinja")
        if line := _other_tokens(temporary, base):
            tell(line)
        finish(temporary)
    return plain


def _other_tokens(folder: Path, base: Path) -> str | None:
    """Return a line if an exported model is served with other ids than it was trained on."""
    try:
        if served(folder).digest == served(base).digest:
            return None
    except UserError as error:  # no tokenizer is worth a trained model
        return str(error)
    return f"AutoTokenizer gives texts other ids with this folder than with {base}, trained on"


def export_adapter(
    model: Any,
    folder: Path,
    *,
    base: str,
    revision: str,
    finish: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write only the adapters of `model` to `folder`, for `peft` to put onto `base` again.

    `base` is the Hugging Face id, or the folder, that they were trained on. Raises OSError.
    """
    for config in model.peft_config.values():
        config.base_model_name_or_path, config.revision = base, revision or None
    with new_folder(folder) as temporary:
        model.save_pretrained(temporary)
        finish(temporary)


def on_whole_base(config: RunConfig, base: Path, adapter: Path) -> Any:
    """Return the adapters in `adapter` on the weights from the files of `base`, on the host.

    Adapters trained on four-bit weights cannot be merged into these without rounding the result to
    four bits. Takes the whole model's size in host memory. Raises what loading raises.
    """
    unquantized = replace(config, train=replace(config.train, method="lora"))
    plain = grow(load_model(unquantized, base, torch.device("cpu")), base)
    with without_cuda_at_import():
        from peft import PeftModel

        return PeftModel.from_pretrained(plain, adapter)


def logits_of_some(model: Any) -> torch.Tensor:
    """Return logits, (tokens, vocabulary), of a few tokens, to see if a merge changes the model."""
    vocab_size = vocabulary_of(model)
    ids = torch.arange(_NUM_COMPARED, device=next(model.parameters()).device) % vocab_size
    with inference(model), masked(plain_model(model)):
        logits: torch.Tensor = model(input_ids=ids[None], use_cache=False).logits[0].float().cpu()
    return logits


def difference(before: torch.Tensor, after: torch.Tensor) -> float:
    """Return the largest difference between two sets of logits, as a share of the largest logit."""
    return float((before - after).abs().max() / before.abs().max())
