"""Which implementation of attention a model gets."""

from __future__ import annotations

from transformers.utils.import_utils import is_flash_attn_2_available

from rundir.config import RunConfig


def choose_attention(config: RunConfig) -> str:
    """What `model.attention` comes to on this machine, by transformers' names.

    The flash-attn package goes over packed samples one by one, where torch's own takes a mask of
    tokens times tokens. But with several rows at once transformers does not have it do so.
    """
    if config.model.attention != "auto":
        return config.model.attention
    one_by_one = config.train.micro_batch_size == 1 or not config.data.packing
    on_gpu = config.launch.device != "cpu" and config.model.dtype == "bfloat16"
    return "flash_attention_2" if one_by_one and on_gpu and is_flash_attn_2_available() else "sdpa"
