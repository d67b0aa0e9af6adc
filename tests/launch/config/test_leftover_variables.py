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

# The values of each variable that do harm, and those that do not.
VALUES: dict[str, tuple[list[str], list[str]]] = {
    "NCCL_IB_DISABLE": (["1"], ["0", ""]),
    "NCCL_SOCKET_IFNAME": (["lo", "=lo"], ["eth0", "lo0"]),
    "NCCL_P2P_DISABLE": (["1"], ["0"]),
    "NCCL_SHM_DISABLE": (["1"], []),
    "NCCL_P2P_LEVEL": (["NVL", "LOC"], ["SYS", ""]),
    "NCCL_DEBUG": (["INFO", "trace"], ["WARN", "VERSION"]),
    "NCCL_NTHREADS": (["16", "64", "300"], ["512"]),
    "NCCL_BUFFSIZE": (["1048576"], ["4194304", "large"]),
    "NCCL_MAX_NCHANNELS": (["1"], ["16"]),
    "NCCL_MAX_CTAS": (["2"], []),
    "TORCH_DISTRIBUTED_DEBUG": (["DETAIL"], ["INFO"]),
    "CUDA_LAUNCH_BLOCKING": (["1"], ["0"]),
    "TORCH_NCCL_BLOCKING_WAIT": (["1"], ["0"]),
    "NCCL_BLOCKING_WAIT": (["true"], []),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (["0"], ["3", ""]),
    "TORCH_NCCL_ENABLE_MONITORING": (["0"], []),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": (["2000"], []),
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": (["/x/trace_"], []),
    "PYTORCH_CUDA_ALLOC_CONF": (["max_split_size_mb:64"], []),
    "TORCH_FR_BUFFER_SIZE": ([], ["2000"]),
    "MY_RANK": ([], ["1"]),
    "RANKS": ([], ["1"]),
    "CUDA_DEVICE_ORDER": ([], ["PCI_BUS_ID"]),
}
ANOTHER_LAUNCHERS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("PYTHON_EXEC", "MASTER_ADDR", "MASTER_PORT", "PET_NPROC_PER_NODE", "PET_RDZV_ENDPOINT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
)


@pytest.mark.parametrize("name", VALUES)
def test_what_does_harm_is_found_with_its_reason_unless_it_is_to_be_kept(name: str) -> None:
    harmful, harmless = VALUES[name]
    for value in harmful:
        environ = {name: value, "HOME": "/h"}
        (leftover,) = find_leftovers(environ, "") + find_slow_settings(environ, "")
        assert (leftover.name, leftover.value) == (name, value)
        assert leftover.reason
        assert find_leftovers(environ, keep_env=f"HOME, {name}") == []
        assert find_slow_settings(environ, keep_env=f"HOME, {name}") == []
    for value in harmless:
        assert find_leftovers({name: value}, "") + find_slow_settings({name: value}, "") == []


@pytest.mark.parametrize("name", ANOTHER_LAUNCHERS)
def test_what_another_launcher_left_behind_is_found(name: str) -> None:
    for value in ("1", ""):
        assert [leftover.name for leftover in find_leftovers({name: value}, "")] == [name]


def test_every_rule_is_tried_here_and_no_variable_has_two() -> None:
    tried = {*VALUES, *ANOTHER_LAUNCHERS}
    for rule in RULES:
        assert any(rule.covers(name) for name in tried), rule.names
    names = [name for rule in RULES for name in rule.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("keep_env", "do"),
    [
        ("NCCL_P2P_DISABEL", "perhaps NCCL_P2P_DISABLE?"),
        ("MY_OWM", "perhaps MY_OWN?"),
        ("NCCL_DEBUG,XYZ", "set it, or take XYZ out"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_the_nearest_name(keep_env: str, do: str) -> None:
    for known in ("", " , ", "NCCL_IB_DISABLE", "MY_OWN,NCCL_DEBUG"):
        check_keep_env(known, {"MY_OWN": "1"})
    with pytest.raises(UserError, match="which is not set") as raised:
        check_keep_env(keep_env, {"MY_OWN": "1"})
    assert raised.value.do == do


@pytest.mark.parametrize("name", ["RANK", "PET_NNODES", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_cannot_be_kept_is_said(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}, which cannot be kept"):
        check_keep_env(name, {name: "1"})
