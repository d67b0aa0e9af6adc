"""The model: loaded from a Hugging Face folder, what is trained, and torch.compile by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from rundir.config import ModelConfig, RunConfig, TrainConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.model.adapters import add_adapters
from train.model.attention import choose_attention, refused_attention
from train.model.quantize import (
    quantization,
    quantize,
    ready_to_train,
    weights_in,
)


def compile_blocks(model: Any) -> int:
    """Have each block of layers compiled at its first forward; returns how many there are.

    Not the model as a whole: DDP could then not send gradients while others are still made, and
    blocks, which are all alike, are compiled once (pytorch#104674).
    """
    blocks = blocks_of(plain_model(model))
    for block in blocks:
        block.compile()
    return len(blocks)


def blocks_of(plain: nn.Module) -> list[nn.Module]:
    """The layers of a Hugging Face model that it names as whole, or else those of its longest list.

    Checkpointing goes around them, so what is compiled is recomputed too.
    """
    kinds = set(getattr(plain, "_no_split_modules", None) or ())
    named = [module for module in plain.modules() if type(module).__name__ in kinds]
    lists = [list(module) for module in plain.modules() if isinstance(module, nn.ModuleList)]
    return named or max(lists, key=len, default=[])


def load_model(config: RunConfig, model_path: Path, device: torch.device) -> Any:
    """The checkpoint in `model_path` on `device`, in `model.dtype`, safetensors memory-mapped.

    For QLoRA each linear layer is turned into four bits as it comes. Raises OSError for a folder
    without a usable checkpoint, UserError for one whose pickles are not only weights, and
    torch.OutOfMemoryError.
    """
    dtype = getattr(torch, config.model.dtype)
    options: dict[str, Any] = {}
    if device.type != "cpu":  # there the weights stay the mapped file pages
        options["device_map"] = {"": device}
    if config.train.method == "qlora":
        options["quantization_config"] = quantization(dtype)
    described = load_architecture(config.model, model_path)
    try:
        with refused_attention(config):
            model = AutoModelForCausalLM.from_pretrained(
                model_path,
                dtype=dtype,
                attn_implementation=choose_attention(config, described),
                trust_remote_code=config.model.trust_remote_code,
                weights_only=True,  # a pickle could run any code
                **options,
            )
    except UnpicklingError as error:
        raise UserError(
            f"{model_path}: a .bin file in it is damaged, or holds more than weights",
            do="take the model from where it comes as safetensors",
            code=ExitCode.PREFLIGHT,
        ) from error
    return _ready(model, config.model)


def new_model(described: PretrainedConfig, config: RunConfig, device: torch.device) -> Any:
    """A model of that architecture made on `device`, its weights random: the same for each seed.

    On the meta device it takes no memory, and there are no weights.
    """
    torch.manual_seed(config.train.seed)
    dtype = getattr(torch, config.model.dtype)
    with device, refused_attention(config):
        model = AutoModelForCausalLM.from_config(
            described,
            dtype=dtype,
            attn_implementation=choose_attention(config, described),
            trust_remote_code=config.model.trust_remote_code,
        )
    if config.train.method == "qlora":
        quantize(model, dtype)
    return _ready(model.to(device), config.model)  # some name a device of their own


def load_architecture(config: ModelConfig, model_path: Path) -> PretrainedConfig:
    """The config.json in `model_path`."""
    return AutoConfig.from_pretrained(model_path, trust_remote_code=config.trust_remote_code)


def _ready(model: Any, config: ModelConfig) -> Any:
    """Put what is ours into a model as transformers made it."""
    model.config.use_cache = False
    ready_to_train(model)
    if config.gradient_checkpointing:
        # transformers 5.23 has renamed it; the old name is all that earlier versions have.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model.train()  # as loaded it is in evaluation mode, which checkpoints nothing


def add_method(model: Any, config: TrainConfig) -> Any:
    """Make what `config.method` trains trainable: everything, or adapters on a frozen base."""
    return model if config.method == "full" else add_adapters(model, config)


def num_weights(model: Any) -> int:
    """How many weights it has, whatever they are held in."""
    return sum(map(weights_in, model.parameters()))


def has_adapters(model: Any) -> bool:
    """Whether `add_method` has put adapters into it."""
    return hasattr(model, "merge_and_unload")


def vocabulary_of(model: Any) -> int:
    """How many token ids a model has an embedding for, and can answer with.

    Some (Moshi) have embeddings that no logit belongs to.
    """
    plain = plain_model(model)
    embedding, head = plain.get_input_embeddings(), plain.get_output_embeddings()
    # peft wraps it where some of it is trained.
    size = int(getattr(embedding, "original_module", embedding).weight.shape[0])
    return min(size, getattr(head, "out_features", size))


def plain_model(model: Any) -> Any:
    """The Hugging Face model below adapters."""
    return model.get_base_model() if has_adapters(model) else model


def merged(model: Any) -> Any:
    """The plain Hugging Face model: adapters, if any, are added into the weights, in place."""
    return model.merge_and_unload() if has_adapters(model) else model


def load_tokenizer(model_path: Path, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a local model folder."""
    return AutoTokenizer.from_pretrained(model_path, trust_remote_code=trust_remote_code)


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """Evaluation mode, no gradients; the model is as it was afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def end_token_ids(model: Any, template_end_id: int) -> list[int]:
    """Every token that ends an answer: what the template writes after one, then the model's own."""
    own = model.generation_config.eos_token_id
    own = own if isinstance(own, list) else [] if own is None else [own]
    return [template_end_id, *(token for token in own if token != template_end_id)]
