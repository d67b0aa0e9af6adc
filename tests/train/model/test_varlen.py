"""Varlen attention beside attention by mask: the GPU's own adapter, around a kernel for the CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.nn.attention import varlen as of_torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from benchmarks.architectures.small_models import causal_architectures, enlarge, small_config
from rundir.config import RunConfig
from rundir.errors import UserError
from tests.models import SMALL
from tests.train.model.test_models import found
from train.batches.batch import Batch, collate, collate_rows
from train.model import varlen
from train.model.attention import choose_attention, row_lengths
from train.model.build import add_method, new_model, plain_model
from train.model.loss import SummedLoss
from train.model.sample_borders import borders
from train.model.varlen import NotForVarlenError, masked, why_not_varlen
from train.step.selftest import tried_of
from train.step.try_attention import logits_of, random_samples, settle_attention
from train.trace.step_trace import trace

CPU = torch.device("cpu")
WIDE = SMALL | {"head_dim": 16}
WINDOW = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "fewer heads of keys": ("llama", WIDE | {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "one head of keys": ("llama", WIDE | {"num_attention_heads": 4, "num_key_value_heads": 1}),
    "as many heads": ("qwen3", WIDE | {"num_attention_heads": 2, "num_key_value_heads": 2}),
    "smaller values": (
        "deepseek_v3",
        SMALL
        | {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
        | {"v_head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
        | {"first_k_dense_replace": 2},
    ),
    "windows in all layers": ("mistral", WIDE | {"sliding_window": 4}),
    "windows in some layers": (
        "qwen2",
        SMALL | WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
}
Attention = Literal["auto", "varlen", "sdpa", "cudnn", "eager", "flash_attention_2"]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace torch's kernel, and nothing around it; return the head counts of keys that it saw."""
    seen: list[int] = []

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *lengths: Any,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        cu_seq_q, cu_seq_k, max_q, max_k = lengths
        check_contract((query, key, value), cu_seq_q, max_q, window_size, enable_gqa=enable_gqa)
        assert cu_seq_k is cu_seq_q
        assert max_k == max_q
        seen.append(key.shape[1])
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return in_float64((query, key, value), cu_seq_q.tolist(), scale, window_size[0])

    monkeypatch.setattr(of_torch, "varlen_attn", kernel)
    # Only so that it can be compared by more than three digits.
    monkeypatch.setattr(varlen, "_HALF", (torch.bfloat16, torch.float32))
    return seen


def check_contract(
    tensors: Sequence[torch.Tensor],
    offsets: torch.Tensor,
    longest: int,
    window: tuple[int, int],
    *,
    enable_gqa: bool,
) -> None:
    """Assert what the docstring of torch's varlen_attn, and its C++ code, ask for."""
    query, key, value = tensors
    num_tokens, num_heads, size = query.shape
    assert key.shape == value.shape == (num_tokens, key.shape[1], size)
    assert num_heads % key.shape[1] == 0
    assert enable_gqa or num_heads == key.shape[1]
    assert query.dtype == key.dtype == value.dtype
    assert all(one.stride(-1) == 1 for one in tensors)
    assert size % 8 == 0
    assert size <= 256
    assert offsets.dtype == torch.int32
    assert offsets.is_contiguous()
    assert offsets.device == query.device
    lengths = offsets.diff()
    assert (int(offsets[0]), int(offsets[-1])) == (0, num_tokens)
    assert int(lengths.min()) > 0
    assert isinstance(longest, int)
    assert longest >= int(lengths.max())
    left, right = window
    assert right == 0
    assert left >= -1


