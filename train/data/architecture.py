"""A check that a model is a causal language model, from its config.json, before any rank starts.

Also the reasons why samples cannot share a row in some model types; that they cannot is found out
by a trial (train/step/selftest.py).
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rundir.errors import ExitCode, UserError

# Encoders whose class for causal models is causal only with is_decoder: true.
_ENCODERS = (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert reformer "
    "rembert roberta roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
)
# Of transformers: model types with a causal language model, and those that take images beside text.
_TABLES = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
# Of these, models that do not predict the next token of a text.
_OTHER_GOALS = {
    "diffusion_gemma": "a diffusion model, which writes a block of text at once",
    "pi0": "a model of a robot's actions",
    "evolla": "a model of proteins",
}

_STATE = "the state of its layers runs on from one sample to the next"
_CONVOLVED = "its convolutions reach back into the sample before"
_NO_POSITIONS = "its attention is not told where a sample begins"
_OWN_MASK = "transformers makes its mask without looking at positions"
_ALIBI = "its attention weighs by distance in the row (ALiBi), not by position in a sample"
_WHY_NOT_APART = {
    _STATE: "mamba mamba2 falcon_mamba jamba bamba zamba zamba2 falcon_h1 nemotron_h rwkv xlstm "
    "granitemoehybrid recurrent_gemma qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe "
    "qwen3_5_moe_text qwen4_exp qwen4_exp_text kimi_linear olmo_hybrid minimax bailing_hybrid",
    _CONVOLVED: "lfm2 lfm2_moe lfm3 zaya inkling_text inkling2_text",
    _NO_POSITIONS: "xglm biogpt openai-gpt opt xlnet xlm cpmant trocr whisper",
    _OWN_MASK: "gpt_oss afmoe falcon qwen2_vl qwen2_5_vl glm4v glm46v glm_ocr paddleocr_vl",
    _ALIBI: "bloom mpt",
}
_REASONS = {kind: why for why, kinds in _WHY_NOT_APART.items() for kind in kinds.split()}


def check_is_causal(config: dict[str, Any], model_path: Path) -> None:
    """Raise UserError if a config.json is not that of a causal language model."""
    kind = str(config.get("model_type", ""))
    known = known_kinds()
    if config.get("is_encoder_decoder"):
        what = "an encoder-decoder, which maps one text to another"
    elif kind in _OTHER_GOALS:
        what = _OTHER_GOALS[kind]
    elif kind in _ENCODERS.split() and not config.get("is_decoder"):
        what = "an encoder, which reads in both directions"
    elif kind and known and kind not in known and "auto_map" not in config:
        what = "no language model that transformers knows"
    else:
        return
    named = ", ".join(config.get("architectures") or [kind])
    raise UserError(
        f"{model_path} is {what} ({named}): Airlock trains causal language models",
        do="--set model.path=… with a causal one, such as Qwen/Qwen3-0.6B",
        code=ExitCode.PREFLIGHT,
    )


def why_not_apart(kind: str) -> str:
    """Return a prefix: `kind`, and if known why samples of one row see each other in it."""
    return f"{kind}: {_REASONS[kind]}: " if kind in _REASONS else f"{kind}: "


@cache
def known_kinds() -> frozenset[str]:
    """Return the model types that transformers can train as language models; empty if unknown.

    Read from its source: importing it would import torch, which takes seconds.
    """
    spec = find_spec("transformers")
    folders = spec.submodule_search_locations if spec else None
    kinds = set[str]()
    try:
        file = Path(next(iter(folders or []))) / "models/auto/modeling_auto.py"
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in _TABLES:
                assert isinstance(node.value, ast.Call)
                kinds |= dict(ast.literal_eval(node.value.args[0])).keys()
    except (OSError, StopIteration, SyntaxError, ValueError, AssertionError):
        return frozenset()
    return frozenset(kinds)
