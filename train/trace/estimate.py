"""An estimate of what one rank's model and training step take on its device, without the device.

`python -P -m train.trace OUT.json CONFIG.toml... [--device cuda|cpu]` writes the answers
in the format of rundir/footprint.py. A model of two layers is traced, then one with one more (or of
one and then two rounds of a repeating pattern of layers): what that adds, every further one adds
too.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import device as torch_device
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.utils import logging

from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.footprint import WORK, Footprint, write_footprints
from train.model.build import add_method, load_architecture, new_model, num_weights
from train.model.new_tokens import grow
from train.trace.kernels import Device
from train.trace.step_trace import WARM_UP, Trace, share_of, trace
from train.trace.storages import STAGES


def footprint(config: RunConfig, device: Device) -> Footprint:
    """Return the footprint of one rank. Raises UserError if there is no such model to trace."""
    name = config.architecture.get("model_type") or config.model.path
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers and peft; a run shows them again
            described = _described(config)
            traced = _traced(described, config, device)
            if config.train.shard_optimizer and config.launch.num_ranks > 1:
                whole = add_method(_whole(described, config), config.train)
                traced = traced.with_share(share_of(whole, config, traced.states))
            return _footprint(traced)
    except UserError:
        raise
    # Any model's code runs here, on shapes that a person has written: it may raise anything.
    except Exception as error:
        what = (str(error).strip() or "no reason given").splitlines()[0]
        raise UserError(
            f"a training step of {name} cannot be traced: {type(error).__name__}: {what}",
            do="--set model.attention=eager"
            if "attention implementation" in what
            else "check the model's shape; one whose code looks at values trains, but has no plan",
            code=ExitCode.PREFLIGHT,
        ) from error


def _described(config: RunConfig) -> PretrainedConfig:
    """Return the model's shape, from [architecture] or else from its folder. Raises UserError."""
    architecture = dict(config.architecture)
    if architecture:
        model_type = architecture.pop("model_type", None)
        if model_type not in CONFIG_MAPPING:
            raise UserError(
                f"[architecture] model_type = {model_type!r} is not known to transformers",
                do='the model_type of the model\'s config.json, such as model_type = "qwen3"',
            )
        return CONFIG_MAPPING[model_type](**architecture)
    file = Path(config.model.path) / "config.json"
    if not config.model.path or not file.is_file():
        raise UserError(
            f"model.path = {config.model.path!r} is no folder with a config.json in it",
            do="a Hugging Face folder as model.path, or the model's shape as [architecture]",
        )
    try:
        return load_architecture(config.model, file.parent)
    except (OSError, ValueError) as error:
        what = str(error).strip().splitlines()[0]
        raise UserError(
            f"{file} cannot be used: {what}",
            do="download the file again; for code of the model's own: "
            "--set model.trust_remote_code=true",
        ) from error


def _traced(described: PretrainedConfig, config: RunConfig, device: Device) -> Trace:
    """Return the trace of the whole model, extrapolated from two short ones if layers are alike."""
    try:
        traced = _extrapolated(described, config, device)
    except Exception:  # noqa: BLE001 - not every architecture can be made shorter
        traced = None
    return traced or trace(described, config, device)


