"""A machine whose ranks could not find each other."""

from __future__ import annotations

from tests.launch.checks.conftest import Machine

UP = "ip link set lo up"


def test_loopback_that_is_down_is_an_error(machine: Machine) -> None:
    (row,) = machine.rows(first=":")["localhost"]  # a new network namespace is like that
    assert not row["ok"]
    assert row["text"].startswith("no connection to ")
    assert row["do"].startswith(UP)
    assert machine.rows(first=UP)["localhost"][0]["ok"]


def test_a_name_that_means_nothing_is_an_error(machine: Machine) -> None:
    nameless = f"{UP}; : >/mnt/empty; mount --bind /mnt/empty /etc/"
    first = f"mount -t tmpfs none /mnt; {nameless}hosts; : >/mnt/r; mount --bind /mnt/r /etc/"
    files = "echo 'hosts: files' >/mnt/n; mount --bind /mnt/n /etc/nsswitch.conf"
    (row,) = machine.rows(first=f"{first}resolv.conf; {files}")["localhost"]
    assert not row["ok"]
    assert row["text"].startswith("the name localhost does not resolve here")
    assert "127.0.0.1 localhost" in row["do"]