def in_float64(
    tensors: Sequence[torch.Tensor], offsets: list[int], scale: float, left: int
) -> torch.Tensor:
    """Return attention sample by sample, token i of which sees max(0, i - left) to i."""
    query, key, value = tensors
    group = query.shape[1] // key.shape[1]
    rows = []
    for begin, end in pairwise(offsets):
        q = query[begin:end].double().transpose(0, 1)
        k, v = (one[begin:end].double().transpose(0, 1) for one in (key, value))
        k, v = (one.repeat_interleave(group, 0) for one in (k, v))
        scores = q @ k.transpose(1, 2) * scale
        at = torch.arange(end - begin)
        back = at[:, None] - at[None]
        sees = (back >= 0) & ((back <= left) if left >= 0 else True)
        rows.append((scores.masked_fill(~sees, float("-inf")).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(rows).to(query.dtype)


def config_with(
    attention: Attention, dtype: Any = "float32", *, checkpointing: bool = False
) -> RunConfig:
    config = RunConfig(profile="test")
    model = replace(config.model, attention=attention, dtype=dtype)
    return replace(config, model=replace(model, gradient_checkpointing=checkpointing))


def made(kind: str, shape: dict[str, Any], attention: Attention = "varlen") -> Any:
    return new_model(CONFIG_MAPPING[kind](**shape), config_with(attention), CPU)


def packed(model: Any) -> Batch:
    """Return three rows: several samples, some of one token; one sample; one, and padding."""
    some = random_samples(model, 0, (9, 1, 30, 1, 7, 48, 21))
    return collate_rows([some[:5], [some[5]], [some[6]]])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_varlen_is_what_a_mask_computes_forward_and_backward(
    name: str, checkpointing: bool, on_cpu: list[int]
) -> None:
    kind, shape = SHAPES[name]
    config = config_with("varlen", checkpointing=checkpointing)
    model = new_model(CONFIG_MAPPING[kind](**shape), config, CPU)
    batch = packed(model)
    loss, gradient = found(model, batch)
    assert on_cpu, "varlen was not used"
    on_cpu.clear()
    with masked(model):
        wanted_loss, wanted = found(model, batch)
    assert not on_cpu, "the mask's own path used varlen"
    assert model.config._attn_implementation == "varlen"
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    assert wanted.norm() > 0.1
    assert (gradient - wanted).norm() < 1e-5 * wanted.norm()


def test_rows_of_one_sample_each_are_told_where_padding_begins(on_cpu: list[int]) -> None:
    model = made(*SHAPES["fewer heads of keys"])
    batch = collate(random_samples(model, 0, (9, 1, 30)))
    assert batch.cu_seq_lens is not None
    assert batch.cu_seq_lens.tolist() == [0, 9, 30, 31, 60, 90]
    assert batch.max_length >= 30
    loss, _ = found(model, batch)
    with masked(model):
        wanted, _ = found(model, batch)
    assert loss == pytest.approx(wanted, rel=1e-6)
    assert set(on_cpu) == {2}


@pytest.mark.usefixtures("on_cpu")
def test_the_trial_passes_on_a_model_that_varlen_can_compute() -> None:
    model = made(*SHAPES["windows in some layers"])
    assert tried_of(model, config_with("auto")).why_masked is None
    assert model.config._attn_implementation == "varlen"


@pytest.mark.parametrize(
    ("kind", "shape", "why"),
    [
        ("gemma2", WIDE | {"sliding_window": 4}, "soft cap"),
        ("llama", SMALL | {"head_dim": 12}, "12 dimensions"),
        ("gpt_oss", WIDE | {"num_local_experts": 2, "num_experts_per_tok": 1}, "sinks"),
    ],
)
def test_what_varlen_cannot_compute_gets_a_mask_with_the_reason(
    kind: str, shape: dict[str, Any], why: str, on_cpu: list[int]
) -> None:
    model = made(kind, shape)
    assert why in (tried_of(model, config_with("auto")).why_masked or "")
    assert model.config._attn_implementation in ("sdpa", "eager")
    assert not on_cpu


@pytest.mark.usefixtures("on_cpu")
def test_a_soft_cap_and_dropout_are_seen_in_the_shape_too() -> None:
    described = CONFIG_MAPPING["gemma2"](**WIDE)
    assert why_not_varlen(described) == "its attention scores have a soft cap"
    # Evaluation has no dropout, so that only config.json tells.
    model = made("llama", WIDE | {"attention_dropout": 0.1})
    assert "attention_dropout" in (why_not_varlen(model.config) or "")
    with pytest.raises(NotForVarlenError, match="dropout"):
        SummedLoss(model)(*packed(model).arguments())


@pytest.mark.usefixtures("on_cpu")
def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(query: torch.Tensor, _: Any, value: torch.Tensor, *__: Any, **___: Any) -> Any:
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1)

    monkeypatch.setattr(of_torch, "varlen_attn", blind)
    model = made(*SHAPES["fewer heads of keys"])
    for parameter in model.parameters():  # so that attention has a say in the logits
        torch.nn.init.normal_(parameter, std=0.3)
    why = tried_of(model, config_with("auto")).why_masked
    assert why is not None
    assert "its logits differ by" in why


class OnlyForward(torch.autograd.Function):
    """A kernel whose backward is not made for this GPU, or for heads of this size."""

    @staticmethod
    def forward(_: Any, output: torch.Tensor) -> torch.Tensor:
        return output.clone()

    @staticmethod
    def backward(_: Any, *__: Any) -> Any:
        raise RuntimeError("no backward for head size 16 on this GPU")


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_kernel_without_a_backward_is_not_used_to_train(
    monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    kernel: Any = of_torch.varlen_attn
    config = config_with("auto")
    train = replace(config.train, method=method)
    model = add_method(made(*SHAPES["fewer heads of keys"]), train)
    assert settle_attention(model, config) is None
    assert all(weight.grad is None for weight in model.parameters())

    @wraps(kernel)  # what it takes is read from its signature
    def broken(*args: Any, **given: Any) -> Any:
        return OnlyForward.apply(kernel(*args, **given))  # type: ignore[no-untyped-call]

    monkeypatch.setattr(of_torch, "varlen_attn", broken)
    model = add_method(made(*SHAPES["fewer heads of keys"]), train)
    assert settle_attention(model, config) == "no backward for head size 16 on this GPU"
    for weight in model.parameters():
        weight.requires_grad_(False)  # only evaluated
    plain_model(model).set_attn_implementation("varlen")
    assert settle_attention(model, config) is None


def test_without_a_kernel_for_the_device_varlen_by_name_is_refused() -> None:
    model = made(*SHAPES["fewer heads of keys"])
    with pytest.raises(UserError) as caught:
        settle_attention(model.to(torch.bfloat16), config_with("varlen"))
    assert "model.attention = 'varlen'" in str(caught.value)
    assert "model.attention=auto" in str(caught.value)


def test_borders_are_told_only_to_attention_that_takes_them() -> None:
    model = made(*SHAPES["fewer heads of keys"], "sdpa")
    batch = packed(model)
    assert borders(model, batch.cu_seq_lens, batch.max_length) == {}
    model.config._attn_implementation = "flash_attention_2"
    told = borders(model, batch.cu_seq_lens, batch.max_length)
    assert set(told) == {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}


@pytest.mark.usefixtures("on_cpu")
def test_no_model_is_written_with_varlen_in_its_config(tmp_path: Path) -> None:
    model = made(*SHAPES["fewer heads of keys"])
    model.save_pretrained(tmp_path)
    assert "varlen" not in (tmp_path / "config.json").read_text()
    assert "llama" in json.loads((tmp_path / "config.json").read_text())["model_type"]
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"


def test_a_model_on_a_gpu_gets_varlen_and_one_on_a_cpu_does_not() -> None:
    described = CONFIG_MAPPING["qwen2"](**SMALL)
    config = config_with("auto", "bfloat16")
    assert choose_attention(config, described, on_cuda=True) == "varlen"
    assert choose_attention(config, described, on_cuda=False) is None
    assert choose_attention(config_with("auto", "float32"), described, on_cuda=True) is None
    assert choose_attention(config_with("cudnn"), described) == "sdpa"
    capped = CONFIG_MAPPING["gemma2"](**WIDE)
    assert choose_attention(config, capped, on_cuda=True) in (None, "flash_attention_2")


def test_rows_have_few_lengths_where_each_new_one_costs_time() -> None:
    model, cuda = made("qwen2", SMALL, "sdpa"), torch.device("cuda")
    config = replace(
        config_with("auto"), data=replace(RunConfig(profile="test").data, max_seq_length=4000)
    )
    assert row_lengths(config, model, CPU) == 1
    assert row_lengths(config, model, cuda) == 256
    model.config._attn_implementation = "varlen"
    assert row_lengths(config, model, cuda) == 1
    compiled = replace(config, model=replace(config.model, compile=True))
    assert row_lengths(compiled, model, cuda) == 256
    samples = random_samples(model, 0, (700, 400))
    assert collate_rows([samples], 256, 4000).input_ids.shape == (1, 1280)
    assert collate_rows([samples], 256, 1200).input_ids.shape == (1, 1200)
    assert collate_rows([samples], 256, 1000).input_ids.shape == (1, 1100)


@pytest.mark.long
@pytest.mark.usefixtures("on_cpu")
def test_no_architecture_gets_varlen_and_computes_something_else() -> None:
    num_used, on_gpu = 0, config_with("auto", "bfloat16")
    for kind in causal_architectures():
        try:
            described = small_config(kind)
            if choose_attention(on_gpu, described, on_cuda=True) != "varlen":
                continue
            model = enlarge(new_model(described, config_with("varlen"), CPU))
            if settle_attention(model, config_with("auto")) is not None:
                continue
        except Exception:  # noqa: BLE001, S112 - some cannot be made small, or run at all
            continue
        num_used += 1
        lengths = (40, 1, 23)
        samples = random_samples(model, 0, lengths)
        found = logits_of(model, collate_rows([samples]))[0]
        with masked(model):
            alone = logits_of(model, collate(samples))
        wanted = torch.cat([alone[i, :length] for i, length in enumerate(lengths)])
        assert (found - wanted).norm() < 1e-4 * wanted.norm(), kind
    assert num_used > 60


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_torchs_own_kernel_is_what_a_mask_computes(name: str) -> None:
    kind, shape = SHAPES[name]
    model = new_model(CONFIG_MAPPING[kind](**shape), config_with("varlen", "bfloat16"), CPU)
    model, arguments = model.to("cuda"), packed(model).arguments("cuda")
    assert settle_attention(model, config_with("varlen")) is None
    found = {}
    for how in ("varlen", "masked"):
        model.zero_grad()
        with masked(model) if how == "masked" else nullcontext():
            loss: torch.Tensor = SummedLoss(model)(*arguments)
            torch.autograd.backward(loss)
        found[how] = torch.cat([one.grad.flatten().float() for one in model.parameters()])
    wanted = found["masked"]
    assert wanted.norm() > 0.1
    assert (found["varlen"] - wanted).norm() < 0.03 * wanted.norm()


@pytest.mark.runs
@pytest.mark.parametrize("kind", ["gptj", "falcon", "gpt_oss"])
def test_a_model_that_varlen_cannot_compute_has_a_plan_for_a_gpu(kind: str) -> None:
    config = RunConfig(profile="test")
    config = replace(config, launch=replace(config.launch, num_ranks=1))
    found = trace(small_config(kind), config, "cuda")
    assert found.counts["num_parameters"] > 0
