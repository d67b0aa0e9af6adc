"""Every case of `python -m benchmarks.gpu`: what it needs and shows, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.gpus.address import address_space
from benchmarks.gpus.attention import attention
from benchmarks.gpus.autocast import autocast
from benchmarks.gpus.files import write_files
from benchmarks.gpus.fork import compare_starts
from benchmarks.gpus.peers import compare
from benchmarks.gpus.resume import resumed
from benchmarks.gpus.run import Figures, Place, prefixed
from benchmarks.gpus.staging import staging
from benchmarks.gpus.start import starts
from benchmarks.gpus.training import Case, Steps, train

Measure = Callable[[Place, Steps, float], Iterator[Figures]]  # the last: seconds that it may take

_FULL_ROWS = Case(name="14b-lora", profile="14b", method="lora")
_MIXED = Case(name="14b-mixed", profile="14b", method="lora", rows="mixed", num_rows=24)
_QLORA_14B = Case(name="14b-qlora", profile="14b", method="qlora")
_QLORA_32B = Case(name="32b-qlora", profile="32b", method="qlora")
_LORA_32B = Case(name="32b-lora", profile="32b", method="lora")
_FULL_14B = Case(name="14b-full", profile="14b", method="full", num_rows=1)
_FULL_7B = Case(
    name="7b-full",
    profile="14b",
    method="full",
    architecture={  # Qwen2.5-7B's config.json: 7,615,616,512 parameters
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    },
)
TRAININGS = (_FULL_ROWS, _MIXED, _QLORA_14B, _QLORA_32B, _LORA_32B, _FULL_7B, _FULL_14B)
_HALF = ("model.dtype=bfloat16", "train.method=lora")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A case: GPU memory and disk that it needs, GiB, and minutes that it is expected to take."""

    name: str
    shows: str
    gpu_gib: float
    disk_gib: float = 1
    minutes: float
    measure: Measure


def _training(case: Case, shows: str, gpu_gib: float, minutes: float = 1.5) -> Entry:
    return Entry(
        name=case.name,
        shows=shows,
        gpu_gib=gpu_gib,
        minutes=minutes,
        measure=lambda place, steps, timeout_s: train(case, place, steps, timeout_s),
    )


def _attention(name: str, value: str, shows: str) -> Entry:
    """Return the mixed rows with one implementation of attention."""

    def measure(place: Place, steps: Steps, timeout_s: float) -> Iterator[Figures]:
        # flash_attention_2 takes no weights of float32, which `tiny` has.
        case = replace(
            _MIXED, name=name, settings=(f"model.attention={value}", "model.dtype=bfloat16")
        )
        yield from train(case, place, steps, timeout_s)

    return Entry(name=name, shows=shows, gpu_gib=40, minutes=1.5, measure=measure)


def _compiled(place: Place, steps: Steps, timeout_s: float) -> Iterator[Figures]:
    """Train the mixed rows without and with model.compile; the first step compiles."""
    speeds: Figures = {}
    for name, value in (("eager", "false"), ("compiled", "true")):
        case = replace(_MIXED, name=f"14b-compile-{name}", settings=(f"model.compile={value}",))
        for found in prefixed(name, train(case, place, steps, timeout_s / 2)):
            yield found
            speeds |= {key: one for key, one in found.items() if key.endswith("_tokens_per_s")}
    yield {"compiled_to_eager": speeds["compiled_tokens_per_s"] / speeds["eager_tokens_per_s"]}


def _named(name: str) -> Case:
    return replace(_MIXED, name=name)


