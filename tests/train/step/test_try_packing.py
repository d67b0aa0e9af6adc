"""The choice of what is done for a model whose samples see each other in a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rundir.config import RunConfig
from rundir.errors import UserError
from tests.train.model.test_apart import made
from train.batches.batch import collate_rows
from train.step.try_attention import logits_of, random_samples
from train.step.try_packing import NOT_TRIED, check_packing, follow_packing, settle_packing


def config_of(packing: Any) -> RunConfig:
    config = RunConfig(profile="test")
    return replace(config, data=replace(config.data, packing=packing))


@pytest.mark.parametrize("packing", ["auto", True])
def test_a_model_that_packs_is_left_as_it_is(packing: Any) -> None:
    model = made("qwen3")
    assert settle_packing(model, config_of(packing)) is NOT_TRIED
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("packing", ["auto", True])
@pytest.mark.parametrize(
    ("kind", "help_"), [("lfm2", "layers"), ("granitemoehybrid", "layers and mask")]
)
def test_a_hybrid_gets_help_on_every_rank(kind: str, help_: str, packing: Any) -> None:
    first, other = made(kind), made(kind)
    packed = settle_packing(first, config_of(packing))
    assert (packed.packing, packed.help_) == (True, help_)
    assert "samples share rows, and 1 × " in packed.line  # noqa: RUF001
    with pytest.raises(UserError):
        check_packing(other)
    follow_packing(other, config_of(packing), packed)
    check_packing(other)
    batch = collate_rows([random_samples(first, 0, (9, 4, 12))])
    assert torch.equal(logits_of(first, batch), logits_of(other, batch))


@pytest.mark.parametrize("kind", ["bloom", "gpt_oss", "xlstm"])
def test_a_model_that_cannot_be_helped_gets_batches_by_length_or_is_refused(kind: str) -> None:
    model = made(kind)
    packed = settle_packing(model, config_of("auto"))
    assert (packed.packing, packed.help_) == ("by_length", "")
    assert "by length: samples of like length share batches, each in a row of its own, as " in (
        packed.line
    )
    assert kind in packed.line
    assert "\n" not in packed.line
    assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(UserError, match="see each other") as raised:
        settle_packing(model, config_of(True))
    assert raised.value.do == "--set data.packing=auto"


def test_help_that_does_not_help_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(inner: Any, apart: Any, found: Any) -> Any:
        return inner(apart, found).flip(1)  # tokens come back in other places

    from train.model.apart import Apart

    inner = Apart._together
    monkeypatch.setattr(Apart, "_together", lambda apart, found: wrong(inner, apart, found))
    model = made("lfm2")
    assert settle_packing(model, config_of("auto")).packing == "by_length"
    assert not any("forward" in vars(module) for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("packing", [False, "by_length"])
def test_what_was_asked_for_is_not_tried(packing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.step.try_packing.check_packing", lambda *_, **__: 1 / 0)
    assert settle_packing(made("qwen3"), config_of(packing)).packing == packing
