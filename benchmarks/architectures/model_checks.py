"""The checks of one architecture (benchmarks/models.py), in a process of its own."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PretrainedConfig

from benchmarks.architectures.small_models import VOCABULARY, enlarge, small_config
from rundir.config import RunConfig
from rundir.errors import UserError
from train.batches.batch import collate, collate_rows
from train.data.architecture import check_is_causal
from train.data.dataset import Sample, prompted
from train.model.build import add_method, load_model, merged, new_model
from train.model.loss import SummedLoss
from train.model.multimodal import known_class
from train.model.norms import use_torch_norms
from train.step.selftest import Tried, tried_of
from train.trace.step_trace import trace

Method = Literal["full", "lora"]
_DTYPES = ("float32", "bfloat16")
_METHODS: tuple[Method, ...] = ("full", "lora")
_LENGTHS = (19, 7, 30, 2, 11)
_LIMITS = {  # of values that are equal in theory
    "loss_float32": 1e-6,  # relative, of samples in rows against each alone in its own class
    "cosine_float32": 1e-4,  # 1 - cosine of the gradients of all trained weights
    "loss_bfloat16": 2e-3,  # relative, on identical rows
    "merge_float32": 1e-4,  # of the largest logit, before and after merging adapters
    "merge_bfloat16": math.inf,  # rounded to three digits, as every run reports; it flips routing
    "export": 1e-6,  # of the largest logit, the merged model against its reloaded files
}


@dataclass(kw_only=True)
class Case:
    """One way to train one architecture, and the results."""

    method: Method
    dtype: str
    verdict: str = "right"  # right, refused or wrong
    reason: str = ""
    packs: bool = False
    why_not: str = ""  # why it does not pack
    head: str = ""
    attention: str = ""
    num_unused: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    plan: str = ""  # empty, or why there is none
    lora_share: float | None = None


def check(kind: str) -> tuple[str, list[Case]]:
    """Return (why it cannot be made small, or ""; its cases)."""
    try:
        described = small_config(kind)
        auto: Any = AutoModelForCausalLM
        ids = torch.ones((1, 4), dtype=torch.long)
        auto.from_config(described)(input_ids=ids, use_cache=False)
    except Exception as error:  # noqa: BLE001 - any model's code
        return _words(error), []
    return "", [_case(kind, method, dtype) for dtype in _DTYPES for method in _METHODS]


def _case(kind: str, method: Method, dtype: str) -> Case:
    case = Case(method=method, dtype=dtype)
    try:
        _look(case, small_config(kind))
    except UserError as error:
        case.verdict, case.reason = "refused", _words(error)
    except Exception as error:  # noqa: BLE001 - a run would die of it
        case.verdict, case.reason = "wrong", f"{type(error).__name__}: {_words(error)}"
    return case


def _look(case: Case, described: PretrainedConfig) -> None:
    fields = described.to_dict() | {"model_type": described.model_type}
    check_is_causal(fields, Path(described.model_type))
    config = _config(case)
    model = add_method(_loaded(described, config), config.train)
    tried = tried_of(model, config)
    case.packs = tried.packed.packing is True
    if tried.packed.line:
        case.why_not = tried.packed.line
    case.head, case.num_unused = tried.head, len(tried.unused)
    _draw_adapters(model, tried)
    plain = model.get_base_model() if case.method == "lora" else model
    case.attention = plain.config._attn_implementation
    if case.method == "lora":
        case.lora_share = _share(model)
    _compare(case, model, tried)
    _export(case, model)
    try:
        trace(described, config, "cuda")
    except Exception as error:  # noqa: BLE001 - a run goes on without
        case.plan = f"{type(error).__name__}: {_words(error)}"


def _loaded(described: PretrainedConfig, config: RunConfig) -> Any:
    """Load a model as a run does: a new one has other bfloat16 buffers than one that is loaded."""
    made = enlarge(new_model(described, config, torch.device("cpu")))
    if type(made.config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return made  # a text model of a multimodal one; it is refused
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return load_model(config, Path(folder), torch.device("cpu"))


def _compare(case: Case, model: Any, tried: Tried) -> None:
    """Compare our loss and gradients with those of the model's own class."""
    rows = collate_rows([samples()[:3], samples()[3:]]) if case.packs else collate(samples())
    summed = SummedLoss(model, head=tried.head)
    if case.dtype == "bfloat16":  # a sample at a time: rows are computed in another shape
        for sample in samples():
            with torch.no_grad():
                torch.manual_seed(0)  # some models route at random
                ours = summed(*collate([sample]).arguments())
                torch.manual_seed(0)
                _note(case, "loss_bfloat16", _relative(ours, _own_loss(model, sample)))
        return

    def of_own() -> torch.Tensor:
        losses = [_own_loss(model, sample) for sample in samples()]
        return torch.stack(losses).sum()

    own, own_gradient = _gradient(model, of_own)
    ours, gradient = _gradient(model, lambda: summed(*rows.arguments()))
    _note(case, "loss_float32", _relative(ours, own))
    cosine = own_gradient @ gradient / (own_gradient.norm() * gradient.norm())
    _note(case, "cosine_float32", 1 - float(cosine))


