"""launch.load: the outcome, and the reason, for every kind of checkpoint and location."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.resolve import resolve
from launch.files.checkpoint_files import Checkpoint
from launch.files.load_mode import choose_loading, decide
from launch.files.preparation import prepare
from machine.mounts import is_network
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.paths import create_run
from rundir.prepared import read_prepared
from rundir.starts import STARTS, start_of
from rundir.units import GIB
from tests.running import User

WHOLE = Checkpoint(
    files=(Path("/m/1.safetensors"), Path("/m/2.safetensors")),
    size_bytes=60 * GIB,
    dtypes=frozenset({"bfloat16"}),
    is_pickle=False,
    is_mapped=True,
)
PICKLE = replace(WHOLE, files=(Path("/m/pytorch_model.bin"),), is_pickle=True)


def configured(load: str = "auto", *, ranks: int = 8, dtype: str = "bfloat16") -> RunConfig:
    config = RunConfig(profile="test")
    return replace(
        config,
        model=replace(config.model, dtype=dtype),  # type: ignore[arg-type]
        launch=replace(config.launch, load=load, num_ranks=ranks),  # type: ignore[arg-type]
    )


CASES: dict[str, tuple[dict[str, Any], Checkpoint, str, int, str, str]] = {
    "local, of the right type": ({}, WHOLE, "ext4", 61, "mmap", "bfloat16 on ext4"),
    "in a container's layers": ({}, WHOLE, "overlay", 61, "mmap", "on overlay"),
    "over the network": ({}, WHOLE, "nfs4", 61, "broadcast", "lies on nfs4"),
    "another type": ({"dtype": "float32"}, WHOLE, "ext4", 61, "broadcast", "are bfloat16"),
    "a pickle that is mapped": ({}, PICKLE, "ext4", 61, "mmap", "share"),
    "an old pickle": ({}, replace(PICKLE, is_mapped=False), "ext4", 61, "broadcast", "old pickle"),
    "a pickle of two types": (
        {},
        replace(PICKLE, dtypes=frozenset({"bfloat16", "float32"})),
        "ext4",
        61,
        "broadcast",
        "bfloat16 and float32",
    ),
    "larger than memory": ({}, WHOLE, "ext4", 59, "broadcast", "61,440 MiB and 60,416 MiB"),
    "one rank": ({"ranks": 1, "dtype": "float32"}, WHOLE, "nfs", 1, "mmap", "one rank"),
    "mmap asked for": ({"load": "mmap"}, WHOLE, "nfs", 1, "mmap", "launch.load=mmap"),
    "broadcast asked for": ({"load": "broadcast"}, WHOLE, "xfs", 99, "broadcast", "launch.load="),
}


@pytest.mark.parametrize("case", CASES)
def test_what_auto_comes_to_has_its_reason(case: str) -> None:
    settings, checkpoint, filesystem, available_gib, load, reason = CASES[case]
    found = decide(configured(**settings), checkpoint, filesystem, available_gib * GIB)
    assert found.load == load
    assert reason in found.reason
    assert (found.advice is None) == (not checkpoint.is_pickle)


@pytest.mark.parametrize(
    ("filesystem", "available_gib", "local", "over_network"),
    [("ext4", 61, 2, 0), ("ext4", 59, 0, 0), ("nfs4", 61, 0, 2), ("nfs4", 59, 0, 0)],
)
def test_only_files_that_fit_into_memory_are_read_ahead(
    filesystem: str, available_gib: int, local: int, over_network: int
) -> None:
    loading = decide(configured(), WHOLE, filesystem, available_gib * GIB)
    files = [str(file) for file in WHOLE.files]
    assert (loading.read_ahead, loading.read_in) == (files[:local], files[:over_network])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nfs", True),
        ("lustre", True),
        ("fuse.sshfs", True),
        ("fuse.juicefs", True),
        ("ext4", False),
        ("tmpfs", False),
        ("fuseblk", False),
        ("fuse.fuse-overlayfs", False),
    ],
)
def test_network_filesystems_are_known_by_type(kind: str, expected: bool) -> None:
    assert is_network(kind) == expected


def test_with_random_weights_no_file_is_looked_for(tmp_path: Path) -> None:
    assert choose_loading(configured("random"), tmp_path / "none").load == "random"
    with pytest.raises(UserError, match=r"config\.json"):
        choose_loading(configured("mmap"), tmp_path / "none")


@pytest.mark.long
def test_the_32b_profile_with_random_weights_takes_no_network_and_no_disk(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = user.folder / "cache"
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", user.environ["AIRLOCK_RUNS_DIR"])
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(cache))
    data = user.folder / "data.jsonl"
    data.write_text('{"prompt": "a", "response": "b"}\n')
    config, sources = resolve("32b", ["launch.load=random", f"data.path={data}"], {})
    run = create_run("32b")
    run.config.write_text(config_text(config, sources))
    env = user.environ | {"HTTPS_PROXY": "http://127.0.0.1:1", "AIRLOCK_CACHE_DIR": str(cache)}
    prepared = prepare(config, run, resume_from=None, env=env, signals=Signals())
    assert read_prepared(run) == prepared
    assert prepared.loading.load == "random"
    sizes = [file.stat().st_size for file in cache.rglob("*") if file.is_file()]
    assert sum(sizes) < 1_000_000


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("start", ["warm", "imports", "cold"])
@pytest.mark.parametrize("load", ["auto", "mmap", "broadcast", "random"])
def test_a_combination_is_in_the_table_or_the_nearest_one_is_named(
    start: str, load: str, method: str
) -> None:
    settings = [f"launch.start={start}", f"launch.load={load}", f"train.method={method}"]
    config, _ = resolve("tiny", settings, {})
    if start == "warm" and load in ("broadcast", "random"):
        with pytest.raises(UserError) as raised:
            start_of(config)
        assert raised.value.do.startswith("--set launch.start=imports ")
        return
    row = start_of(config)
    assert row in STARTS
    assert (row.start, row.load) == (start, "mmap" if load == "auto" else load)


@pytest.mark.parametrize("load", ["broadcast", "random"])
def test_who_only_says_how_to_load_gets_a_start_that_does_so(load: str) -> None:
    config, sources = resolve("tiny", [], {"AIRLOCK_LAUNCH_LOAD": load})
    assert (config.launch.start, sources["launch.start"]) == (
        "imports",
        f"as launch.load is {load}",
    )
    config, _ = resolve("tiny", [f"launch.load={load}", "launch.start=cold"], {})
    assert config.launch.start == "cold"
    assert resolve("tiny", ["launch.load=mmap"], {})[0].launch.start == "warm"
