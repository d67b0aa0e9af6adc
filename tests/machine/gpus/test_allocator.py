"""PYTORCH_ALLOC_CONF: the user's settings are checked, and extended where they leave room."""

from __future__ import annotations

import pytest

from machine.gpus.allocator import users_alloc_conf, with_expandable_segments
from rundir.errors import UserError

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    "conf",
    [
        "max_split_size_mb:128",
        "max_split_size_mb:128, expandable_segments:True",
        "roundup_power2_divisions:[256:1,512:2,>:4],garbage_collection_threshold:0.8",
    ],
)
@pytest.mark.parametrize("name", [NEW, OLD])
def test_settings_are_found_under_either_name_and_must_not_differ(name: str, conf: str) -> None:
    assert users_alloc_conf({name: conf}) == conf
    assert users_alloc_conf({NEW: conf, OLD: conf}) == conf
    assert users_alloc_conf({NEW: "", OLD: ""}) == users_alloc_conf({}) == ""
    with pytest.raises(UserError, match=r"max_split_size_mb:1 .* differ") as raised:
        users_alloc_conf({NEW: "max_split_size_mb:1", OLD: "max_split_size_mb:2"})
    assert raised.value.do.startswith(f"unset {OLD}")


@pytest.mark.parametrize(
    ("conf", "what", "good"),
    [
        (",expandable_segments:True", "an empty entry", "expandable_segments:True"),
        ("max_split_size_mb:64,,", "an empty entry", "max_split_size_mb:64"),
        ("expandable_segments", "not KEY:VALUE", "expandable_segments:True"),
        (":True,a:1", "not KEY:VALUE", "a:1"),
    ],
)
def test_what_torch_would_stumble_over_is_named_with_what_would_do(
    conf: str, what: str, good: str
) -> None:
    with pytest.raises(UserError, match=what) as raised:
        users_alloc_conf({OLD: conf})
    assert OLD in str(raised.value)
    assert raised.value.do == f"{NEW}={good}"


@pytest.mark.parametrize(
    ("users", "whole"),
    [
        ("", "expandable_segments:True"),
        ("max_split_size_mb:64", "max_split_size_mb:64,expandable_segments:True"),
        ("expandable_segments:False", "expandable_segments:False"),
        ("a:1, expandable_segments:False", "a:1, expandable_segments:False"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync"),
    ],
)
def test_expandable_segments_are_added_unless_the_user_has_decided(users: str, whole: str) -> None:
    assert with_expandable_segments(users) == whole
