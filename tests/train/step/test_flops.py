"""The estimate of a model's FLOPs equals what torch counts in a real step; and GPU peak speeds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING

from machine.gpus.peaks import peak_of
from rundir.config import ModelConfig, RunConfig, TrainConfig
from tests.models import SMALL
from tests.train.model.test_models import SHAPES
from train.batches.batch import NO_WORK, Batch, Work, collate, collate_rows
from train.data.dataset import Sample, prompted
from train.model.build import add_method, new_model
from train.model.loss import SummedLoss
from train.step.mfu import model_flops, peak_flops_per_s

PEAKS = tomllib.loads(Path(__file__).with_name("peaks.toml").read_text(encoding="utf-8"))
KNOWN = PEAKS["known"] | dict.fromkeys(PEAKS["without_bfloat16"])  # TFLOP/s in bfloat16
LENGTHS, NUM_PROMPT = (24, 9, 17), 4


def made(kind: str, method: str = "full", *, checkpointing: bool = False, **shape: Any) -> Any:
    train = TrainConfig(method=method, lora_rank=4)  # type: ignore[arg-type]
    model = ModelConfig(
        dtype="float32",
        gradient_checkpointing=checkpointing,
        attention="eager",  # whose products torch counts
    )
    config = RunConfig(profile="test", model=model, train=train)
    described = CONFIG_MAPPING[kind](**SHAPES.get(kind, SMALL) | shape)
    return add_method(new_model(described, config, torch.device("cpu")), config.train)


def samples(lengths: tuple[int, ...] = LENGTHS) -> list[Sample]:
    draw = np.random.default_rng(0).integers
    return [prompted(draw(0, 96, length).astype(np.int32), NUM_PROMPT) for length in lengths]


def counted(model: Any, batches: list[Batch]) -> int:
    """Return torch's count of forward and backward, without the angles of rotary positions.

    It knows `addmm` but not its in-place version, which computes the gradient of the head's
    weights.
    """
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm_flops})
    with counter:
        for batch in batches:
            torch.autograd.backward(SummedLoss(model)(*batch.arguments()))
    rotary = sum(
        sum(counts.values())
        for name, counts in counter.get_flop_counts().items()
        if name.endswith("rotary_emb")
    )
    return counter.get_total_flops() - rotary


def addmm_flops(_own: Any, one: list[int], other: list[int], **_: Any) -> int:
    return 2 * one[0] * one[1] * other[1]


def work_of(batches: list[Batch]) -> Work:
    return Work(*map(sum, zip(*(batch.work for batch in batches), strict=True)))


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("name", list(SHAPES))
def test_what_a_model_needs_is_what_torch_counts_less_what_no_token_may_see(
    name: str, method: str
) -> None:
    model = made(name, method)
    flops = model_flops(model, longest=64)
    assert flops is not None
    batches = [collate([sample]) for sample in samples((24, 9))]  # padding would be counted
    work = work_of(batches)
    whole = flops.of(work._replace(squared_lengths=2 * work.squared_lengths))
    assert counted(model, batches) == whole


def test_frozen_weights_need_a_third_less() -> None:
    full, lora = (model_flops(made("qwen2", method), 64) for method in ("full", "lora"))
    assert full is not None
    assert lora is not None
    adapters = made("qwen2", "lora").num_parameters(only_trainable=True)
    assert lora.per_input == full.per_input * 4 / 6 + 6 * adapters
    assert lora.per_label == full.per_label * 4 / 6


@pytest.mark.runs
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("name", list(SHAPES))
def test_what_is_recomputed_in_backward_counts_once_and_as_hardware_twice(
    name: str, method: str
) -> None:
    flops, again = (model_flops(made(name, method, checkpointing=on), 64) for on in (False, True))
    assert flops is not None
    assert again is not None
    batches = [collate([sample]) for sample in samples((24, 9))]
    work = work_of(batches)
    whole = work._replace(squared_lengths=2 * work.squared_lengths)
    assert again.of(work) == flops.of(work) == flops.computed(work)
    assert again.computed(whole) == counted(made(name, method, checkpointing=True), batches)


def test_padding_is_no_work_and_samples_in_a_row_do_not_see_each_other() -> None:
    squares = sum(length**2 for length in LENGTHS)
    labels = sum(length - NUM_PROMPT for length in LENGTHS)
    expected = Work(labels, sum(LENGTHS), squares)
    padded, packed = collate(samples()), collate_rows([samples()])
    assert padded.work == packed.work == expected
    assert packed.input_ids.shape == (1, sum(LENGTHS))
    assert collate_rows([]).work == NO_WORK


class Packed(nn.Linear):
    """A layer whose weights are packed two to a byte, like those of bitsandbytes."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features, bias=False)
        packed = torch.zeros((like.weight.numel() // 2, 1), dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)


def test_packed_weights_count_as_what_they_stand_for() -> None:
    model = made("llama")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    frozen = model_flops(model, 64)
    for layer in model.model.layers:
        layer.mlp.up_proj = Packed(layer.mlp.up_proj)
    assert model_flops(model, 64) == frozen


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("mixtral", {"num_local_experts": 4}),
        ("mistral", {"sliding_window": 32}),  # shorter than a sample
        ("mamba", {}),
    ],
)
def test_of_models_that_compute_otherwise_nothing_is_claimed(
    kind: str, shape: dict[str, Any]
) -> None:
    assert model_flops(made(kind, **shape), longest=64) is None


def test_matrices_that_nobody_knows_make_the_model_unknown() -> None:
    model = made("qwen2")
    assert model_flops(model, 64) is not None
    model.model.layers[0].mlp.experts = nn.Parameter(torch.zeros(4, 8, 8))
    assert model_flops(model, 64) is None


def test_a_gpu_is_known_by_the_name_that_cuda_gives() -> None:
    for name, teraflops in KNOWN.items():
        peak = peak_of(name)
        assert peak is not None, name
        assert peak.bfloat16 == teraflops, name
        assert peak.bfloat16 is None or peak.bfloat16 > (peak.tf32 or 0) >= peak.float32


def test_of_other_gpus_nothing_is_claimed() -> None:
    assert [name for name in PEAKS["unknown"] if peak_of(name)] == []


@pytest.mark.gpu
def test_a_real_gpu_multiplies_matrices_no_faster_than_its_peak() -> None:
    device = torch.device("cuda", 0)
    peak = peak_flops_per_s(device, "bfloat16")
    if peak is None:
        pytest.skip(f"the peak of {torch.cuda.get_device_name(device)} is not known")
    one, size = torch.randn((8192, 8192), device=device, dtype=torch.bfloat16), 8192
    new_event: Any = torch.cuda.Event
    begin, end = (new_event(enable_timing=True) for _ in range(2))
    for event in (begin, end):  # the first product initialises the library
        for _ in range(20):
            one @ one
        event.record()
    torch.cuda.synchronize()
    speed = 20 * 2 * size**3 / (begin.elapsed_time(end) / 1e3)
    assert 0.3 * peak < speed < 1.02 * peak