ENTRIES = (
    _training(_MIXED, "goal: 0.85 of its roofline, on mixed lengths, packed", 40),
    _training(_FULL_ROWS, "goal: the plan's peak within 5 %; 0.85 of its roofline", 40),
    Entry(
        name="14b-files",
        shows="random bfloat16 shards, written once; 14b-start, -staging and -peers need them",
        gpu_gib=6,
        disk_gib=30,
        minutes=2,
        measure=lambda place, _steps, timeout_s: write_files(place, timeout_s),
    ),
    Entry(
        name="14b-peers",
        shows="goal: at least 1.3 times the Trainer's tokens/s, at equal loss; accelerate beside",
        gpu_gib=70,
        disk_gib=31,
        minutes=6,
        measure=partial(compare, _named("14b-peers")),
    ),
    Entry(
        name="14b-start",
        shows="goal: warm is bitwise as cold wherever cold is as cold; seconds of each phase",
        gpu_gib=40,
        disk_gib=31,
        minutes=4,
        measure=lambda place, _steps, timeout_s: starts(_named("14b-start"), place, timeout_s),
    ),
    Entry(
        name="vmpeak",
        shows="goal: VmPeak after NCCL and a step below a rank's RLIMIT_AS",
        gpu_gib=2,
        minutes=0.5,
        measure=lambda place, _steps, timeout_s: address_space(place, timeout_s, expandable=False),
    ),
    Entry(
        name="vmpeak-expandable",
        shows="the same with expandable segments",
        gpu_gib=2,
        minutes=0.5,
        measure=lambda place, _steps, timeout_s: address_space(place, timeout_s, expandable=True),
    ),
    Entry(
        name="attention-kernels",
        shows="milliseconds of attention alone: mask with cuDNN on and off, varlen, flash",
        gpu_gib=16,
        minutes=0.5,
        measure=lambda place, _steps, timeout_s: attention(place, timeout_s),
    ),
    Entry(
        name="14b-autocast",
        shows="a LoRA step with float32 adapters, and under autocast",
        gpu_gib=60,
        minutes=1,
        measure=lambda place, _steps, timeout_s: autocast(place, timeout_s),
    ),
    Entry(
        name="14b-resume",
        shows="goal: a run that was killed resumes with the same losses and no more memory",
        gpu_gib=40,
        disk_gib=4,
        minutes=4,
        measure=lambda place, _steps, timeout_s: resumed(
            replace(_FULL_ROWS, name="14b-resume"), place, timeout_s
        ),
    ),
    # Random weights are made whole, in bfloat16, before they are quantised.
    _training(_QLORA_14B, "goal: the plan within 5 % for QLoRA, of what is used once loaded", 28),
    _attention("14b-mixed-mask", "sdpa", "mixed lengths with a mask, cuDNN off"),
    _attention("14b-mixed-varlen", "varlen", "mixed lengths, sample by sample, torch's own"),
    _attention("14b-mixed-flash", "flash_attention_2", "the same by the package flash-attn"),
    _attention("14b-mixed-cudnn", "cudnn", "mixed lengths with a mask, cuDNN on"),
    Entry(
        name="14b-staging",
        shows="seconds from mmap to the device, from disk and memory; pageable, pinned",
        gpu_gib=6,
        disk_gib=30,
        minutes=1.5,
        measure=lambda place, _steps, timeout_s: staging(place, timeout_s),
    ),
    _training(_FULL_7B, "full fine-tuning of 7B: speed, and the plan's peak within 5 %", 70, 3),
    Entry(
        name="14b-compile",
        shows="model.compile on and off: tokens/s, seconds to the first step",
        gpu_gib=40,
        minutes=5,
        measure=_compiled,
    ),
    Entry(
        name="tiny-fork",
        shows="warm and cold losses of `tiny`, full, bit by bit; CUDA in the zygote",
        gpu_gib=2,
        minutes=1,
        measure=lambda place, _steps, timeout_s: compare_starts(place, timeout_s, name="tiny-fork"),
    ),
    Entry(
        name="tiny-fork-lora",
        shows="the same with LoRA in bfloat16",
        gpu_gib=2,
        minutes=1,
        measure=lambda place, _steps, timeout_s: compare_starts(
            place, timeout_s, name="tiny-fork-lora", settings=_HALF
        ),
    ),
    _training(_LORA_32B, "goal: the plan's peak within 5 %; 32B LoRA on one GPU", 72, 3),
    _training(_QLORA_32B, "goal: the plan within 5 % for QLoRA of 32B", 62, 4),
    _training(_FULL_14B, "full fine-tuning of 14B, where its states fit", 130, 4),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
