"""The model: loaded from a Hugging Face folder, what is trained, and torch.compile by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from rundir.config import ModelConfig, RunConfig, TrainConfig
from rundir.errors import ExitCode, UserError
from train.model.adapters import add_adapters
from train.model.attention import choose_attention, refused_attention
from train.model.multimodal import class_for, freeze_towers, without_towers
from train.model.norms import use_torch_norms
from train.model.quantize import quantization, quantize, ready_to_train, weights_in
from train.model.recompute import recompute_blocks


def compile_blocks(model: Any) -> int:
    """Compile each block of layers at its first forward pass; return the number of blocks.

    The model is not compiled as a whole: DDP could then not send gradients while others are still
    computed, and blocks, which are all alike, are compiled once (pytorch#104674).
    """
    blocks = blocks_of(plain_model(model))
    for block in blocks:
        block.compile()
    return len(blocks)


def blocks_of(plain: nn.Module) -> list[nn.Module]:
    """Return the layers that a Hugging Face model marks as unsplittable, else its longest list.

    What is recomputed is compiled with them: inside them since transformers 5.23, around before.
    """
    kinds = set(getattr(plain, "_no_split_modules", None) or ())
    named = [module for module in plain.modules() if type(module).__name__ in kinds]
    lists = [list(module) for module in plain.modules() if isinstance(module, nn.ModuleList)]
    return named or max(lists, key=len, default=[])


def load_model(config: RunConfig, model_path: Path, device: torch.device) -> Any:
    """Load the checkpoint in `model_path` onto `device`, in `model.dtype`; safetensors are mapped.

    For QLoRA each linear layer is quantised to four bits as it is loaded. Raises OSError for a
    folder without a usable checkpoint, UserError for one whose pickles hold more than weights, and
    torch.OutOfMemoryError.
    """
    dtype = getattr(torch, config.model.dtype)
    options: dict[str, Any] = {}
    if device.type != "cpu":  # on the CPU the weights stay the mapped file pages
        options["device_map"] = {"": device}
    if config.train.method == "qlora":
        options["quantization_config"] = quantization(dtype)
    described = load_architecture(config.model, model_path)
    try:
        with refused_attention(config):
            model = _class_for(described, config.model).from_pretrained(
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
    return _ready(model, config)


def new_model(
    described: PretrainedConfig,
    config: RunConfig,
    device: torch.device,
    *,
    for_cuda: bool | None = None,
) -> Any:
    """Return a model of that architecture on `device` with random weights, the same for each seed.

    On the meta device it takes no memory, and has no weights. `for_cuda` says where it will run, if
    that is not this machine.
    """
    torch.manual_seed(config.train.seed)
    dtype = getattr(torch, config.model.dtype)
    with device, refused_attention(config):
        options: dict[str, Any] = {
            "dtype": dtype,
            "attn_implementation": choose_attention(config, described, on_cuda=for_cuda),
        }
        made = _class_for(described, config.model)
        if made is AutoModelForCausalLM:
            options["trust_remote_code"] = config.model.trust_remote_code
            model = made.from_config(described, **options)
        else:
            model = made._from_config(described, **options)
    if config.train.method == "qlora":
        quantize(model, dtype)
    return _ready(model.to(device), config)  # some models choose their own device


def load_architecture(config: ModelConfig, model_path: Path) -> PretrainedConfig:
    """Return the config.json in `model_path`."""
    return AutoConfig.from_pretrained(model_path, trust_remote_code=config.trust_remote_code)


def _class_for(described: PretrainedConfig, config: ModelConfig) -> Any:
    """Return the class that loads such a model; without towers, unless they are wanted."""
    whole = class_for(described)
    if whole is None:
        return AutoModelForCausalLM
    return whole if config.towers == "keep" else without_towers(whole)


def _ready(model: Any, config: RunConfig) -> Any:
    """Apply our own settings to a model as transformers made it."""
    freeze_towers(model)
    model.config.use_cache = False
    ready_to_train(model)
    use_torch_norms(model)
    if config.model.gradient_checkpointing:
        recompute_blocks(model, config)
    return model.train()  # it is loaded in evaluation mode, which disables checkpointing


def add_method(model: Any, config: TrainConfig) -> Any:
    """Make what `config.method` trains trainable: everything, or adapters on a frozen base."""
    return model if config.method == "full" else add_adapters(model, config)


def num_weights(model: Any) -> int:
    """Return the number of weights, however they are stored."""
    return sum(map(weights_in, model.parameters()))


def has_adapters(model: Any) -> bool:
    """Return whether `add_method` has added adapters to the model."""
    return hasattr(model, "merge_and_unload")


def vocabulary_of(model: Any) -> int:
    """Return how many token ids a model has an embedding for, and can predict.

    Some (Moshi) have embeddings without a logit.
    """
    plain = plain_model(model)
    embedding, head = plain.get_input_embeddings(), plain.get_output_embeddings()
    # peft wraps the embedding if some of it is trained.
    size = int(getattr(embedding, "original_module", embedding).weight.shape[0])
    return min(size, getattr(head, "out_features", size))


def plain_model(model: Any) -> Any:
    """Return the Hugging Face model below any adapters."""
    return model.get_base_model() if has_adapters(model) else model


def merged(model: Any) -> Any:
    """Return the plain Hugging Face model, with any adapters merged into its weights, in place."""
    if not has_adapters(model):
        return model
    from train.model.shared_layers import merge_once  # its peft is heavy, and for adapters only

    merge_once(model)
    return model.merge_and_unload()


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """Evaluate the model without gradients inside the block; its mode is restored afterwards.

    A compiled one runs as it is: answers have other shapes at each token, for each of which it
    would be compiled anew, up to a limit after which training would not be compiled either.
    """
    was_training = model.training
    is_compiled = any(getattr(module, "_compiled_call_impl", None) for module in model.modules())
    as_it_is = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    model.eval()
    try:
        with torch.no_grad(), as_it_is:
            yield
    finally:
        model.train(was_training)


def end_token_ids(model: Any, template_end_id: int) -> list[int]:
    """Return every token that ends an answer: what the template writes, then the model's own."""
    own = model.generation_config.eos_token_id
    own = own if isinstance(own, list) else [] if own is None else [own]
    return [template_end_id, *(token for token in own if token != template_end_id)]
