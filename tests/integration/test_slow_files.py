"""A model on a network filesystem: a real one, in which every request takes a while."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.starts.slow_mount import NoMountError, slow_mount
from launch.config.resolve import resolve
from tests.running import SHORT, User, as_options, events_of
from train.model.make_checkpoint import make_checkpoint

_WEIGHTS_BYTES = 16 << 20
_LARGE = 32_768  # tokens of vocabulary


def reads(log: Path) -> list[tuple[int, int, str]]:
    """Return pid, bytes and path of each read."""
    lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
    return [(int(pid), int(num_bytes), path) for pid, _, num_bytes, path in lines]


def test_its_weights_are_read_in_by_large_reads_before_the_zygote_maps_them(user: User) -> None:
    config, _ = resolve("tiny", [], {})
    model, log = user.folder / "model", user.folder / "reads"
    shape = config.architecture | {"vocab_size": _LARGE}
    make_checkpoint(replace(config, architecture=shape), model)
    size = (model / "model.safetensors").stat().st_size
    assert size > _WEIGHTS_BYTES
    try:
        with slow_mount(model, "--log", str(log)) as point:
            out = user.output_of(*SHORT, *as_options(f"model.path={point}"))
    except NoMountError as error:
        pytest.skip(f"no filesystem of our own: {error}")
    assert "; read into memory meanwhile" in out
    by_pid = Counter[int]()
    for pid, num_bytes, path in reads(log):
        if path.endswith(".safetensors"):
            by_pid[pid] += num_bytes
    ranks_and_zygote = {event["pid"] for event in events_of(user.run(), "mark", "mem.start")}
    assert sum(by_pid[pid] for pid in ranks_and_zygote) < 0.02 * size
    assert size <= sum(by_pid.values()) < 1.1 * size
