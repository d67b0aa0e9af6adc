"""The choice of a model's attention implementation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig
from transformers.utils.import_utils import is_flash_attn_2_available

from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode


def choose_attention(config: RunConfig, described: PretrainedConfig) -> str | None:
    """Return the attention to use, by transformers' name; None leaves the choice to transformers.

    transformers chooses sdpa, torch's own, for every architecture that has it, and eager otherwise.
    The flash-attn package processes packed samples one by one, where torch's own takes a mask of
    tokens times tokens. But with several rows at once transformers does not use it that way.
    """
    if config.model.attention != "auto":
        return config.model.attention
    one_by_one = config.train.micro_batch_size == 1 or not config.data.packing
    on_gpu = config.launch.device != "cpu" and config.model.dtype == "bfloat16"
    if not (one_by_one and on_gpu and is_flash_attn_2_available()):
        return None
    mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING  # raises KeyError for a model with its own code
    has_flash = type(described) in mapping and mapping[type(described)]._supports_flash_attn
    return "flash_attention_2" if has_flash else None


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
    found = getattr(plain.config, "_attn_implementation", None)
    has_attention = getattr(plain.config.get_text_config(), "num_attention_heads", None)
    if config.model.attention != "auto" or found != "eager" or not has_attention:
        return None
    return (
        f"ATTENTION: eager: transformers has no sdpa for {plain.config.model_type}, so scores take "
        "memory by the square of a row's length"
    )