def _extrapolated(described: PretrainedConfig, config: RunConfig, device: Device) -> Trace | None:
    """Return the extrapolated trace; None if it saves no work, or if layers differ in size."""
    period = _period(described)
    if period == 0:
        return None
    num_layers = described.get_text_config().num_hidden_layers
    first = max(2, period + num_layers % period)  # a single layer is both the first and the last
    if num_layers <= first + period:
        return None
    small, large = (
        trace(_shortened(described, num), config, device) for num in (first, first + period)
    )
    whole = small.plus(large, (num_layers - first) // period)
    if whole.counts["num_blocks"] == num_layers:  # else not all are of the text model
        whole = replace(whole, of_a_block=_of_a_block(small, large, period))
    return whole if whole.counts["num_base"] == num_weights(_whole(described, config)) else None


def _of_a_block(small: Trace, large: Trace, num_more: int) -> dict[str, int]:
    """Return the activations that each of the `num_more` blocks adds to the peak of each stage."""
    return {
        stage: (large.peaks[stage]["activations"] - parts["activations"]) // num_more
        for stage, parts in small.peaks.items()
    }


def _whole(described: PretrainedConfig, config: RunConfig) -> Any:
    """Return the whole model without memory, as it is before anything is added to it."""
    folder = Path(config.model.path) if config.model.path else None
    return grow(new_model(described, config, torch_device("meta")), folder)


def _period(described: PretrainedConfig) -> int:
    """Return the number of layers after which their kinds repeat; 0 if not, or if unknown."""
    text = described.get_text_config()
    num_layers = getattr(text, "num_hidden_layers", None)
    if not isinstance(num_layers, int):
        return 0
    kinds = [value for _, value in _by_layer(text)]
    for period in range(1, num_layers // 2 + 1):
        if all(value[period:] == value[:-period] for value in kinds):
            return period
    return 0


def _by_layer(text: PretrainedConfig) -> list[tuple[str, list[Any]]]:
    """Return the fields with an entry for each layer."""
    return [
        (name, list(value))
        for name, value in vars(text).items()
        if isinstance(value, list | tuple) and len(value) == text.num_hidden_layers
    ]


def _shortened(described: PretrainedConfig, num_layers: int) -> PretrainedConfig:
    """Return a copy with only the first layers."""
    short = copy.deepcopy(described)
    text = short.get_text_config()
    for name, value in _by_layer(text):
        setattr(text, name, value[:num_layers])
    text.num_hidden_layers = num_layers
    return short


def _footprint(traced: Trace) -> Footprint:
    """Return the parts at the highest peak. The rounding of tensor sizes counts as activations."""
    stage, parts = max(traced.peaks.items(), key=lambda item: sum(item[1].values()))
    counts, peak_bytes = traced.counts, sum(parts.values())
    # DDP has buckets for all gradients from the start: anything more is held beside them.
    ddp = max(0, parts["gradients"] - counts["gradients"])
    is_warm_up = stage.startswith(WARM_UP)  # the optimizer has no states yet
    optimizer = 0 if is_warm_up else counts["optimizer"]
    exact = counts["weights"] + counts["gradients"] + ddp + optimizer
    return Footprint(
        num_parameters=counts["num_parameters"],
        num_trainable=counts["num_trainable"],
        weights_bytes=counts["weights"],
        gradients_bytes=counts["gradients"],
        optimizer_bytes=optimizer,
        ddp_bytes=ddp,
        activations_bytes=peak_bytes - exact - parts["logits"],
        logits_bytes=parts["logits"],
        peak_bytes=peak_bytes,
        peak_moment="warm-up" if is_warm_up else STAGES[stage][1],
        num_blocks=counts["num_blocks"] if traced.of_a_block else 0,
        block_bytes=traced.of_a_block.get(stage, 0),
        **{name: counts[name] for name in WORK},
    )


def main() -> None:
    """Write all footprints, or print why one cannot be had and exit with the error's code."""
    parser = argparse.ArgumentParser(prog="python -P -m train.trace")
    parser.add_argument("out", type=Path)
    parser.add_argument("configs", type=Path, nargs="+", metavar="CONFIG.toml")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    logging.set_verbosity_error()
    device = cast("Device", options.device)
    try:
        footprints: list[Footprint] = []
        for path in options.configs:  # after each: who waits for them may not wait for all
            footprints.append(footprint(read_config(path), device))
            write_footprints(options.out, footprints)
    except UserError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.code)
    except (OSError, ValueError) as error:  # an unreadable configuration, or a full disk
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(ExitCode.USAGE)
