"""GPUs are recognised by the names that people use for them."""

from __future__ import annotations

import pytest

from launch.plan.catalogue import CATALOGUE, COLUMNS, GpuKind, gpu_kind
from rundir.errors import UserError
from rundir.units import GIB

SPELLINGS = {
    "H100-80G": ("h100", "H100-80G", "h100 80GB", "NVIDIA H100 80GB HBM3"),
    "A100-80G": ("80G", "80gib"),
    "A100-40G": ("A100-SXM4-40GB",),
    "4090": ("NVIDIA GeForce RTX 4090", "4090"),
    "V100-32G": ("Tesla V100-SXM2-32GB",),
    "L40S-48G": ("l40s",),
    "H200-141G": ("NVIDIA H200",),
    "B200-180G": ("b200",),
    "24G": ("24g",),
    "A10G-24G": ("a10g",),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_gpu_is_found_however_its_name_is_spelt(name: str) -> None:
    assert {gpu_kind(spelling).name for spelling in SPELLINGS[name]} == {name}


def test_an_unknown_gpu_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UserError, match="no GPU 'h101'") as caught:
        gpu_kind("h101")
    assert "--gpu H100-80G" in caught.value.do


@pytest.mark.parametrize("name", ["", "-", "GPU", "nvidia"])
def test_what_names_nothing_is_no_gpu(name: str) -> None:
    with pytest.raises(UserError, match="no GPU"):
        gpu_kind(name)


def test_every_gpu_has_less_memory_than_its_name_says_and_a_source() -> None:
    for kind in CATALOGUE:
        assert 10 * GIB < kind.memory_bytes < 200 * GIB
        assert kind.source
        said = kind.name.rpartition("-")[2]
        if said.endswith("G"):
            assert kind.memory_bytes <= int(said[:-1]) * GIB


def test_no_name_is_used_for_two_gpus() -> None:
    names = [name for kind in CATALOGUE for name in (kind.name, *kind.others)]
    assert len(set(names)) == len(names)


def test_the_columns_go_from_small_to_large() -> None:
    sizes = [kind.memory_bytes for kind in COLUMNS]
    assert sizes == sorted(sizes)


NEWER = """
NVIDIA H100 80GB HBM3, NVIDIA H200, NVIDIA H20, NVIDIA GH200 480GB, NVIDIA B200, NVIDIA GB200,
NVIDIA GeForce RTX 5090, NVIDIA RTX PRO 6000 Blackwell Server Edition
"""
OLDER = """
NVIDIA A100-SXM4-80GB, NVIDIA A40, NVIDIA L40S, NVIDIA GeForce RTX 4090,
NVIDIA RTX 5000 Ada Generation, Tesla V100-SXM2-32GB
"""


@pytest.mark.parametrize(("names", "is_newer"), [(NEWER, True), (OLDER, False)])
def test_hopper_and_later_are_known_by_nvmls_names(names: str, is_newer: bool) -> None:
    for name in names.split(","):
        assert GpuKind(name.strip(), 1, "a test").is_hopper_or_later is is_newer, name


def test_of_the_catalogue_these_are_hopper_or_later() -> None:
    newer = {kind.name for kind in CATALOGUE if kind.is_hopper_or_later}
    assert newer == {"5090", "H100-80G", "H200-141G", "B200-180G"}
