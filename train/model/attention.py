"""The choice of a model's attention implementation."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from train.model.multimodal import known_class
from train.model.varlen import (
    MAX_HEAD_DIM,
    TAKE_BORDERS,
    VARLEN,
    largest_head,
    register,
    why_not_varlen,
)

FLASH_ATTN = "flash_attention_2"  # of the flash-attn package

_NUM_LENGTHS = 16  # of rows, where each new one costs time
_LENGTH_MULTIPLE = 64  # tokens: a tile of a kernel, so that none is computed in part


def choose_attention(
    config: RunConfig, described: PretrainedConfig, *, on_cuda: bool | None = None
) -> str | None:
    """Return the attention to use, by transformers' name; None leaves the choice to transformers.

    transformers chooses sdpa, torch's own, for every architecture that has it, and eager otherwise.
    On a GPU, flash kernels that are told where samples begin are better: torch's own, or those of
    the flash-attn package for models that torch's cannot compute. `on_cuda` says where the model
    will run, if that is not this machine.
    """
    asked: str | None = config.model.attention
    if asked == "auto":
        asked = _best(config, described, on_cuda=on_cuda)
    if asked == VARLEN:
        register()
    return "sdpa" if asked == "cudnn" else asked


def _best(config: RunConfig, described: PretrainedConfig, *, on_cuda: bool | None) -> str | None:
    is_here = on_cuda is None
    if is_here:
        on_cuda = config.launch.device != "cpu" and torch.cuda.is_available()
    known = known_class(described)
    if known is None or not known._supports_flash_attn:
        return None
    if not on_cuda or config.model.dtype != "bfloat16":
        return None
    # Older modules (GPT-J, Falcon) choose among attention classes of their own, by name.
    names = vars(sys.modules[known.__module__])
    has_own = any(name.endswith("_ATTENTION_CLASSES") for name in names)
    if not has_own and why_not_varlen(described) is None:
        return VARLEN
    fits = largest_head(described) <= MAX_HEAD_DIM  # the package's kernels have the same limit
    # A plan, which sees no GPU, cannot try the package.
    is_there = is_flash_attn_2_available() if is_here else find_spec("flash_attn") is not None
    return FLASH_ATTN if fits and is_there else None


def row_lengths(config: RunConfig, model: nn.Module, device: torch.device) -> int:
    """Return the number that rows' lengths should be a multiple of, in tokens; 1 if any will do.

    On a GPU torch.compile, and attention by mask, prepare for each new length. So there are 16 of
    them at most, and at most a sixteenth of the longest row is padding.
    """
    if device.type != "cuda":
        return 1
    of_hugging_face: Any = next(
        module for module in model.modules() if isinstance(module, PreTrainedModel)
    )
    takes_borders = of_hugging_face.config._attn_implementation in TAKE_BORDERS
    if takes_borders and not config.model.compile:
        return 1
    step = config.data.max_seq_length / _NUM_LENGTHS
    return max(1, math.ceil(step / _LENGTH_MULTIPLE)) * _LENGTH_MULTIPLE


@contextmanager
def refused_attention(config: RunConfig) -> Iterator[None]:
    """Raise UserError if transformers refuses the attention that was asked for."""
    try:
        yield
    except (ValueError, ImportError) as error:
        what = str(error)
        if config.model.attention == "auto" or "ttention" not in what:
            raise
        raise UserError(
            f"model.attention = {config.model.attention!r}: {what.strip().splitlines()[0]}",
            do="--set model.attention=auto",
            code=ExitCode.PREFLIGHT,
        ) from error


def attention_line(plain: Any, config: RunConfig) -> str | None:
    """Return a line about attention if transformers has fallen back to eager, else None."""
    implementation = getattr(plain.config, "_attn_implementation", None)
    has_attention = getattr(plain.config.get_text_config(), "num_attention_heads", None)
    if config.model.attention != "auto" or implementation != "eager" or not has_attention:
        return None
    return (
        f"ATTENTION: eager: transformers has no sdpa for {plain.config.model_type}, so scores take "
        "memory by the square of a row's length"
    )