def _own_loss(model: Any, sample: Sample) -> torch.Tensor:
    """Return the summed loss of the model's own class, for one sample in its own row."""
    batch = collate([sample])
    output = model(input_ids=batch.input_ids, use_cache=False)
    logits, labels = output.logits[0, :-1].float(), batch.labels[0, 1:]
    loss: torch.Tensor = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return loss


def _gradient(model: Any, loss_of: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (loss, gradient of all trained weights, concatenated)."""
    model.zero_grad()
    loss = loss_of()
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [p for p in model.parameters() if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return loss.detach(), torch.cat([part.flatten().double() for part in parts])


def _export(case: Case, model: Any) -> None:
    """Compare the outputs of the trained, the merged and the reloaded model."""
    model.eval()
    ids = torch.arange(5, 21)[None]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        before = model(input_ids=ids, use_cache=False).logits.float()
        plain = merged(model)
        inside = plain(input_ids=ids, use_cache=False).logits.float()
        plain.save_pretrained(folder)
        dtype = getattr(torch, case.dtype)
        # Not Emu3's class of text alone: it reads no files of the whole model.
        reader: Any = known_class(plain.config)
        again = reader.from_pretrained(folder, dtype=dtype).eval()
        use_torch_norms(again)  # as when it was trained: in bfloat16 they round once less
        after = again(input_ids=ids, use_cache=False).logits.float()
    largest = before.abs().max()
    _note(case, f"merge_{case.dtype}", float((before - inside).abs().max() / largest))
    _note(case, "export", float((inside - after).abs().max() / largest))


def _share(model: Any) -> float:
    """Return the share of the weights between embedding and head that have adapters."""
    from train.model.adapters import covered

    reached, total, _ = covered(model)
    return reached / max(1, total)


def _config(case: Case) -> RunConfig:
    config = RunConfig(profile="benchmark")
    return replace(
        config,
        model=replace(config.model, dtype=case.dtype),  # type: ignore[arg-type]
        train=replace(config.train, method=case.method, global_batch_size=2, lora_rank=4),
        data=replace(config.data, max_seq_length=64),
        launch=replace(config.launch, num_ranks=2, device="cpu"),
    )


def _draw_adapters(model: Any, tried: Tried) -> None:
    """Randomise the adapters so that they have an effect: initially one of the two is zero.

    Those that the model's code never uses stay zero, as in training.
    """
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name and name not in tried.unused:
                parameter.normal_(std=0.02)


def samples() -> list[Sample]:
    """Return five samples of different lengths."""
    draw = np.random.default_rng(3).integers
    return [prompted(draw(5, VOCABULARY, n).astype(np.int32), n // 3) for n in _LENGTHS]


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs() / other.abs().clamp(min=1e-9))


def _note(case: Case, name: str, value: float) -> None:
    """Keep the largest value; beyond its limit the case is wrong."""
    case.figures[name] = max(value, case.figures.get(name, 0.0))
    if not value <= _LIMITS[name] and case.verdict == "right":
        case.verdict, case.reason = "wrong", f"{name} {value:.1e}, limit {_LIMITS[name]:.0e}"


def _words(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
