"""Harmful leftovers are found, and intended settings can be kept."""

from __future__ import annotations

import pytest

from launch.config.leftover_variables import (
    RULES,
    check_keep_env,
    find_leftovers,
    find_slow_settings,
)
from rundir.errors import UserError

HARMFUL = [
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_SOCKET_IFNAME", "=lo"),
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_SHM_DISABLE", "1"),
    ("NCCL_P2P_LEVEL", "NVL"),
    ("NCCL_P2P_LEVEL", "LOC"),
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG", "trace"),
    ("NCCL_NTHREADS", "16"),
    ("NCCL_NTHREADS", "64"),
    ("NCCL_NTHREADS", "300"),
    ("NCCL_BUFFSIZE", "1048576"),
    ("NCCL_MAX_NCHANNELS", "1"),
    ("NCCL_MAX_CTAS", "2"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
    ("CUDA_LAUNCH_BLOCKING", "1"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1"),
    ("NCCL_BLOCKING_WAIT", "true"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
    ("TORCH_NCCL_ENABLE_MONITORING", "0"),
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/x/trace_"),
    ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"),
]
ANOTHER_LAUNCHERS = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "PYTHON_EXEC",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ROLE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_RDZV_ENDPOINT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
]
HARMLESS = [
    ("NCCL_IB_DISABLE", "0"),
    ("NCCL_IB_DISABLE", ""),
    ("NCCL_SOCKET_IFNAME", "eth0"),
    ("NCCL_P2P_DISABLE", "0"),
    ("NCCL_P2P_LEVEL", "SYS"),
    ("NCCL_P2P_LEVEL", ""),
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_DEBUG", "VERSION"),
    ("NCCL_NTHREADS", "512"),
    ("NCCL_BUFFSIZE", "4194304"),
    ("NCCL_BUFFSIZE", "large"),
    ("NCCL_MAX_NCHANNELS", "16"),
    ("TORCH_DISTRIBUTED_DEBUG", "INFO"),
    ("CUDA_LAUNCH_BLOCKING", "0"),
    ("TORCH_NCCL_BLOCKING_WAIT", "0"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
    ("TORCH_FR_BUFFER_SIZE", "2000"),
    ("NCCL_SOCKET_IFNAME", "lo0"),
    ("MY_RANK", "1"),
    ("RANKS", "1"),
    ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
]


@pytest.mark.parametrize(("name", "value"), HARMFUL)
def test_what_does_harm_is_found_with_its_reason_unless_it_is_to_be_kept(
    name: str, value: str
) -> None:
    environ = {name: value, "HOME": "/h"}
    (found,) = find_leftovers(environ, "") + find_slow_settings(environ, "")
    assert (found.name, found.value) == (name, value)
    assert found.reason
    assert find_leftovers(environ, keep_env=f"HOME, {name}") == []
    assert find_slow_settings(environ, keep_env=f"HOME, {name}") == []


@pytest.mark.parametrize("value", ["1", ""])
@pytest.mark.parametrize("name", ANOTHER_LAUNCHERS)
def test_what_another_launcher_left_behind_is_found(name: str, value: str) -> None:
    assert [one.name for one in find_leftovers({name: value}, "")] == [name]


@pytest.mark.parametrize(("name", "value"), HARMLESS)
def test_what_does_no_harm_is_left_alone(name: str, value: str) -> None:
    assert find_leftovers({name: value}, "") + find_slow_settings({name: value}, "") == []


def test_every_rule_is_tried_here() -> None:
    tried = {name for name, _ in HARMFUL} | set(ANOTHER_LAUNCHERS)
    for rule in RULES:
        assert any(rule.covers(name) for name in tried), rule.names


def test_no_variable_has_two_rules() -> None:
    names = [name for rule in RULES for name in rule.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("keep_env", ["", " , ", "NCCL_IB_DISABLE", "MY_OWN,NCCL_DEBUG"])
def test_what_is_set_or_may_do_harm_can_be_kept(keep_env: str) -> None:
    check_keep_env(keep_env, {"MY_OWN": "1"})


@pytest.mark.parametrize(
    ("keep_env", "do"),
    [
        ("NCCL_P2P_DISABEL", "perhaps NCCL_P2P_DISABLE?"),
        ("MY_OWM", "perhaps MY_OWN?"),
        ("NCCL_DEBUG,XYZ", "set it, or take XYZ out"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_the_nearest_name(keep_env: str, do: str) -> None:
    with pytest.raises(UserError, match="which is not set") as raised:
        check_keep_env(keep_env, {"MY_OWN": "1"})
    assert raised.value.do == do


@pytest.mark.parametrize("name", ["RANK", "PET_NNODES", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_cannot_be_kept_is_said(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}, which cannot be kept"):
        check_keep_env(name, {name: "1"})
