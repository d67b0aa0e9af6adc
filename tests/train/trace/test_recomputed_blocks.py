"""What any number of recomputed blocks takes follows from the traces of none and of all."""

from __future__ import annotations

import pytest

from launch.plan.recompute import between
from rundir.config import RunConfig
from tests.train.trace.test_footprint import ARCHITECTURES, configured
from train.trace.estimate import footprint


@pytest.mark.runs
@pytest.mark.parametrize(
    ("name", "method", "is_short"),
    [
        ("qwen3", "lora", True),
        pytest.param("qwen3", "full", False, marks=pytest.mark.long),
        pytest.param("gemma3", "lora", False, marks=pytest.mark.long),
    ],
)
def test_none_and_all_recomputed_tell_what_any_number_of_blocks_takes(
    name: str, method: str, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_blocks(blocks: bool | int) -> RunConfig:
        shape = ARCHITECTURES[name] | {"vocab_size": 64}
        options = {"dtype": "bfloat16", "max_seq_length": 512, "method": method}
        return configured(shape, gradient_checkpointing=blocks, **options)

    none, every = (footprint(with_blocks(blocks), "cuda") for blocks in (False, True))
    assert every.num_blocks == ARCHITECTURES[name]["num_hidden_layers"]
    assert none.peak_bytes > 2 * every.peak_bytes
    monkeypatch.setattr("train.trace.estimate._period", lambda _: 0)
    for num in (every.num_blocks // 2,) if is_short else (1, every.num_blocks - 1):
        whole = footprint(with_blocks(num), "cuda")
        told = between(none, every, num)
        assert told.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.05)
        assert told.activations_bytes == pytest.approx(whole.activations_bytes, rel=0.05)
        assert told.matrix_flops == pytest.approx(whole.matrix_flops, rel=1e-3)
        assert told.other_bytes == pytest.approx(whole.other_bytes, rel=0.02)
    assert between(none, every, 0) == none
    assert between(none, every, every.num_blocks) == every
