"""Compiled blocks compute the same as before, are compiled once, and can still be recomputed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.train.model.test_models import SHAPES, found, made, samples
from train.batches.batch import collate_rows
from train.model.build import blocks_of, compile_blocks, inference, plain_model


@pytest.mark.parametrize("kind", SHAPES)
def test_blocks_are_the_layers_of_every_architecture(kind: str) -> None:
    model = made(kind, method="lora" if kind == "qwen2" else "full")
    assert len(blocks_of(plain_model(model))) == 2
    assert len({type(one) for one in blocks_of(plain_model(model))}) == 1


@pytest.mark.long  # minutes: a compiler runs
@pytest.mark.skipif(" " in torch.__file__, reason="torch cannot link in a path with a space")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_compiled_model_has_the_gradients_of_one_that_is_not(checkpointing: bool) -> None:
    torch.compiler.reset()
    counters.clear()
    some = samples()
    batches = [collate_rows([some[:3], some[3:5]]), collate_rows([some[:2]])]
    model: Any = made("qwen3", method="lora")
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    expected = [found(model, batch) for batch in batches]
    assert compile_blocks(model) == 2
    for batch, (loss, gradient) in zip(batches, expected, strict=True):
        compiled_loss, compiled_gradient = found(model, batch)
        assert compiled_loss == pytest.approx(loss, rel=1e-5)
        assert (compiled_gradient - gradient).norm() < 1e-4 * gradient.norm()
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]


def test_a_compiled_model_answers_uncompiled_so_that_no_answer_is_compiled_for() -> None:
    torch.compiler.reset()
    compiled: list[int] = []

    def compiler(graph: Any, _: Any) -> Any:
        compiled.append(1)
        return graph.forward

    model: Any = made("qwen3", method="full")
    for block in blocks_of(plain_model(model)):
        block.compile(backend=compiler)
    ids = torch.arange(6)[None]
    with inference(model):
        model.generate(input_ids=ids, max_new_tokens=5, do_sample=False)
    assert not compiled
    with torch.no_grad():
        model(input_ids=ids)
    assert compiled
